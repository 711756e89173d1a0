"""The address space of one card's HBM: who holds which bytes, since when, and what the high-water marks were."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from heapq import nlargest
from typing import Literal, NamedTuple

from ..isa.errors import ConfigError, ProgramError, SiltwinError

LARGEST_LISTED = 10
PADDING_TAG = "padding"  # what rounding to granules adds; every other tag counts what was asked for


class Allocation(NamedTuple):
    """Bytes [address, address + num_bytes) of one card; `num_bytes` is `requested_bytes` rounded up to granules.

    `serial` counts the allocations of one Hbm, so that two that once stood at one address are told apart. With more
    `pieces` than one it stands for as many alike, made together, each beginning where the one before it ends.
    """

    address: int
    num_bytes: int
    requested_bytes: int
    owner: str
    tag: str
    time_ps: int
    serial: int
    pieces: int = 1

    @property
    def end_address(self) -> int:
        """The first address after the allocation."""
        return self.address + self.pieces * self.num_bytes

    def from_on(self, first: int, count: int) -> Allocation:
        """`count` of those that it stands for, from the `first` on."""
        address = self.address + first * self.num_bytes
        return self._replace(address=address, serial=self.serial + first, pieces=count)


class OutOfMemory(SiltwinError):
    """A card's HBM cannot hold a request: what was asked, what was missing, and who holds the rest.

    The allocator knows the card-local facts; whoever knows the card, step, instruction and request writes them in.
    """

    exit_code = 3

    def __init__(self, hbm: Hbm, requested_bytes: int, missing_bytes: int, owner: str, tag: str, now_ps: int):
        self.requested_bytes = requested_bytes
        self.missing_bytes = missing_bytes
        self.owner = owner
        self.tag = tag
        self.time_ps = now_ps
        self.capacity_bytes = hbm.capacity_bytes
        self.reserved_bytes = hbm.reserved_bytes
        self.free_bytes = hbm.free_bytes
        self.largest_hole_bytes = hbm.largest_hole_bytes
        self.largest: list[Allocation] = hbm.largest(LARGEST_LISTED)
        self.by_tag: dict[str, int] = dict(hbm.bytes_by_tag)
        self.card: str | None = None
        self.step: int | None = None
        self.step_kind: Literal["prefill", "decode", "mixed"] | None = None
        self.instruction: str | None = None
        self.request: str | None = None
        super().__init__()

    def __str__(self) -> str:
        where = f" on {self.card}" if self.card else ""
        held = ", ".join(f"{tag} {num_bytes}" for tag, num_bytes in sorted(self.by_tag.items())) or "nothing"
        return (
            f"out of memory{where} at {self.time_ps} ps: {self.owner} asked for {self.requested_bytes} bytes of "
            f"{self.tag}, and {self.missing_bytes} bytes more HBM would have held it; of {self.capacity_bytes} bytes "
            f"{self.reserved_bytes} are reserved and {self.free_bytes} free (largest hole {self.largest_hole_bytes}); "
            f"live: {held}"
        )


class _Holes:
    """The free ranges below the top of an address space, in address order, in blocks that know their largest.

    Every operation looks at one block and at one number of each other block, so that tens of thousands of holes
    stay cheap without a tree.
    """

    BLOCK = 512

    def __init__(self) -> None:
        self._starts: list[list[int]] = []
        self._sizes: list[list[int]] = []
        self._largest: list[int] = []
        self._firsts: list[int] = []

    def __iter__(self) -> Iterator[tuple[int, int]]:
        for starts, sizes in zip(self._starts, self._sizes, strict=True):
            yield from zip(starts, sizes, strict=True)

    @property
    def largest(self) -> int:
        """The size of the largest hole, 0 for none."""
        return max(self._largest, default=0)

    def take(self, size: int, most: int) -> tuple[int, int] | None:
        """Remove `size` bytes up to `most` times from the lowest hole that has them: (address, how many times)."""
        block = next((index for index, largest in enumerate(self._largest) if largest >= size), None)
        if block is None:
            return None
        starts, sizes = self._starts[block], self._sizes[block]
        index = next(i for i, hole in enumerate(sizes) if hole >= size)
        count = min(most, sizes[index] // size)
        address, left = starts[index], sizes[index] - count * size
        if left:
            starts[index], sizes[index] = address + count * size, left
        else:
            del starts[index], sizes[index]
        self._refresh(block)
        return address, count

    def add(self, start: int, size: int) -> None:
        """Return a range, merged with the holes that touch it."""
        block = max(0, bisect_right(self._firsts, start) - 1)
        if not self._starts:
            self._insert_block(0, [], [])
        starts, sizes = self._starts[block], self._sizes[block]
        index = bisect_left(starts, start)
        if index and starts[index - 1] + sizes[index - 1] == start:
            index -= 1
            sizes[index] += size
        else:
            starts.insert(index, start)
            sizes.insert(index, size)
        self._merge_next(block, index)
        self._refresh(block)

    def pop_ending_at(self, end: int) -> int | None:
        """Remove the last hole if it ends at `end`, and return its start."""
        if not self._starts or self._starts[-1][-1] + self._sizes[-1][-1] != end:
            return None
        start = self._starts[-1].pop()
        self._sizes[-1].pop()
        self._refresh(len(self._starts) - 1)
        return start

    def _merge_next(self, block: int, index: int) -> None:
        starts, sizes = self._starts[block], self._sizes[block]
        end = starts[index] + sizes[index]
        if index + 1 < len(starts):
            if starts[index + 1] == end:
                sizes[index] += sizes[index + 1]
                del starts[index + 1], sizes[index + 1]
        elif block + 1 < len(self._starts) and self._firsts[block + 1] == end:
            sizes[index] += self._sizes[block + 1][0]
            del self._starts[block + 1][0], self._sizes[block + 1][0]
            self._refresh(block + 1)

    def _insert_block(self, block: int, starts: list[int], sizes: list[int]) -> None:
        self._starts.insert(block, starts)
        self._sizes.insert(block, sizes)
        self._largest.insert(block, max(sizes, default=0))
        self._firsts.insert(block, starts[0] if starts else 0)

    def _refresh(self, block: int) -> None:
        starts, sizes = self._starts[block], self._sizes[block]
        if not starts:
            del self._starts[block], self._sizes[block], self._largest[block], self._firsts[block]
            return
        if len(starts) > 2 * self.BLOCK:
            self._insert_block(block + 1, starts[self.BLOCK :], sizes[self.BLOCK :])
            del starts[self.BLOCK :], sizes[self.BLOCK :]
        self._largest[block] = max(sizes)
        self._firsts[block] = starts[0]


class Hbm:
    """A first-fit allocator over one card's HBM.

    Placement is at the lowest address with room, in a space that has no end; the capacity only decides whether a
    placement is allowed. So the same calls stand at the same addresses on every capacity that holds them, and
    `high_water_bytes` is exactly the smallest capacity that would have held them. The reserve (driver, ECC,
    communication library) stands at address 0 and counts in `high_water_bytes`, but in no count of live bytes.
    """

    def __init__(self, capacity_bytes: int, reserved_bytes: int = 0, granule_bytes: int = 512) -> None:
        if granule_bytes < 1:
            raise ConfigError(f"granule_bytes={granule_bytes} must be at least 1")
        if not 0 <= reserved_bytes <= capacity_bytes:
            raise ConfigError(
                f"reserved_bytes={reserved_bytes} must lie between 0 and capacity_bytes={capacity_bytes} of the HBM"
            )
        self.capacity_bytes = capacity_bytes
        self.reserved_bytes = reserved_bytes
        self.granule_bytes = granule_bytes
        self._base = -(-reserved_bytes // granule_bytes) * granule_bytes
        self._top = self._base  # everything from here on is free
        self._holes = _Holes()
        self._live: dict[int, Allocation] = {}
        self._next_serial = 0
        self._by_tag: dict[str, int] = {}
        self._by_tag_at_peak: dict[str, int] = {}
        self.live_bytes = 0
        self.peak_bytes = 0
        self.peak_ps = 0
        self.high_water_bytes = reserved_bytes
        self._tags: dict[str, int] = {}
        self._history_ps = array("q")
        self._history_delta = array("q")
        self._history_tag = array("q")

    def allocate(self, num_bytes: int, *, owner: str, tag: str, now_ps: int) -> Allocation:
        """`num_bytes` bytes (rounded up to granules) at the lowest address with room; OutOfMemory when they do not fit.

        A request of zero bytes succeeds, stands at the first address after the reserve and takes no room.
        """
        return self.allocate_many(1, num_bytes, owner=owner, tag=tag, now_ps=now_ps)[0]

    def allocate_many(self, count: int, num_bytes: int, *, owner: str, tag: str, now_ps: int) -> list[Allocation]:
        """`count` allocations as by `allocate`, all or none; an OutOfMemory tells of the whole request.

        Those that stand one after the other are one `Allocation` of so many pieces.
        """
        if count < 0 or num_bytes < 0:
            raise ProgramError(f"{owner} asked for {count} x {num_bytes} bytes of {tag}; neither may be negative")
        self._check_time(now_ps)
        size = -(-num_bytes // self.granule_bytes) * self.granule_bytes
        places = self._place(size, count) if size else [(self._base, count)][:count]
        made = []
        for address, own in places:
            made.append(Allocation(address, size, num_bytes, owner, tag, now_ps, self._next_serial, own))
            self._next_serial += own
        end = max((run.end_address for run in made), default=0)
        if size and end > self.capacity_bytes:
            self._next_serial -= count
            for run in made:
                self._release(run.address, run.pieces * size)
            raise OutOfMemory(self, count * num_bytes, end - self.capacity_bytes, owner, tag, now_ps)
        for run in made:
            self._live[run.serial] = run
        if size and count:
            self.high_water_bytes = max(self.high_water_bytes, end)
            self._record(count, num_bytes, size, tag, now_ps)
        return made

    def allocate_each(self, wanted: Sequence[tuple[str, str, int]], now_ps: int) -> list[Allocation]:
        """An allocation for every (owner, tag, bytes), as by `allocate` one after the other."""
        self._check_time(now_ps)
        granule, top = self.granule_bytes, self._top
        made: list[Allocation] = []
        for serial, (owner, tag, num_bytes) in enumerate(wanted, self._next_serial):
            size = -(-num_bytes // granule) * granule
            made.append(Allocation(top if size else self._base, size, num_bytes, owner, tag, now_ps, serial))
            top += size
        if self._holes.largest or top > self.capacity_bytes or any(num_bytes < 0 for *_, num_bytes in wanted):
            return [self.allocate(size, owner=owner, tag=tag, now_ps=now_ps) for owner, tag, size in wanted]
        self._next_serial += len(made)
        self._live.update((one.serial, one) for one in made)
        if top > self._top:
            self._top, self.high_water_bytes = top, max(self.high_water_bytes, top)
        for one in made:
            if one.num_bytes:
                self._count(1, one.requested_bytes, one.num_bytes, one.tag, now_ps)
        self._note_peak(now_ps)
        return made

    def free(self, allocation: Allocation, now_ps: int, count: int | None = None) -> Allocation | None:
        """Give an allocation back; ProgramError when it is not live here (freed twice, or another card's).

        Of one that stands for several, the first `count` (None: all); returns what is left of it.
        """
        self._check_time(now_ps)
        if self._live.get(allocation.serial) is not allocation:
            known = allocation.serial < self._next_serial
            why = "it was freed before, or belongs to another card" if known else "it belongs to another card"
            raise ProgramError(
                f"cannot free {allocation.num_bytes} bytes of {allocation.tag} of {allocation.owner} at address "
                f"{allocation.address}: {why}"
            )
        freed = allocation.pieces if count is None else count
        assert 0 < freed <= allocation.pieces, f"{freed} of the {allocation.pieces} that {allocation} stands for"
        del self._live[allocation.serial]
        if allocation.num_bytes:
            self._release(allocation.address, freed * allocation.num_bytes)
            self._count(-freed, allocation.requested_bytes, allocation.num_bytes, allocation.tag, now_ps)
        if freed == allocation.pieces:
            return None
        left = allocation.from_on(freed, allocation.pieces - freed)
        self._live[left.serial] = left
        return left

    @property
    def live(self) -> Sequence[Allocation]:
        """Every live allocation, oldest first."""
        return [run.from_on(one, 1) for _, run in sorted(self._live.items()) for one in range(run.pieces)]

    @property
    def free_bytes(self) -> int:
        """Bytes neither live nor reserved."""
        return self.capacity_bytes - self.reserved_bytes - self.live_bytes

    @property
    def largest_hole_bytes(self) -> int:
        """The longest free run of addresses below the capacity."""
        return max(self._holes.largest, self.capacity_bytes - self._top, 0)

    @property
    def bytes_by_tag(self) -> Mapping[str, int]:
        """Live bytes of each tag that has any."""
        return {tag: num_bytes for tag, num_bytes in self._by_tag.items() if num_bytes}

    @property
    def peak_by_tag(self) -> Mapping[str, int]:
        """Bytes of each tag at the peak, padding among them; their sum is `peak_bytes`."""
        return {tag: num_bytes for tag, num_bytes in self._by_tag_at_peak.items() if num_bytes}

    def largest(self, count: int = LARGEST_LISTED) -> list[Allocation]:
        """The largest live allocations, largest first, the lower address first among equals."""

        def order(held: Allocation) -> tuple[int, int]:
            return held.num_bytes, -held.address

        runs = nlargest(count, self._live.values(), key=order)  # the first of each is its largest by this order
        return nlargest(
            count, (run.from_on(one, 1) for run in runs for one in range(min(count, run.pieces))), key=order
        )

    def history(self) -> Iterator[tuple[int, int, str]]:
        """(ps, bytes gained or given back, tag) in time order; equal instants of one tag in a row are one entry."""
        names = list(self._tags)
        for now_ps, delta, tag in zip(self._history_ps, self._history_delta, self._history_tag, strict=True):
            yield now_ps, delta, names[tag]

    def _place(self, size: int, count: int) -> list[tuple[int, int]]:
        """(address, how many) of the places where `count` times `size` bytes stand, each as low as it can."""
        places = []
        while count and (found := self._holes.take(size, count)) is not None:
            places.append(found)
            count -= found[1]
        if count:
            places.append((self._top, count))
            self._top += count * size
        return places

    def _release(self, address: int, size: int) -> None:
        if address + size != self._top:
            self._holes.add(address, size)
            return
        start = self._holes.pop_ending_at(address)
        self._top = address if start is None else start

    def _check_time(self, now_ps: int) -> None:
        last_ps = self._history_ps[-1] if self._history_ps else 0
        assert now_ps >= last_ps, f"HBM time runs backwards: {now_ps} ps after {last_ps} ps"

    def _record(self, count: int, requested_bytes: int, num_bytes: int, tag: str, now_ps: int) -> None:
        """Account `count` allocations, and the peak that they may make."""
        self._count(count, requested_bytes, num_bytes, tag, now_ps)
        self._note_peak(now_ps)

    def _note_peak(self, now_ps: int) -> None:
        if self.live_bytes > self.peak_bytes:
            self.peak_bytes, self.peak_ps = self.live_bytes, now_ps
            self._by_tag_at_peak = self._by_tag.copy()

    def _count(self, count: int, requested_bytes: int, num_bytes: int, tag: str, now_ps: int) -> None:
        """Account `count` allocations (negative: given back); what the granules add is padding, and no tag's."""
        self.live_bytes += count * num_bytes
        padding = num_bytes - requested_bytes
        self._by_tag[tag] = self._by_tag.get(tag, 0) + count * requested_bytes
        self._by_tag[PADDING_TAG] = self._by_tag.get(PADDING_TAG, 0) + count * padding
        self._remember(count * requested_bytes, tag, now_ps)
        if padding:
            self._remember(count * padding, PADDING_TAG, now_ps)

    def _remember(self, delta: int, tag: str, now_ps: int) -> None:
        code = self._tags.setdefault(tag, len(self._tags))
        for index in (-1, -2):  # the tag and its padding alternate
            if len(self._history_ps) < -index or self._history_ps[index] != now_ps:
                break
            # Merging a gain with a later loss of one instant would hide the peak between them.
            if self._history_tag[index] == code and (self._history_delta[index] > 0) == (delta > 0):
                self._history_delta[index] += delta
                return
        self._history_ps.append(now_ps)
        self._history_delta.append(delta)
        self._history_tag.append(code)
