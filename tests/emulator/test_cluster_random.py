"""Random programs on one to four cards: they finish by the rules or are named deadlocks, twice in the same way."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_programs import PLAIN, TIGHT, TOGETHER, bodies
from semaphore_bases import semaphore_bases

from siltwin.emulator.deadlock import DeadlockError
from siltwin.emulator.span import Span
from siltwin.emulator.ticket import Ticket
from siltwin.isa.errors import ProgramError


class Outcome(NamedTuple):
    """What came of a run."""

    spans: list[Span]
    error: str
    waiters: tuple[str, ...]


def outcome(one: Any, texts: list[str], calls: int) -> tuple[Outcome, Ticket]:
    ticket = one.submit(*texts, calls=calls)
    try:
        one.cluster.run_until(ticket)
    except DeadlockError as error:
        return Outcome(list(ticket.spans), str(error), error.waiters), ticket
    except ProgramError as error:
        return Outcome(list(ticket.spans), str(error), ()), ticket
    return Outcome(list(ticket.spans), "", ()), ticket


@settings(max_examples=60, deadline=None)
@given(data=st.data(), cards=st.integers(1, 4), calls=st.integers(1, 3), detail=st.sampled_from(["group", "step"]))
def test_programs_whose_cards_agree_finish_by_the_rules(
    rig: Any, data: st.DataObject, cards: int, calls: int, detail: str
) -> None:
    texts = data.draw(bodies(cards, may_lock=False))
    result, ticket = outcome(rig(cards, detail=detail, overrides=TIGHT), texts, calls)
    assert result.error == ""
    assert len(result.spans) == calls * sum(len(text.splitlines()) for text in texts)
    for rank in range(cards):
        check_card(ticket, rank)


def check_card(ticket: Ticket, rank: int) -> None:
    """Every instruction is issued when the one before it in its queue has ended and its semaphores stand: then, and at
    no other time. The times at which semaphores rise are worked out from the spans."""
    timeline = ticket.runs[rank].timeline
    mine = {(span.call, span.position): span for span in ticket.spans if span.card == rank}
    rises: dict[int, list[int]] = {index: [] for index in range(len(timeline.semaphores))}
    for entries in timeline.queues.values():
        for entry in entries:
            end_ps = mine[entry.call, entry.position].end_ps
            rises[entry.own].append(end_ps)
            if entry.semaphore is not None:
                rises[entry.semaphore[0]] += [end_ps] * entry.semaphore[1]
    program, bases = timeline.program, semaphore_bases(timeline.program)
    last = dict.fromkeys(program.queues, 0)
    for call, base in enumerate(bases):
        for position, issue in enumerate(program.block["b"].body):
            span = mine[call, position]
            free_ps = [last[issue.queue]]
            for name, count in issue.waits:
                if need := base[name] + count:
                    free_ps.append(sorted(rises[timeline.semaphores.index(name)])[need - 1])
            assert span.issue_ps == max(free_ps)
            assert span.issue_ps <= span.start_ps <= span.end_ps
            last[issue.queue] = span.end_ps


@settings(max_examples=60, deadline=None)
@given(data=st.data(), cards=st.integers(2, 4), calls=st.integers(1, 2))
def test_programs_in_any_order_finish_or_say_what_is_wrong(
    rig: Any, data: st.DataObject, cards: int, calls: int
) -> None:
    texts = data.draw(bodies(cards, may_lock=True))
    result, ticket = outcome(rig(cards, overrides=TIGHT), texts, calls)
    total = calls * sum(len(text.splitlines()) for text in texts)
    if not result.error:
        assert len(result.spans) == total
    else:
        assert len(result.spans) < total or "never receives" in result.error
    if result.error.startswith("deadlock"):
        assert result.waiters and all(" waits for " in waiter for waiter in result.waiters)
        assert not ticket.done.triggered
    again, _ = outcome(rig(cards, overrides=TIGHT), texts, calls)
    assert again == result


@settings(max_examples=60, deadline=None)
@given(data=st.data(), cards=st.integers(1, 4))
def test_the_order_of_submission_within_a_ticket_changes_nothing(rig: Any, data: st.DataObject, cards: int) -> None:
    texts = data.draw(bodies(cards, may_lock=False))
    ends = []
    for order in (range(cards), reversed(range(cards))):
        one = rig(cards, overrides=TIGHT)
        ticket = one.cluster.submit([one.submission(rank, one.program(texts[rank])) for rank in order])
        one.cluster.run_until(ticket)
        ends.append(sorted(ticket.spans))
    assert ends[0] == ends[1]


@settings(max_examples=40, deadline=None)
@given(
    chain=st.lists(st.sampled_from([*PLAIN[:6], *TOGETHER[:1], *TOGETHER[2:]]), min_size=1, max_size=8),
    more=st.sampled_from(["hbm.bandwidth_bytes_per_s", "host.bandwidth_bytes_per_s", "clock_hz"]),
    factors=st.tuples(st.integers(1, 40), st.integers(1, 40)),
)
def test_a_chain_alone_is_never_slower_on_a_better_card(
    rig: Any, chain: list[str], more: str, factors: tuple[int, int]
) -> None:
    base = {"hbm.bandwidth_bytes_per_s": 10**11, "host.bandwidth_bytes_per_s": 10**9, "clock_hz": 10**8}[more]
    ends = [end_of_chain(rig(2, overrides={more: str(base * factor)}), chain) for factor in sorted(factors)]
    assert ends[1] <= ends[0]


@settings(max_examples=30, deadline=None)
@given(
    chain=st.lists(st.sampled_from([*PLAIN[:4], *TOGETHER]), min_size=1, max_size=6),
    percents=st.tuples(st.integers(1, 100), st.integers(1, 100)),
)
def test_a_chain_alone_is_never_slower_on_better_links(rig: Any, chain: list[str], percents: tuple[int, int]) -> None:
    ends = []
    for percent in sorted(percents):
        four = rig(4)
        for link in four.cluster.topology.links:
            four.cluster.set_link_capacity(link.source, link.target, 10**8 * percent)
        ends.append(end_of_chain(four, chain))
    assert ends[1] <= ends[0]


def end_of_chain(one: Any, chain: list[str]) -> int:
    """When a program ends in which every instruction waits for the one before it."""
    done: dict[str, int] = {}
    lines = []
    for text in chain:
        queue = text.split(" ")[0]
        waits = ", ".join(f"{name}+{count}" for name, count in done.items())
        lines.append(text + (f" | wait {waits}" if waits else ""))
        done[queue] = done.get(queue, 0) + 1
    return max(span.end_ps for span in one.run("\n".join(lines)))


@settings(max_examples=60, deadline=None)
@given(
    cards=st.integers(1, 4),
    kind=st.sampled_from(["ring", "full_mesh"]),
    text=st.sampled_from([TOGETHER[0].replace("%c", "%t"), TOGETHER[3].replace("%e", "%t"), TOGETHER[2]]),
    tokens=st.integers(0, 70),
    hbm_bytes_per_s=st.integers(10**9, 10**11),
    lanes=st.integers(1, 40),
)
def test_a_group_is_within_a_picosecond_a_step_of_its_steps(
    rig: Any, cards: int, kind: str, text: str, tokens: int, hbm_bytes_per_s: int, lanes: int
) -> None:
    # Whatever holds a step, the wire, HBM or the lanes that add, and however unevenly the buffer is cut.
    changes = {"hbm.bandwidth_bytes_per_s": str(hbm_bytes_per_s), "vector.lanes.2": str(lanes), "cores.count": "1"}
    whole, steps = (
        rig(cards, kind, detail=detail, overrides=changes).run(text, tokens=tokens) for detail in ("group", "step")
    )
    for one, other in zip(whole, steps, strict=True):
        assert abs(one.end_ps - other.end_ps) <= 2 * (cards - 1)


def test_the_oracle_of_these_tests_sees_a_wrong_time(rig: Any) -> None:
    one = rig()
    ticket = one.submit(f"{PLAIN[0]}\n{PLAIN[1]} | wait tensor+1")
    one.cluster.run_until(ticket)
    check_card(ticket, 0)
    ticket.spans[1] = ticket.spans[1]._replace(issue_ps=ticket.spans[1].issue_ps - 1)
    with pytest.raises(AssertionError):
        check_card(ticket, 0)
