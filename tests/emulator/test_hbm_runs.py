"""Allocations that are made together stand for the very ones that are made one by one."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siltwin.emulator.hbm import Allocation, Hbm, OutOfMemory
from siltwin.isa.errors import ProgramError

CAPACITY, RESERVED, GRANULE = 16 * 100, 24, 16


@dataclass
class Beside:
    """One Hbm that allocates many at once and one that allocates each, with what every request of them holds."""

    many: Hbm = field(default_factory=lambda: Hbm(CAPACITY, RESERVED, GRANULE))
    single: Hbm = field(default_factory=lambda: Hbm(CAPACITY, RESERVED, GRANULE))
    runs: list[list[Allocation]] = field(default_factory=list)
    each: list[list[Allocation]] = field(default_factory=list)
    now_ps: int = 0

    def allocate(self, count: int, num_bytes: int, tag: str) -> None:
        try:
            self.runs.append(self.many.allocate_many(count, num_bytes, owner="a", tag=tag, now_ps=self.now_ps))
        except OutOfMemory:
            alone = deepcopy(self.single)
            with pytest.raises(OutOfMemory):
                for _ in range(count):
                    alone.allocate(num_bytes, owner="a", tag=tag, now_ps=self.now_ps)
            return
        self.each.append(
            [self.single.allocate(num_bytes, owner="a", tag=tag, now_ps=self.now_ps) for _ in range(count)]
        )

    def free_first(self, request: int, count: int) -> None:
        runs, each = self.runs[request], self.each[request]
        for one in each[:count]:
            self.single.free(one, self.now_ps)
        del each[:count]
        while count and runs:
            run = runs.pop(0)
            own = min(count, run.pieces)
            count -= own
            if (left := self.many.free(run, self.now_ps, own)) is not None:
                runs.insert(0, left)

    def agree(self) -> None:
        assert [held[:6] for held in self.many.live] == [held[:6] for held in self.single.live]
        assert [held[:6] for held in self.many.largest(7)] == [held[:6] for held in self.single.largest(7)]
        assert list(self.many.history()) == list(self.single.history())
        for name in ("live_bytes", "peak_bytes", "peak_ps", "peak_by_tag", "bytes_by_tag", "high_water_bytes"):
            assert getattr(self.many, name) == getattr(self.single, name)
        assert self.many.largest_hole_bytes == self.single.largest_hole_bytes


@given(
    st.lists(
        st.one_of(
            st.tuples(st.integers(0, 7), st.integers(0, 70), st.sampled_from(["kv", "state"])),
            st.tuples(st.integers(0, 1 << 16), st.integers(1, 9)),
        ),
        max_size=30,
    )
)
@settings(max_examples=150, deadline=None)
def test_many_at_once_stand_where_one_by_one_would_put_them(steps: list[tuple[int, ...]]) -> None:
    beside = Beside()
    for step in steps:
        beside.now_ps += 1
        if len(step) == 3:
            beside.allocate(*step)
        elif beside.runs:
            beside.free_first(step[0] % len(beside.runs), step[1])
        beside.agree()


@given(
    st.lists(st.integers(0, 5), max_size=5),
    st.lists(
        st.tuples(st.sampled_from(["w", "x"]), st.sampled_from(["kv", "weight"]), st.integers(0, 200)), max_size=12
    ),
)
@settings(max_examples=100, deadline=None)
def test_a_list_of_buffers_stands_where_one_by_one_would_put_them(
    freed: list[int], wanted: list[tuple[str, str, int]]
) -> None:
    cards = Hbm(CAPACITY, RESERVED, GRANULE), Hbm(CAPACITY, RESERVED, GRANULE)
    for hbm in cards:
        held = [hbm.allocate(32, owner="before", tag="kv", now_ps=0) for _ in range(6)]
        for index in sorted(set(freed)):
            hbm.free(held[index], 1)
    together, single = cards
    failures = []
    try:
        together.allocate_each(wanted, 2)
    except OutOfMemory as error:
        failures.append((error.owner, error.requested_bytes, error.missing_bytes, error.by_tag))
    try:
        for owner, tag, num_bytes in wanted:
            single.allocate(num_bytes, owner=owner, tag=tag, now_ps=2)
    except OutOfMemory as error:
        assert failures == [(error.owner, error.requested_bytes, error.missing_bytes, error.by_tag)]
    else:
        assert not failures
    assert together.live == single.live
    assert list(together.history()) == list(single.history())
    assert (together.peak_bytes, together.peak_ps) == (single.peak_bytes, single.peak_ps)
    assert together.peak_by_tag == single.peak_by_tag and together.high_water_bytes == single.high_water_bytes


def test_a_run_is_given_back_from_its_front() -> None:
    hbm = Hbm(1 << 20)
    (run,) = hbm.allocate_many(5, 500, owner="request 0", tag="kv", now_ps=0)
    assert (run.address, run.num_bytes, run.pieces, run.end_address) == (0, 512, 5, 2560)
    left = hbm.free(run, 1, count=2)
    assert left is not None and (left.address, left.pieces, left.serial) == (1024, 3, 2)
    assert [held.address for held in hbm.live] == [1024, 1536, 2048]
    assert hbm.allocate(1024, owner="x", tag="kv", now_ps=2).address == 0
    with pytest.raises(ProgramError, match="freed before"):
        hbm.free(run, 3)
    assert hbm.free(left, 4) is None and hbm.live_bytes == 1024
