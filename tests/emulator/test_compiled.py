"""The compiled calendar against SimPy's: the same spans, exchanges, usage and deadlocks on random programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_programs import TIGHT, bodies

from siltwin.emulator.cluster import Cluster
from siltwin.emulator.compiled.cluster import CompiledCluster
from siltwin.emulator.deadlock import DeadlockError
from siltwin.emulator.span_columns import CardColumns
from siltwin.isa.errors import ProgramError

# Every step of a chain of cards that are hindered by scarce HBM, small and large messages, and a slow host link.
CARDS = (TIGHT, {}, TIGHT | {"link.eager_bytes": "1MiB"}, {"hbm.bandwidth_bytes_per_s": "20GB/s"})
# All queues are streams that share the units, or they take turns on one vector unit.
QUEUES = (
    None,
    {"queues.0.units": "tensor,vector", "queues.1.units": "vector,control"},
)


def told(cluster: Any, ticket: Any) -> dict[str, Any]:
    """All that a cluster says of a submission."""
    try:
        cluster.run_until(ticket)
        error, waiters = "", ()
    except DeadlockError as deadlock:
        error, waiters = "deadlock", deadlock.waiters
    except ProgramError as wrong:
        error, waiters = str(wrong), ()
    found: dict[str, Any] = {"error": error, "waiters": waiters}
    if not error:
        found |= {
            "spans": sorted(ticket.spans),
            "exchanged": sorted(map(str, ticket.exchanged)),
            "times": (ticket.start_ps, ticket.end_ps),
            "columns": {rank: columns(card) for card in ticket.columns for rank in card.ranks},
        }
    return found


def columns(card: CardColumns) -> list[Any]:
    """Every column of what a card did, save who was late, whom spans name."""
    named = ("queues", "calls", "positions", "sites", "issued_ps", "start_ps", "end_ps", "bounds")
    return [getattr(card, name).tolist() for name in named]


def used(cluster: Any) -> Any:
    """What all submissions that have ended used."""
    return [cluster.usage(card.rank) for card in cluster.cards], cluster.ledger.links()


def pair(rig: Any, cards: int, kind: str, overrides: Mapping[str, str]) -> tuple[Any, CompiledCluster]:
    one = rig(cards, kind, overrides=overrides)
    return one, CompiledCluster(one.spec, one.cluster.topology)


def submit(one: Any, cluster: Cluster | CompiledCluster, texts: list[str], calls: int, tokens: int, **how: int) -> Any:
    programs = {body: one.program(body, calls) for body in dict.fromkeys(texts)}
    return cluster.submit([one.submission(r, programs[body], tokens) for r, body in enumerate(texts)], **how)


def check_alone(
    rig: Any,
    data: st.DataObject,
    cards: int,
    calls: int,
    kind: str,
    overrides: Mapping[str, str],
    queues: Mapping[str, str] | None,
    may_lock: bool,
) -> None:
    one, compiled = pair(rig, cards, kind, {**overrides, **(queues or {})})
    texts = data.draw(bodies(cards, may_lock=may_lock))
    tokens = data.draw(st.integers(1, 64))
    try:
        ticket = submit(one, compiled, texts, calls, tokens)
    except ProgramError as wrong:  # members that disagree are found before anything runs
        reference = told(one.cluster, submit(one, one.cluster, texts, calls, tokens))
        assert reference["error"] in ("deadlock", str(wrong)) or "differ" in reference["error"]
        return
    found, wanted = told(compiled, ticket), told(one.cluster, submit(one, one.cluster, texts, calls, tokens))
    assert found == wanted
    assert found["error"] or used(compiled) == used(one.cluster)


random_programs = given(
    data=st.data(),
    cards=st.integers(1, 4),
    calls=st.integers(1, 3),
    kind=st.sampled_from(["ring", "full_mesh", "switch"]),
    overrides=st.sampled_from(CARDS),
    queues=st.sampled_from(QUEUES),
    may_lock=st.booleans(),
)


@settings(max_examples=150, deadline=None)
@random_programs
def test_random_programs_run_as_under_simpy(rig: Any, **drawn: Any) -> None:
    check_alone(rig, **drawn)


@pytest.mark.long
@settings(max_examples=3000, deadline=None)
@random_programs
def test_thousands_of_random_programs_run_as_under_simpy(rig: Any, **drawn: Any) -> None:
    check_alone(rig, **drawn)


def check_together(
    rig: Any, data: st.DataObject, cards: int, overrides: Mapping[str, str], queues: Mapping[str, str] | None
) -> None:
    one, compiled = pair(rig, cards, "ring", {**overrides, **(queues or {})})
    plans = [
        (data.draw(bodies(cards, may_lock=False)), data.draw(st.integers(1, 2)), data.draw(st.integers(1, 64)))
        for _ in range(data.draw(st.integers(2, 3)))
    ]
    how = [{"weight": data.draw(st.integers(1, 3)), "priority": data.draw(st.integers(0, 1))} for _ in plans]
    stops = [data.draw(st.integers(0, 3_000_000)) for _ in plans]
    changes = [data.draw(st.sampled_from(["", "hbm", "tensor", "link"])) for _ in plans]
    told_by = []
    for cluster in (one.cluster, compiled):
        tickets = []
        for (texts, calls, tokens), options, stop, change in zip(plans, how, stops, changes, strict=True):
            tickets.append(submit(one, cluster, texts, calls, tokens, **options))
            cluster.advance_to(now(cluster) + stop)
            if change in ("hbm", "tensor"):
                cluster.set_capacity(0, change, 10**9 + stop)
            elif change and cards > 1:
                cluster.set_link_capacity(0, 1, 10**8 + stop)
        told_by.append([*(told(cluster, ticket) for ticket in tickets), used(cluster)])
    assert told_by[0] == told_by[1]


random_submissions = given(
    data=st.data(), cards=st.integers(1, 4), overrides=st.sampled_from(CARDS), queues=st.sampled_from(QUEUES)
)


@settings(max_examples=100, deadline=None)
@random_submissions
def test_submissions_in_flight_together_share_and_queue_up_as_under_simpy(rig: Any, **drawn: Any) -> None:
    check_together(rig, **drawn)


@pytest.mark.long
@settings(max_examples=3000, deadline=None)
@random_submissions
def test_thousands_of_submissions_in_flight_together_share_as_under_simpy(rig: Any, **drawn: Any) -> None:
    check_together(rig, **drawn)


def now(cluster: Any) -> int:
    return int(cluster.env.now if isinstance(cluster, Cluster) else cluster.now_ps)


@settings(max_examples=40, deadline=None)
@given(data=st.data(), cards=st.integers(1, 3))
def test_programs_in_turn_wait_for_one_another_as_under_simpy(rig: Any, data: st.DataObject, cards: int) -> None:
    one, compiled = pair(rig, cards, "ring", TIGHT)
    plans = [data.draw(bodies(cards, may_lock=False)) for _ in range(3)]
    told_by = []
    for cluster in (one.cluster, compiled):
        tickets = []
        for texts in plans:
            programs = {body: one.program(body) for body in dict.fromkeys(texts)}
            parts = [one.submission(r, programs[body]) for r, body in enumerate(texts)]
            tickets.append(cluster.submit(parts, in_turn=True))
        told_by.append([*(told(cluster, ticket) for ticket in tickets), used(cluster)])
    assert told_by[0] == told_by[1]
