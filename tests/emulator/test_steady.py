"""Steady state: steps that come again are taken over from before, with the spans, exchanges and usage of a full run."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_programs import TIGHT, bodies
from test_compiled import CARDS, pair, submit, told, used
from test_folding import KINDS, LINES, Machine

from siltwin.emulator.compiled.cluster import CompiledCluster
from siltwin.emulator.failure import Cancelled

BODY = "tensor | matmul dst=%y a=%x w=%w bias=-\nlink | all_reduce x=%c group=all | wait tensor+1"
BEFORE = st.sampled_from(["", "", "", "pause", "hbm", "link", "stop"])


def runs(cluster: CompiledCluster, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Times at which the loop is entered from now on."""
    entered: list[int] = []
    run = cluster.calendar.run

    def noted(*given: int) -> int:
        entered.append(cluster.now_ps)
        return run(*given)

    monkeypatch.setattr(cluster.calendar, "run", noted)
    return entered


@settings(max_examples=100, deadline=None)
@given(
    data=st.data(),
    cards=st.integers(1, 4),
    overrides=st.sampled_from(CARDS),
    order=st.lists(st.tuples(st.integers(0, 1), st.integers(1, 2), BEFORE), min_size=2, max_size=7),
)
def test_steps_that_come_again_give_what_a_full_run_and_simpy_give(
    rig: Any, data: st.DataObject, cards: int, overrides: Any, order: list[tuple[int, int, str]]
) -> None:
    """Two bodies at two sizes come in any order, with pauses, slower HBM or links, or time that stops within."""
    one, steady = pair(rig, cards, "ring", overrides)
    full = CompiledCluster(one.spec, one.cluster.topology, steady=False)
    texts = [data.draw(bodies(cards, may_lock=False)) for _ in range(2)]
    programs = [{body: one.program(body) for body in dict.fromkeys(own)} for own in texts]
    told_by = []
    for cluster in (one.cluster, full, steady):
        found = []
        for which, size, before in order:
            now = cluster.now_ps
            if before == "pause":
                cluster.advance_to(now + 12_345)
            elif before == "hbm":
                cluster.set_capacity(0, "hbm", 10**10 * size)
            elif before == "link" and cards > 1:
                cluster.set_link_capacity(0, 1, 10**9 * size)
            own = programs[which]
            ticket = cluster.submit(
                [one.submission(rank, own[body], 16 * size) for rank, body in enumerate(texts[which])]
            )
            if before == "stop":
                cluster.advance_to(cluster.now_ps + 500_000)
            found.append(told(cluster, ticket))
        told_by.append([found, used(cluster)])
    assert told_by[0] == told_by[1] == told_by[2]


@settings(max_examples=40, deadline=None)
@given(data=st.data(), shape=st.sampled_from([(4, 2), (6, 3), (8, 4)]), kind=st.sampled_from(KINDS))
def test_folded_steps_that_come_again_give_what_a_full_run_gives(
    rig: Any, data: st.DataObject, shape: tuple[int, int], kind: str
) -> None:
    machine = Machine(rig, *shape, kind)
    program = machine.program(data.draw(st.lists(st.sampled_from(LINES), min_size=1, max_size=6)))
    longer = [16 + 16 * (rank == 1) for rank in range(shape[0])]
    steps = [machine.submissions([program] * shape[0], tokens) for tokens in ([16] * shape[0], longer)]
    order = data.draw(st.lists(st.integers(0, 1), min_size=2, max_size=6))
    told_by = []
    for steady in (True, False):
        cluster = CompiledCluster(machine.spec, machine.topology, steady=steady)
        told_by.append([[told(cluster, cluster.submit(steps[which])) for which in order], used(cluster)])
    assert told_by[0] == told_by[1]


def test_a_step_that_comes_again_is_not_run_again(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    one, cluster = pair(rig, 2, "ring", TIGHT)
    program = one.program(BODY)
    parts = [one.submission(rank, program) for rank in range(2)]
    first = cluster.submit(parts)
    cluster.run_until(first)
    entered = runs(cluster, monkeypatch)
    cluster.advance_to(first.end_ps + 1000)
    entered.clear()
    second = cluster.submit(parts)
    cluster.run_until(second)
    assert entered == []
    assert second.end_ps == 2 * first.end_ps + 1000
    assert cluster.calendar.activities == 2 * 2  # a product that stands for both and an all-reduce, twice


@pytest.mark.parametrize("change", ["hbm", "together", "stop", "off"])
def test_a_step_that_is_not_alone_or_not_the_same_is_run(
    rig: Any, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    one, cluster = pair(rig, 2, "ring", TIGHT)
    cluster = CompiledCluster(one.spec, one.cluster.topology, steady=change != "off")
    program = one.program(BODY)
    parts = [one.submission(rank, program) for rank in range(2)]
    cluster.run_until(cluster.submit(parts))
    entered = runs(cluster, monkeypatch)
    if change == "hbm":
        cluster.set_capacity(1, "hbm", 10**11)
    ticket = cluster.submit(parts)
    if change == "together":
        submit(one, cluster, ["vector | add dst=%d a=%c b=%d"] * 2, 1, 16)
    if change == "stop":
        cluster.advance_to(cluster.now_ps + 10)
    cluster.run_until(ticket)
    assert entered


def test_a_step_that_was_taken_back_is_not_taken_over(rig: Any) -> None:
    one, cluster = pair(rig, 2, "ring", TIGHT)
    program = one.program(BODY)
    parts = [one.submission(rank, program) for rank in range(2)]
    cancelled = cluster.submit(parts)
    cluster.advance_to(1_000_000)
    cluster.cancel(cancelled)
    with pytest.raises(Cancelled):
        cluster.run_until(cancelled)
    cluster.advance_to(2_000_000)
    ends = []
    for _ in range(2):
        ticket = cluster.submit(parts)
        cluster.run_until(ticket)
        ends.append(ticket.end_ps - ticket.start_ps)
        assert len(ticket.spans) == 4
    assert ends[0] == ends[1]
