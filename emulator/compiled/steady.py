"""Steady state: a step that is the same as one before, and runs alone as that did, is taken over and not run again.

Nothing in the calendar's rules looks at the clock but in differences; so programs, costs and capacities that are equal
take the same time at any time, to the picosecond. What is kept is what a step that ran left in the tables.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

import numpy as np

from ..calendar.solver import Ints
from . import machine as c
from .calendar import CompiledCalendar
from .flatten import FlatProgram
from .folding import Partition
from .machine import NONE
from .tickets import CompiledTicket

MOST_ROWS = 1 << 18  # spans of kept steps together; a step of more is run again
SPAN_TIMES = [c.S_ISSUED, c.S_START, c.S_END]
MEETING_TIMES = [c.STARTED, c.ENDED]
MEETING_COUNTS = [c.ARRIVED, c.LATE]


class Kept(NamedTuple):
    """A step that ran: times are from its start. `programs` are alive as long as its key knows them by identity."""

    programs: tuple[FlatProgram, ...]
    spans: dict[int, Ints]  # by rank
    meetings: Ints
    counts: Ints
    lasted_ps: int
    activities: int


class Steady:
    """Keeps steps that ran alone, and takes over those that come again."""

    def __init__(self, calendar: CompiledCalendar) -> None:
        self._calendar = calendar
        self._known: dict[Hashable, Kept] = {}
        self._rows = 0

    def key(self, ticket: CompiledTicket, classes: Partition) -> Hashable | None:
        """What is equal of steps that take the same course; None for one that is too big to be kept."""
        if _rows_of(ticket) > MOST_ROWS:
            return None
        parts, resources = ticket.matching.parts, self._calendar.resources
        cards = tuple(
            (rank, id(run.program), run.ops.course, parts[rank][1], *sorted(run.submission.groups.items()))
            for rank, run in ticket.asked.items()
        )
        places = tuple(
            (place.ranks, place.is_transfer, place.sharing, place.kinds.tobytes(), tuple(place.offers))
            for place in ticket.matching.places
        )
        stand = classes.standing.tobytes(), classes.resource.tobytes()
        return cards, places, stand, resources.rooms().tobytes(), ticket.sharing

    def keep(self, key: Hashable, ticket: CompiledTicket, activities: int) -> None:
        """A step has come to its end, alone, by so many activities; it still stands in the tables."""
        memory, start_ps, meetings = self._calendar.memory, ticket.start_ps, self._meetings(ticket)
        if (meetings[:, c.ENDED] == NONE).any():
            return  # somebody never came, which is an error
        if self._rows + _rows_of(ticket) > MOST_ROWS:
            self._known.clear()
            self._rows = 0
        spans = {rank: memory.rows(c.SPANS, run.out, run.program.count).copy() for rank, run in ticket.runs.items()}
        for rows in spans.values():
            rows[:, SPAN_TIMES] -= start_ps
        times, counts = meetings[:, MEETING_TIMES] - start_ps, meetings[:, MEETING_COUNTS]
        lasted_ps = self._calendar.now_ps - start_ps
        programs = tuple({id(run.program): run.program for run in ticket.asked.values()}.values())
        self._known[key] = Kept(programs, spans, times, counts, lasted_ps, activities)
        self._rows += _rows_of(ticket)

    def take(self, key: Hashable, ticket: CompiledTicket) -> bool:
        """Write into the tables what a step that stands at its start will have done; False if it is not known."""
        kept = self._known.get(key)
        if kept is None:
            return False
        memory, start_ps = self._calendar.memory, ticket.start_ps
        for rank, run in ticket.runs.items():
            rows = memory.rows(c.SPANS, run.out, run.program.count)
            rows[:] = kept.spans[rank]
            rows[:, SPAN_TIMES] += start_ps
            memory.rows(c.RUNS)[run.row, c.R_LEFT] = 0
        meetings = self._meetings(ticket)
        meetings[:, MEETING_TIMES], meetings[:, MEETING_COUNTS] = kept.meetings + start_ps, kept.counts
        memory.rows(c.QUEUES)[:, [c.INBOX, c.INBOX_LAST]] = NONE
        memory.rows(c.QUEUES)[:, c.IS_READY] = 0
        memory.rows(c.TICKETS)[ticket.row, [c.LEFT, c.DONE]] = 0, start_ps + kept.lasted_ps
        memory.mem[c.READY] = 0
        memory.mem[c.NOW] += kept.lasted_ps
        memory.mem[c.ACTIVITIES] += kept.activities
        return True

    def _meetings(self, ticket: CompiledTicket) -> Ints:
        """The rows of a submission's exchanges, which stand together."""
        count = sum(place.count for place, _ in ticket.meetings)
        first = ticket.meetings[0][1] if ticket.meetings else 0
        return self._calendar.memory.rows(c.MEETINGS, first, count)


def _rows_of(ticket: CompiledTicket) -> int:
    """How many spans a submission's cards have that run."""
    return int(np.sum([run.program.count for run in ticket.runs.values()]))
