"""What a collective expands into: lockstep steps of transfers between the members of a group, kept as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

SIGNAL = -1  # the `part` of a transfer that carries no bytes, only the news that its source has come so far
Ints = np.ndarray[Any, np.dtype[Any]]
Batch = tuple[Any, Any, Any, bool]  # (sources, targets, parts, reduces): numbers or arrays that broadcast


def sorted_unique(numbers: Ints) -> Ints:
    """np.unique by sorting, which for a million of them is faster than by hashing."""
    ordered = np.sort(numbers)
    return ordered[np.concatenate(([True], ordered[1:] != ordered[:-1]))] if len(ordered) else ordered


@dataclass(frozen=True, slots=True)
class Transfer:
    """Member `source` sends part `part` of its buffer to member `target`; both are indices in the group.

    The target overwrites its own part (send and recv), or, where `reduces`, adds to it (send and recv-reduce).
    """

    source: int
    target: int
    part: int
    reduces: bool = False


@dataclass(frozen=True)
class Step:
    """Transfers that happen at once: all of them read what was there before the step.

    Where a target is reached twice for one part, it takes the transfers in this order. A `streamed` step follows on
    the heels of the one before: its bytes are on the way while those arrive, so that it adds no latency of its own.
    """

    transfers: tuple[Transfer, ...]
    streamed: bool = False

    @cached_property
    def needs_copies(self) -> bool:
        """Whether a transfer sends what another one of this step overwrites, so that order would matter."""
        sent = {(transfer.source, transfer.part) for transfer in self.transfers}
        return any((transfer.target, transfer.part) in sent for transfer in self.transfers)


@dataclass(frozen=True, eq=False)
class Moves:
    """The transfers of all steps, one array a field; those of step i stand from `starts[i]` to `starts[i + 1]`.

    `sources`, `targets`, `parts` are int32, `reduces` bool, `starts` int64 [steps + 1], `streamed` bool [steps].
    """

    sources: Ints
    targets: Ints
    parts: Ints
    reduces: Ints
    starts: Ints
    streamed: Ints

    def __len__(self) -> int:
        return len(self.streamed)

    @property
    def count(self) -> int:
        """How many transfers there are."""
        return len(self.sources)

    @property
    def num_bytes(self) -> int:
        """Host memory that the arrays take."""
        return sum(array.nbytes for array in self._fields())

    @cached_property
    def step_of(self) -> Ints:
        """The step of every transfer."""
        return np.repeat(np.arange(len(self)), np.diff(self.starts))

    def same_as(self, other: Moves) -> bool:
        """Whether all transfers are the same, in the same order."""
        return all(np.array_equal(a, b) for a, b in zip(self._fields(), other._fields(), strict=True))

    def cut(self, first: int, last: int) -> Moves:
        """Steps `first` to `last` - 1."""
        low, high = int(self.starts[first]), int(self.starts[last])
        sources, targets, parts, reduces = (array[low:high] for array in self._fields()[:4])
        starts = self.starts[first : last + 1] - low
        return Moves(sources, targets, parts, reduces, starts, self.streamed[first:last])

    def _fields(self) -> tuple[Ints, ...]:
        return self.sources, self.targets, self.parts, self.reduces, self.starts, self.streamed


@dataclass(frozen=True, eq=False)
class Pattern:
    """Steps that differ in nothing but which parts move: `steps` are their numbers, the rest is one step's transfers.

    `rows` [steps, transfers] says where each of their transfers stands among the plan's.
    """

    steps: Ints
    rows: Ints
    sources: Ints
    targets: Ints
    reduces: Ints


@dataclass(frozen=True, eq=False)
class Incidence:
    """Which transfers of a step count at which place: at `ids[i]` those in `columns[starts[i] : starts[i + 1]]`."""

    ids: Ints
    columns: Ints
    starts: Ints

    @staticmethod
    def of(places: Ints, columns: Ints) -> Incidence:
        """Transfer `columns[i]` counts at `places[i]`."""
        order = np.argsort(places, kind="stable")
        ids, starts = np.unique(places[order], return_index=True)
        return Incidence(ids, columns[order], starts)

    def sums(self, sizes: Ints) -> Ints:
        """[steps, places] of what counts there, from [steps, entries] in the order of `columns`."""
        if len(self.ids) == len(self.columns):
            return sizes
        return np.asarray(np.add.reduceat(sizes, self.starts, axis=1))

    def most(self, sizes: Ints) -> Ints:
        """What counts at the place of most in every step, from the sizes of all transfers, [steps, transfers]."""
        if not len(self.ids):
            return np.zeros(len(sizes), np.int64)
        return np.asarray(self.sums(sizes[:, self.columns]).max(axis=1))


def patterns_of(moves: Moves, one_each: bool) -> tuple[Pattern, ...]:
    """The patterns of a plan in order of their first steps; `one_each` makes every step a pattern of its own."""
    found: dict[object, list[int]] = {}
    bounds = moves.starts.tolist()
    for step, (low, high) in enumerate(zip(bounds, bounds[1:], strict=False)):
        columns = (moves.sources[low:high], moves.targets[low:high], moves.reduces[low:high])
        key = step if one_each else b"".join(column.tobytes() for column in columns)
        found.setdefault(key, []).append(step)
    patterns = []
    for steps in found.values():
        low, high = bounds[steps[0]], bounds[steps[0] + 1]
        rows = moves.starts[steps][:, None] + np.arange(high - low)
        columns = (moves.sources[low:high], moves.targets[low:high], moves.reduces[low:high])
        patterns.append(Pattern(np.array(steps), rows, *columns))
    return tuple(patterns)


class MovesBuilder:
    """Collects steps, each of one or more batches of transfers, into Moves."""

    def __init__(self) -> None:
        self._columns: list[tuple[Ints, Ints, Ints, Ints]] = []
        self._counts: list[int] = []
        self._streamed: list[bool] = []

    def step(self, *batches: Batch, streamed: bool = False) -> None:
        """One more step; the transfers of a batch are its broadcast arrays read row by row. Nothing moved: no step."""
        count = 0
        for sources, targets, parts, reduces in batches:
            columns = np.broadcast_arrays(sources, targets, parts)
            flat = [np.asarray(column, np.int32).reshape(-1) for column in columns]
            self._columns.append((flat[0], flat[1], flat[2], np.full(flat[0].shape, reduces)))
            count += len(flat[0])
        if count:
            self._counts.append(count)
            self._streamed.append(streamed)

    def extend(self, moves: Moves) -> None:
        """All steps of other moves, as they are."""
        self._columns.append((moves.sources, moves.targets, moves.parts, moves.reduces))
        self._counts += np.diff(moves.starts).tolist()
        self._streamed += moves.streamed.tolist()

    def moves(self) -> Moves:
        """What was collected."""
        if not self._columns:
            empty = np.zeros(0, np.int32)
            return Moves(empty, empty, empty, empty.astype(bool), np.zeros(1, np.int64), empty.astype(bool))
        sources, targets, parts, reduces = (np.concatenate(column) for column in zip(*self._columns, strict=True))
        starts = np.concatenate(([0], np.cumsum(self._counts, dtype=np.int64)))
        return Moves(sources, targets, parts, reduces, starts, np.array(self._streamed, bool))


def moves_of(steps: Sequence[Step]) -> Moves:
    """Steps written out by hand, as arrays."""
    builder = MovesBuilder()
    for step in steps:
        rows = step.transfers
        if rows:
            batches = [([t.source], [t.target], [t.part], t.reduces) for t in rows]
            builder.step(*batches, streamed=step.streamed)
    return builder.moves()


@dataclass(frozen=True, eq=False)
class Plan:
    """A collective over `size` members, expanded by `algorithm`; sizes of parts come at use.

    `parts` is how many parts the algorithm cuts the buffer into, and `given` how many the collective's callers name;
    `sizes_of` gets from these to those. Member `size`, where `uses_switch`, is the switch that reduces and copies on
    the way; it has a buffer only while the plan runs. The next step of a member starts when it has ended its last one.
    """

    collective: str
    algorithm: str
    size: int
    moves: Moves
    root: int = 0
    parts: int = 0
    given: int = 0
    uses_switch: bool = False
    options: str = ""

    @staticmethod
    def of_steps(
        collective: str, algorithm: str, size: int, steps: Sequence[Step], root: int = 0, parts: int = 0
    ) -> Plan:
        """A plan written out by hand."""
        return Plan(collective, algorithm, size, moves_of(steps), root, parts, parts)

    def __hash__(self) -> int:
        # Cheap on purpose: a plan may hold millions of transfers, and caches look it up for every instruction.
        return self._hash

    @cached_property
    def _hash(self) -> int:
        moves = self.moves  # whose first few tell the steps of one plan apart
        some = tuple(column[:8].tobytes() for column in (moves.sources, moves.targets, moves.parts))
        return hash((self.collective, self.algorithm, self.size, self.root, self.parts, moves.count, some))

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Plan) or hash(self) != hash(other):
            return False
        mine, theirs = (
            (p.collective, p.algorithm, p.size, p.root, p.parts, p.given, p.uses_switch, p.options)
            for p in (self, other)
        )
        return mine == theirs and self.moves.same_as(other.moves)

    @property
    def name(self) -> str:
        """`ring all_reduce of 8`."""
        return f"{self.algorithm} {self.collective} of {self.size}"

    @property
    def num_steps(self) -> int:
        """How many lockstep steps there are."""
        return len(self.moves)

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """The steps as values, for reading and testing; millions of transfers take seconds."""
        moves = self.moves
        columns = (moves.sources, moves.targets, moves.parts, moves.reduces)
        rows = [Transfer(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]
        bounds = moves.starts.tolist()
        return tuple(
            Step(tuple(rows[low:high]), streamed)
            for low, high, streamed in zip(bounds, bounds[1:], moves.streamed.tolist(), strict=False)
        )

    @cached_property
    def patterns(self) -> tuple[Pattern, ...]:
        """Its steps by what they have in common; a switch's are told apart, for parts meet there."""
        return patterns_of(self.moves, one_each=self.uses_switch)

    @cached_property
    def pairs(self) -> Ints:
        """Who sends to whom, ascending: source * (size + 1) + target, `size` being the switch."""
        keys = [p.sources.astype(np.int64) * (self.size + 1) + p.targets for p in self.patterns]
        return sorted_unique(np.concatenate(keys)) if keys else np.zeros(0, np.int64)

    @cached_property
    def busy(self) -> tuple[tuple[Pattern, Incidence, Incidence], ...]:
        """For each pattern which transfers a member's memory sees, and which of them it adds up."""
        found = []
        for pattern in self.patterns:
            columns = np.arange(len(pattern.sources))
            adding = columns[pattern.reduces]
            places = np.concatenate((pattern.sources, pattern.targets, pattern.targets[adding]))
            pairs = (places, np.concatenate((columns, columns, adding))), (pattern.targets[adding], adding)
            ends, reducers = (Incidence.of(p[p < self.size], which[p < self.size]) for p, which in pairs)
            found.append((pattern, ends, reducers))
        return tuple(found)

    def step(self, index: int) -> Plan:
        """The plan of one step alone; the same object each time it is asked for."""
        return self._single[index]

    @cached_property
    def _single(self) -> tuple[Plan, ...]:
        return tuple(self._with(self.moves.cut(index, index + 1)) for index in range(self.num_steps))

    def _with(self, moves: Moves) -> Plan:
        return Plan(
            self.collective,
            self.algorithm,
            self.size,
            moves,
            self.root,
            self.parts,
            self.given,
            self.uses_switch,
            self.options,
        )

    def sizes_of(self, given: Ints) -> Ints:
        """Sizes of the plan's own parts, from those of the parts that callers name (int64, in order).

        A plan with as many parts takes them as they are. Where each given part has pieces, every one is cut evenly,
        the first pieces one longer; where the parts only tile one buffer, the buffer as a whole is cut evenly.
        """
        if len(given) == self.parts:
            return given
        if len(given) and self.parts % len(given) == 0 and len(given) == self.given and self.cuts_each_part:
            pieces = self.parts // len(given)
            base, longer = np.divmod(given[:, None], pieces)
            return np.asarray(base + (np.arange(pieces) < longer)).reshape(-1)
        each, rest = divmod(int(given.sum()), self.parts)
        return np.asarray(each + (np.arange(self.parts) < rest), np.int64)

    @property
    def cuts_each_part(self) -> bool:
        """Whether the plan's parts are pieces of given parts (who owns a part matters), not a new cut of the whole."""
        return self.collective not in TILED


# Collectives whose given parts only tile one buffer: an algorithm may cut it anew as it likes.
TILED = frozenset({"all_reduce", "broadcast", "reduce"})
