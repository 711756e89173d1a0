"""Deadlock: when nothing can happen any more and instructions wait, who waits for what."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Protocol

import simpy

from ..isa.errors import ProgramError
from .calendar.activity import now_ps
from .calendar.engine import Calendar
from .calendar.resources import Resource
from .card_queue import CardQueue
from .exchange import TRANSFER, Meeting
from .ticket import CardRun

LISTED = 40


class Lacking(Protocol):
    """An exchange that some rank has not come to."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """All members."""

    @property
    def turn(self) -> int:
        """Its number among the group's collectives, or TRANSFER."""

    @property
    def missing(self) -> tuple[int, ...]:
        """Who has not come."""


class DeadlockError(ProgramError):
    """The calendar ran dry while instructions wait. `waiters` says of each what it is and what it waits for."""

    def __init__(self, message: str, waiters: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.waiters = waiters


def deadlock(env: simpy.Environment, calendar: Calendar, queues: Sequence[Mapping[str, CardQueue]]) -> DeadlockError:
    """The error that names every waiting queue of every card."""
    return deadlock_of(now_ps(env), tuple(_waiters(calendar, queues)))


def deadlock_of(at_ps: int, waiters: tuple[str, ...]) -> DeadlockError:
    """The error that lists who waits for what."""
    shown = "".join(f"\n  {waiter}" for waiter in waiters[:LISTED])
    more = f"\n  and {len(waiters) - LISTED} more" if len(waiters) > LISTED else ""
    return DeadlockError(
        f"deadlock at {at_ps} ps: nothing can happen any more, and {len(waiters)} instructions wait:{shown}{more}",
        waiters,
    )


def _waiters(calendar: Calendar, queues: Sequence[Mapping[str, CardQueue]]) -> Iterator[str]:
    stalled = {id(running): calendar.resources[resource] for running, resource in calendar.stalled()}
    for card in queues:
        for queue in card.values():
            if queue.run is None or queue.entry is None:
                continue
            where = f"card {queue.rank}, queue {queue.name}, {queue.run.timeline.describe(queue.entry)}"
            if isinstance(queue.blocked, Meeting):
                yield f"{where} waits for {_lacks(queue.blocked, queue.run, stalled)}"
            elif queue.blocked is not None:
                index, need = queue.blocked
                have, name = queue.run.semaphores.values[index], queue.run.timeline.semaphores[index]
                yield f"{where} waits for semaphore {name}: it stands at {have} and must reach {need}"
            elif id(queue.running) in stalled:
                yield f"{where} {stands_still(stalled[id(queue.running)])}"


def _lacks(meeting: Meeting, run: CardRun, stalled: Mapping[int, Resource]) -> str:
    """What keeps a meeting from starting or from ending."""
    if meeting.start_ps >= 0:
        held = next((stalled[id(running)] for running in meeting.activities if id(running) in stalled), None)
        return f"{meeting.name}, which {stands_still(held) if held else 'is under way'}"
    return f"{meeting.name}: {who_is_missing(meeting, run.ticket.runs)}"


def who_is_missing(meeting: Lacking, submitted: Container[int]) -> str:
    """Which ranks have not come to an exchange."""
    absent = [f"{n}" if n in submitted else f"{n} (not in this submission)" for n in meeting.missing]
    ranks = f"rank{'s' if len(absent) > 1 else ''} {', '.join(absent)}"
    if meeting.turn != TRANSFER:
        return f"{ranks} {'have' if len(absent) > 1 else 'has'} not come"
    missing = "SEND" if meeting.missing == meeting.ranks[:1] else "RECV"
    return f"no {missing} comes from {ranks}"


def stands_still(resource: Resource) -> str:
    """Why an activity does not move."""
    if resource.capacity_per_s == 0:
        return f"stands still: {resource.name} has capacity 0"
    if resource.members == 1:
        return f"stands still: {resource.name} gives {resource.capacity_per_s} a second, too little to end in 53 days"
    return f"stands still: {resource.name} serves others"
