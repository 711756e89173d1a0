"""Tickets of the compiled calendar: programs in flight together, and what is known of them once they have ended."""

from __future__ import annotations

from collections.abc import Sequence

from ...isa.errors import ProgramError
from ..exchange import Exchanged, Sharing
from ..span import Span
from ..span_columns import CardColumns
from ..ticket import Submission
from ..timeline import Timeline
from .flatten import FlatProgram
from .lane_ops import Batch
from .machine import NONE
from .meetings import Encounter, Matching, Place
from .ops import Ops


class CompiledRun:
    """One card's part of a submission: its rows in the tables."""

    def __init__(self, submission: Submission, timeline: Timeline, ops: Ops, program: FlatProgram) -> None:
        self.submission, self.timeline, self.ops, self.program = submission, timeline, ops, program
        self.after: CompiledRun | None = None
        self.row = self.out = self.semaphores = self.first_link = NONE
        self.links = 0


class CompiledTicket:
    """Programs in flight together, as `ticket.Ticket`; `spans` and `exchanged` are there once it is done.

    `asked` are the programs of all cards, `runs` those that are executed, for all that are like them. `bases` has the
    first meeting of every place, by its identity, and `meetings` the places that stand for their class.
    """

    def __init__(self, number: int, start_ps: int, sharing: Sharing, matching: Matching) -> None:
        self.number, self.start_ps, self.end_ps = number, start_ps, NONE
        self.sharing, self.matching = sharing, matching
        self.row = NONE
        self.asked: dict[int, CompiledRun] = {}
        self.runs: dict[int, CompiledRun] = {}
        self.bases: dict[int, int] = {}
        self.meetings: list[tuple[Place, int]] = []
        self.batches: list[Batch] = []
        self.shares: list[int] = []  # of its exchanges
        self.ops_at: dict[int, int] = {}  # by the identity of the operations of a run
        self.spans: Sequence[Span] = ()
        self.columns: tuple[CardColumns, ...] = ()
        self.exchanged: Sequence[Exchanged] = ()
        self.cause: Exception | None = None

    @property
    def is_over(self) -> bool:
        """Whether it has ended, well or not."""
        return self.end_ps != NONE or self.cause is not None

    def end(self, now_ps: int) -> None:
        """All queues have come to the end of its programs; somebody may have sent what nobody receives."""
        self.end_ps = now_ps
        for place in self.matching.places:
            if place.is_transfer and (orphan := next(place.orphans, None)) is not None:
                name = place.encounter(orphan[0]).name
                self.cause = ProgramError(f"{name} was sent, and rank {orphan[1]} never receives it")
                return

    def fail(self, cause: Exception, now_ps: int) -> None:
        """It ends with `cause`, if it has not failed before; what is being executed may run to its end."""
        if self.cause is None:
            self.cause, self.end_ps = cause, now_ps

    def at(self, meeting: int) -> Encounter:
        """The exchange of a meeting."""
        place, first = max((one for one in self.meetings if one[1] <= meeting), key=lambda one: one[1])
        return place.encounter(meeting - first)
