"""Who waits for what in the compiled calendar, in the words of `emulator.deadlock`."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Protocol

from ..calendar.flows import DUE, HEAD, HOLDER, NEXT
from ..calendar.resources import Resource
from ..deadlock import stands_still, who_is_missing
from ..timeline import Timeline
from . import machine as c
from .calendar import CompiledCalendar
from .flatten import FlatProgram
from .machine import NONE
from .meetings import Encounter


class InFlight(Protocol):
    """A submission that waits."""

    row: int

    def at(self, meeting: int) -> Encounter:
        """The exchange of a meeting."""

    @property
    def runs(self) -> Mapping[int, UnderWay]:
        """Its programs by rank."""


class UnderWay(Protocol):
    """A program under way on a card."""

    row: int
    timeline: Timeline
    program: FlatProgram


def waiters(calendar: CompiledCalendar, in_flight: Sequence[InFlight], names: Sequence[str]) -> Iterator[str]:
    """Every waiting queue of every card, in order."""
    runs = {run.row: (ticket, run) for ticket in in_flight for run in ticket.runs.values()}
    memory = calendar.memory
    for queue, row in enumerate(memory.rows(c.QUEUES)):
        if row[c.RUN] == NONE:
            continue
        ticket, run = runs[int(row[c.RUN])]
        rank, number = divmod(queue, len(names))
        place = int(row[c.PC] - run.program.parts[number, 0])
        entry = run.timeline.queues[names[number]][place]
        where = f"card {rank}, queue {names[number]}, {run.timeline.describe(entry)}"
        if row[c.BLOCKED_ON] != NONE:
            first = int(memory.rows(c.RUNS)[row[c.RUN], c.R_SEMAPHORES])
            have, name = memory.rows(c.SEMAPHORES)[row[c.BLOCKED_ON], c.VALUE], int(row[c.BLOCKED_ON]) - first
            yield (
                f"{where} waits for semaphore {run.timeline.semaphores[name]}: it stands at {have} and must reach "
                f"{row[c.NEED]}"
            )
        elif row[c.STEP] == c.MEETING:
            yield f"{where} waits for {_lacks(calendar, ticket, run, int(row[c.PC]), ticket.runs)}"
        elif (held := _held(calendar, queue)) is not None:
            yield f"{where} {stands_still(held)}"


def _lacks(calendar: CompiledCalendar, ticket: InFlight, run: UnderWay, entry: int, submitted: Container[int]) -> str:
    """What keeps a meeting from starting or from ending."""
    memory = calendar.memory
    link = memory.rows(c.RUNS)[run.row, c.R_LINKS] + memory.rows(c.ENTRIES)[entry, c.LINK]
    number = int(memory.rows(c.LINKS)[link, 0])
    encounter, row = ticket.at(number), memory.rows(c.MEETINGS)[number]
    if row[c.STARTED] != NONE:
        held = _held(calendar, int(row[c.SLOT]))
        return f"{encounter.name}, which {stands_still(held) if held else 'is under way'}"
    come, queue, queues = set(), int(row[c.FIRST_MEMBER]), int(memory.mem[c.QUEUES_A_CARD])
    while queue != NONE:
        come.add(queue // queues)
        queue = int(memory.rows(c.QUEUES)[queue, c.NEXT_BLOCKED])
    here = Here(encounter.ranks, encounter.turn, tuple(rank for rank in encounter.ranks if rank not in come))
    return f"{encounter.name}: {who_is_missing(here, submitted)}"


class Here:
    """An exchange as it stands now."""

    def __init__(self, ranks: tuple[int, ...], turn: int, missing: tuple[int, ...]) -> None:
        self.ranks, self.turn, self.missing = ranks, turn, missing


def _held(calendar: CompiledCalendar, slot: int) -> Resource | None:
    """The resource for which the activity of a slot stands still, if it does."""
    machine = calendar.machine
    phase, row = calendar.memory.rows(c.ACTIVITY)[slot, c.PHASE], machine.flows[0][slot]
    stands = phase == c.AWAITS_UNIT or (phase == c.IS_JOINED and row[DUE] == NONE)
    if not stands or row[HOLDER] == NONE:
        return None
    resource: Resource = calendar.resources[row[HOLDER]]
    resource.members, node = 0, machine.flows[3][resource.index, HEAD]
    while node != NONE:
        resource.members, node = resource.members + 1, machine.flows[2][node, NEXT]
    return resource
