"""The HBM allocator: where things stand, what it counts, and what it says when it is full."""

import math
import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from siltwin.emulator.hbm import Allocation, Hbm, OutOfMemory
from siltwin.isa.errors import ConfigError, ProgramError


def take(hbm: Hbm, num_bytes: int, tag: str = "weights", now_ps: int = 0, owner: str = "rank0") -> Allocation:
    return hbm.allocate(num_bytes, owner=owner, tag=tag, now_ps=now_ps)


def test_an_allocation_is_rounded_up_to_granules_and_stands_after_the_reserve() -> None:
    hbm = Hbm(10_000, reserved_bytes=1000)
    first, second = take(hbm, 513), take(hbm, 512)
    assert (first.address, first.num_bytes, first.requested_bytes) == (1024, 1024, 513)
    assert second.address == 2048
    assert hbm.high_water_bytes == 2560
    assert hbm.live_bytes == hbm.peak_bytes == 1536
    assert hbm.free_bytes == 10_000 - 1000 - 1536


def test_a_hole_at_the_lowest_address_is_used_first() -> None:
    hbm = Hbm(1 << 20)
    held = [take(hbm, 512) for _ in range(5)]
    hbm.free(held[3], 1)
    hbm.free(held[1], 1)
    assert take(hbm, 512, now_ps=2).address == held[1].address
    assert take(hbm, 1024, now_ps=2).address == 5 * 512, "the hole at 3 has 512 bytes only"


def test_freed_neighbours_become_one_hole() -> None:
    hbm = Hbm(1 << 20)
    held = [take(hbm, 512) for _ in range(4)]
    for index in (0, 2, 1):
        hbm.free(held[index], 1)
    assert take(hbm, 1536, now_ps=2).address == 0


def test_the_top_falls_when_the_last_allocations_are_freed() -> None:
    hbm = Hbm(1 << 20)
    held = [take(hbm, 512) for _ in range(3)]
    hbm.free(held[1], 1)
    hbm.free(held[2], 1)
    assert hbm.largest_hole_bytes == (1 << 20) - 512
    assert hbm.high_water_bytes == 1536


def test_the_capacity_is_exact_to_the_byte() -> None:
    assert take(Hbm(1024 + 512, reserved_bytes=512), 1024).end_address == 1536
    with pytest.raises(OutOfMemory) as caught:
        take(Hbm(1535, reserved_bytes=512), 1024)
    assert caught.value.missing_bytes == 1


def test_out_of_memory_tells_what_was_missing_and_who_holds_the_rest() -> None:
    hbm = Hbm(8 * 512, reserved_bytes=512)
    held = [take(hbm, 512 * (1 + index % 2), tag="kv" if index else "weights") for index in range(4)]
    hbm.free(held[1], 5)
    with pytest.raises(OutOfMemory) as caught:
        take(hbm, 1025, tag="activations", now_ps=7, owner="layer 3")
    oom = caught.value
    # 512 reserved, 512 weights, a hole of 1,024, kv of 512 and 1,024: the top stands at 3,584 and the request would end
    # at 3,584 + 1,536 = 5,120, which is 1,024 beyond 4,096.
    assert oom.exit_code == 3
    assert (oom.requested_bytes, oom.missing_bytes, oom.free_bytes) == (1025, 1024, 1536)
    assert oom.largest_hole_bytes == 1024
    assert [held.num_bytes for held in oom.largest] == [1024, 512, 512]
    assert oom.by_tag == {"weights": 512, "kv": 1536}
    assert (oom.owner, oom.tag, oom.time_ps) == ("layer 3", "activations", 7)
    oom.card = "card 2"
    assert "out of memory on card 2" in str(oom) and "1024 bytes more HBM" in str(oom)


def test_a_refused_request_leaves_no_trace() -> None:
    hbm = Hbm(10 * 512)
    held = [take(hbm, 512) for _ in range(4)]
    hbm.free(held[1], 1)
    before = (hbm.live_bytes, hbm.high_water_bytes, hbm.peak_bytes, hbm.largest_hole_bytes, list(hbm.history()))
    with pytest.raises(OutOfMemory):
        take(hbm, 7 * 512, now_ps=2)
    with pytest.raises(OutOfMemory):
        hbm.allocate_many(8, 512, owner="rank0", tag="kv", now_ps=2)
    after = (hbm.live_bytes, hbm.high_water_bytes, hbm.peak_bytes, hbm.largest_hole_bytes, list(hbm.history()))
    assert before == after
    assert take(hbm, 512, now_ps=2).address == 512


def test_many_pages_stand_where_one_by_one_would_put_them_and_miss_what_they_would_miss() -> None:
    one, many = Hbm(100 * 512), Hbm(100 * 512)
    for hbm in (one, many):
        held = [take(hbm, 512) for _ in range(10)]
        for index in (2, 5, 6):
            hbm.free(held[index], 1)
    single = [take(one, 1000, tag="kv", now_ps=2).address for _ in range(4)]
    pages = many.allocate_many(4, 1000, owner="rank0", tag="kv", now_ps=2)
    assert [run.from_on(one, 1).address for run in pages for one in range(run.pieces)] == single
    assert single == [5 * 512, 10 * 512, 12 * 512, 14 * 512]
    with pytest.raises(OutOfMemory) as caught:
        many.allocate_many(50, 1024, owner="rank0", tag="kv", now_ps=3)
    assert caught.value.missing_bytes == (16 + 100 - 100) * 512
    assert caught.value.requested_bytes == 50 * 1024


def test_zero_bytes_are_an_allocation_that_takes_no_room() -> None:
    hbm = Hbm(512)
    empty, other = take(hbm, 0), take(hbm, 0)
    assert empty.num_bytes == hbm.live_bytes == hbm.high_water_bytes == 0
    take(hbm, 512)
    hbm.free(empty, 0)
    hbm.free(other, 0)
    with pytest.raises(ProgramError):
        hbm.free(empty, 0)
    assert hbm.allocate_many(0, 512, owner="rank0", tag="kv", now_ps=0) == []


def test_freeing_twice_or_on_another_card_is_refused() -> None:
    here, there = Hbm(1 << 20), Hbm(1 << 20)
    mine, theirs = take(here, 512), take(there, 512)
    with pytest.raises(ProgramError, match="another card"):
        here.free(theirs, 0)
    here.free(mine, 1)
    with pytest.raises(ProgramError, match="freed before"):
        here.free(mine, 2)


@pytest.mark.parametrize("count, num_bytes", [(1, -1), (-1, 512)])
def test_negative_requests_are_refused(count: int, num_bytes: int) -> None:
    with pytest.raises(ProgramError, match="negative"):
        Hbm(4096).allocate_many(count, num_bytes, owner="rank0", tag="kv", now_ps=0)


def test_a_reserve_beyond_the_capacity_is_refused() -> None:
    with pytest.raises(ConfigError, match="reserved_bytes=513"):
        Hbm(512, reserved_bytes=513)


def test_the_peak_is_remembered_with_its_time_and_tags() -> None:
    hbm = Hbm(1 << 20)
    take(hbm, 1024, "weights", 0)
    pages = hbm.allocate_many(3, 512, owner="rank0", tag="kv", now_ps=10)
    hbm.free(pages[0], 20, count=1)
    take(hbm, 512, "activations", 30)  # back at the peak, not above it
    assert (hbm.peak_bytes, hbm.peak_ps) == (2560, 10)
    assert hbm.peak_by_tag == {"weights": 1024, "kv": 1536}
    assert hbm.bytes_by_tag == {"weights": 1024, "kv": 1024, "activations": 512}
    assert list(hbm.history()) == [(0, 1024, "weights"), (10, 1536, "kv"), (20, -512, "kv"), (30, 512, "activations")]


def test_one_instant_of_one_tag_is_one_entry_of_the_curve_but_a_swap_keeps_its_peak() -> None:
    hbm = Hbm(1 << 20)
    first = take(hbm, 512, "kv", 5)
    take(hbm, 512, "kv", 5)
    hbm.free(first, 5)
    assert list(hbm.history()) == [(5, 1024, "kv"), (5, -512, "kv")]


def test_the_largest_are_listed_largest_first_then_lowest_address() -> None:
    hbm = Hbm(1 << 20)
    sizes = [512, 2048, 1024, 2048]
    held = [take(hbm, size) for size in sizes]
    assert hbm.largest(3) == [held[1], held[3], held[2]]


def test_tens_of_thousands_of_scattered_pages_are_all_placed() -> None:
    hbm, order = Hbm(64 << 30), random.Random(7)
    held = [take(hbm, 4096 * order.randint(1, 9), now_ps=0) for _ in range(20_000)]
    order.shuffle(held)
    for allocation in held[:10_000]:
        hbm.free(allocation, 1)
    for _ in range(10_000):
        take(hbm, 4096 * order.randint(1, 9), now_ps=2)
    assert len(hbm.live) == 20_000 and sum(allocation.num_bytes for allocation in hbm.live) == hbm.live_bytes


class AgainstANaiveModel(RuleBasedStateMachine):
    """Random allocations and frees beside a list of taken bytes, and the exactness of the high-water mark."""

    CAPACITY = 64 * 16

    def __init__(self) -> None:
        super().__init__()
        self.hbm = Hbm(self.CAPACITY, reserved_bytes=40, granule_bytes=16)
        self.held: list[Allocation] = []
        self.trace: list[tuple[str, int]] = []
        self.now_ps = 0

    def naive_address(self, size: int) -> int:
        taken = sorted((held.address, held.end_address) for held in self.held if held.num_bytes)
        address = 48  # the reserve of 40 in granules of 16
        for start, end in taken:
            if start - address >= size:
                break
            address = end
        return address

    @rule(num_bytes=st.integers(0, 200), tag=st.sampled_from(["kv", "weights"]))
    def allocate(self, num_bytes: int, tag: str) -> None:
        size = math.ceil(num_bytes / 16) * 16
        address = self.naive_address(size) if size else 48
        self.now_ps += 1
        if size and address + size > self.CAPACITY:
            with pytest.raises(OutOfMemory) as caught:
                self.hbm.allocate(num_bytes, owner="model", tag=tag, now_ps=self.now_ps)
            assert caught.value.missing_bytes == address + size - self.CAPACITY
            return
        made = self.hbm.allocate(num_bytes, owner="model", tag=tag, now_ps=self.now_ps)
        assert (made.address, made.num_bytes) == (address, size)
        self.held.append(made)
        self.trace.append(("allocate", num_bytes))

    @precondition(lambda self: self.held)
    @rule(choice=st.integers(0, 1 << 16))
    def free(self, choice: int) -> None:
        index = choice % len(self.held)
        self.hbm.free(self.held.pop(index), self.now_ps)
        self.trace.append(("free", index))

    @invariant()
    def bytes_are_conserved_and_nothing_overlaps(self) -> None:
        spans = sorted((held.address, held.end_address) for held in self.held if held.num_bytes)
        assert all(end <= start for (_, end), (start, _) in zip(spans, spans[1:], strict=False))
        assert self.hbm.live_bytes == sum(end - start for start, end in spans)
        assert self.hbm.live_bytes == sum(self.hbm.bytes_by_tag.values())
        assert self.hbm.live_bytes == sum(delta for _, delta, _ in self.hbm.history())
        assert list(self.hbm.live) == self.held

    def teardown(self) -> None:
        high_water = self.hbm.high_water_bytes
        self.replay(high_water)
        if high_water > 48:
            with pytest.raises(OutOfMemory):
                self.replay(high_water - 1)
            with pytest.raises(OutOfMemory):
                self.replay(high_water - 16)

    def replay(self, capacity_bytes: int) -> None:
        hbm, held = Hbm(capacity_bytes, reserved_bytes=40, granule_bytes=16), []
        for what, value in self.trace:
            if what == "allocate":
                held.append(hbm.allocate(value, owner="model", tag="kv", now_ps=0))
            else:
                hbm.free(held.pop(value), 0)
        assert hbm.high_water_bytes == self.hbm.high_water_bytes


TestAgainstANaiveModel = AgainstANaiveModel.TestCase
TestAgainstANaiveModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_a_tag_counts_what_was_asked_for_and_padding_what_the_granules_add() -> None:
    hbm = Hbm(10_000, 0, 512)
    held = hbm.allocate_many(3, 1000, owner="a", tag="weight", now_ps=0)
    assert hbm.bytes_by_tag == {"weight": 3000, "padding": 72}
    assert hbm.live_bytes == sum(hbm.peak_by_tag.values()) == 3072
    for allocation in held:
        hbm.free(allocation, 5)
    assert hbm.bytes_by_tag == {} and hbm.live_bytes == 0
    assert list(hbm.history()) == [(0, 3000, "weight"), (0, 72, "padding"), (5, -3000, "weight"), (5, -72, "padding")]
