"""Submissions taken back and activities that fail: the compiled calendar does as SimPy's, folded or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_programs import bodies
from test_compiled import CARDS, QUEUES, now, pair, submit, told, used
from test_folding import KINDS, LINES, Machine

from siltwin.emulator.compiled.cluster import CompiledCluster
from siltwin.emulator.deadlock import DeadlockError
from siltwin.emulator.failure import Cancelled
from siltwin.isa.errors import ConfigError, ProgramError

LATER_PS = 10**15
MATMUL = "tensor | matmul dst=%y a=%x w=%w bias=-"
COPY = "dma0 | copy dst=%d src=%c"
REDUCE = "link | all_reduce x=%c group=all"


class Gone(Exception):
    """What makes an activity fail in these tests."""


class Blow(NamedTuple):
    """What befalls a cluster after a while: a submission is taken back, a queue's activity fails, or HBM slows down."""

    after_ps: int
    kind: str
    ticket: int
    rank: int
    queue: int


BLOWS = st.builds(
    Blow,
    st.integers(0, 3_000_000),
    st.sampled_from(["cancel", "fail", "fail", "slow"]),
    st.integers(0, 2),
    st.integers(0, 8),
    st.integers(0, 5),
)


def strike(cluster: Any, tickets: Sequence[Any], blow: Blow) -> object:
    """Let a blow fall on a cluster; returns what it says of it."""
    cluster.advance_to(now(cluster) + blow.after_ps)
    rank, queues = blow.rank % len(cluster.cards), cluster.spec.queues
    if blow.kind == "slow":
        cluster.set_capacity(rank, "hbm", 10**9 + blow.after_ps)
    elif blow.kind == "cancel":
        ticket = tickets[blow.ticket % len(tickets)]
        defuse(ticket)
        cluster.cancel(ticket)
    else:
        for ticket in tickets:
            defuse(ticket)
        return cluster.fail(rank, queues[blow.queue % len(queues)].name, Gone("a bit flipped"))
    return None


def defuse(ticket: Any) -> None:
    """A failure that nobody awaits would stop SimPy."""
    if hasattr(ticket, "done"):
        ticket.done.defused = True


def outcomes(cluster: Any, tickets: Sequence[Any]) -> list[Any]:
    """What came of every submission, and what all of them used, once all are at rest."""
    ends = [end_of(cluster, ticket) for ticket in tickets]
    if "deadlock" in [end[0] for end in ends]:
        return ends
    cluster.advance_to(now(cluster) + LATER_PS)
    found = [told(cluster, ticket) if ticket.cause is None else told_of_failed(ticket) for ticket in tickets]
    return [ends, found, used(cluster)]


def end_of(cluster: Any, ticket: Any) -> tuple[str, object]:
    try:
        cluster.run_until(ticket)
    except DeadlockError as dead:
        return "deadlock", dead.waiters
    except (Cancelled, Gone, ProgramError) as cause:
        assert cause is ticket.cause
        return str(cause), ticket.end_ps
    return "", ticket.end_ps


def told_of_failed(ticket: Any) -> Any:
    """What a failed submission had done."""
    exchanged = sorted(map(str, ticket.exchanged))
    return sorted(ticket.spans), exchanged, sum(len(c.sites) * len(c.ranks) for c in ticket.columns)


def check_random(rig: Any, data: st.DataObject, cards: int, overrides: Mapping[str, str]) -> None:
    """Several submissions of random programs, and blows between and after them."""
    one, compiled = pair(rig, cards, "ring", overrides)
    plans = [(data.draw(bodies(cards, may_lock=False)), data.draw(st.integers(1, 64))) for _ in range(2)]
    blows = [data.draw(st.lists(BLOWS, max_size=2)) for _ in plans]
    how = [{"weight": data.draw(st.integers(1, 3)), "priority": data.draw(st.integers(0, 1))} for _ in plans]
    in_turn = data.draw(st.booleans())
    told_by = []
    for cluster in (one.cluster, compiled):
        tickets: list[Any] = []
        said = []
        for (texts, tokens), own, options in zip(plans, blows, how, strict=True):
            tickets.append(submit(one, cluster, texts, 1, tokens, in_turn=in_turn, **options))
            said += [strike(cluster, tickets, blow) for blow in own]
        told_by.append([said, *outcomes(cluster, tickets)])
    assert told_by[0] == told_by[1]


@settings(max_examples=120, deadline=None)
@given(data=st.data(), cards=st.integers(1, 4), overrides=st.sampled_from(CARDS), queues=st.sampled_from(QUEUES))
def test_what_is_taken_back_or_fails_ends_as_under_simpy(
    rig: Any, data: st.DataObject, cards: int, overrides: Mapping[str, str], queues: Mapping[str, str] | None
) -> None:
    check_random(rig, data, cards, {**overrides, **(queues or {})})


@pytest.mark.long
@settings(max_examples=3000, deadline=None)
@given(data=st.data(), cards=st.integers(1, 4), overrides=st.sampled_from(CARDS), queues=st.sampled_from(QUEUES))
def test_what_is_taken_back_or_fails_ends_as_under_simpy_in_thousands_of_cases(
    rig: Any, data: st.DataObject, cards: int, overrides: Mapping[str, str], queues: Mapping[str, str] | None
) -> None:
    check_random(rig, data, cards, {**overrides, **(queues or {})})


@settings(max_examples=80, deadline=None)
@given(data=st.data(), shape=st.sampled_from([(4, 2), (6, 3), (8, 4)]), kind=st.sampled_from(KINDS))
def test_what_is_folded_is_taken_back_or_fails_as_if_every_card_ran_for_itself(
    rig: Any, data: st.DataObject, shape: tuple[int, int], kind: str
) -> None:
    machine = Machine(rig, *shape, kind)
    lines = data.draw(st.lists(st.sampled_from(LINES), min_size=1, max_size=6))
    parts = machine.submissions([machine.program(lines)] * shape[0], [16] * shape[0])
    blows = data.draw(st.lists(BLOWS, min_size=1, max_size=3))
    told_by = []
    for fold in (True, False):
        cluster = machine.cluster(fold=fold)
        tickets = [cluster.submit(parts), cluster.submit(parts)]
        said = [strike(cluster, tickets, blow) for blow in blows]
        told_by.append([said, *outcomes(cluster, tickets)])
    assert told_by[0] == told_by[1]


def compiled(rig: Any, cards: int) -> tuple[Any, CompiledCluster]:
    return pair(rig, cards, "ring", {})


def test_a_submission_that_is_taken_back_leaves_the_cards_free(rig: Any) -> None:
    one, cluster = compiled(rig, 2)
    ticket = submit(one, cluster, [f"{MATMUL}\n{REDUCE}"] * 2, 1, 64)
    cluster.advance_to(501_000)
    cluster.cancel(ticket)
    with pytest.raises(Cancelled, match="submission 0 was cancelled at 501000 ps"):
        cluster.run_until(ticket)
    after = submit(one, cluster, [REDUCE] * 2, 1, 64)
    cluster.run_until(after)
    assert [span.start_ps for span in after.spans] == [501_000] * 2
    assert list(ticket.spans) == []
    cluster.cancel(ticket)  # a second time changes nothing
    assert ticket.end_ps == 501_000


def test_an_activity_whose_last_picosecond_is_now_stays_done(rig: Any) -> None:
    one, cluster = compiled(rig, 1)
    first = submit(one, cluster, [MATMUL], 1, 64)
    cluster.run_until(first)
    for early_ps, ended in ((0, 1), (1, 0)):
        ticket = submit(one, cluster, [f"{MATMUL}\n{MATMUL}"], 1, 64)
        cluster.advance_to(cluster.now_ps + first.end_ps - early_ps)
        cluster.cancel(ticket)
        cluster.advance_to(cluster.now_ps + 1)
        assert len(ticket.spans) == ended


def test_a_failure_on_one_card_is_seen_by_those_who_meet_it_alone(rig: Any) -> None:
    """Of 8 cards in rows of 4 card 5 fails: its submission with it, and the next runs folded again."""
    machine = Machine(rig, 8, 4, "switch")
    cluster = machine.cluster(fold=True)
    parts = machine.submissions([machine.program(LINES[:1])] * 8, [16] * 8)
    ticket = cluster.submit(parts)
    assert list(ticket.runs) == [0]
    cluster.advance_to(1_000_000)
    assert not cluster.fail(5, "link", Gone("too early"))
    assert list(ticket.runs) == [0]
    assert cluster.fail(5, "tensor", Gone("a bit flipped"))
    assert sorted(ticket.runs) == [0, 5]
    with pytest.raises(Gone, match="a bit flipped"):
        cluster.run_until(ticket)
    cluster.advance_to(10**9)
    assert {span.card for span in ticket.spans} == set(range(8)) - {5}  # what is under way runs to its end
    assert list(cluster.submit(parts).runs) == [0]


def test_a_queue_that_no_card_has_cannot_fail(rig: Any) -> None:
    _, cluster = compiled(rig, 1)
    with pytest.raises(ConfigError, match="card 0 has no queue 'cube'; it has tensor, vector"):
        cluster.fail(0, "cube", Gone())
