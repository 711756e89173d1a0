"""Programs made ready for one kind of card: their timeline, costs and rows, kept for the next submission."""

from __future__ import annotations

from collections.abc import Sequence

from ...isa.program import Program
from ..card import Card, Op
from ..costs import Cost, Costs
from ..machines import KEPT_PROGRAMS
from ..ticket import Submission
from ..timeline import Timeline
from .calendar import CompiledCalendar
from .flatten import FlatProgram
from .kept_lanes import KeptLanes
from .lane_ops import Batch
from .ops import Ops


class FlatPrepared:
    """A program made ready for one kind of card: its timeline, its costs, its rows."""

    def __init__(self, program: Program, card: Card, calendar: CompiledCalendar) -> None:
        self.program = program  # kept alive, since it is found by its identity
        self.timeline = Timeline(program)
        card.check(self.timeline)
        self._card, self._calendar = card, calendar
        self._costs = Costs(self.timeline, card.spec)
        self._by_list: dict[int, tuple[list[Cost], Ops]] = {}
        self._ops: dict[tuple[int, ...], Ops] = {}
        self._latest: Sequence[Op] = ()
        self.lanes = KeptLanes(self.timeline, self._costs, card, calendar.shares)
        self._flat: FlatProgram | None = None

    def ops(self, submission: Submission) -> Ops:
        """What every site asks of the first card under a submission's binding; others ask it of their own resources.

        Equal costs give the very same object.
        """
        costs = self._costs.answers(submission.binding)
        _, known = self._by_list.get(id(costs), (costs, None))
        if known is None:
            if len(self._by_list) >= KEPT_PROGRAMS:
                self._by_list.clear()
                self._ops.clear()
            key = tuple(map(id, costs))
            known = self._ops.get(key)
            if known is None:
                self._latest = self._card.ops(self.timeline.questions, costs, self._latest)
                known = self._ops[key] = Ops(self._latest, self.timeline.asked, self._calendar.shares)
            self._by_list[id(costs)] = costs, known
        return known

    def ops_of(self, submissions: Sequence[Submission]) -> tuple[list[Ops], Batch | None]:
        """`ops` of many ranks; those whose loads differ are costed together, perhaps in a batch to be released."""
        found = self.lanes.ops([submission.binding for submission in submissions])
        if found is None:
            return [self.ops(submission) for submission in submissions], None
        batch, ops, is_kept = found
        return ops, None if is_kept else batch

    def flat(self, ops: Ops, queues: Sequence[str]) -> FlatProgram:
        """The program's entries in the calendar's tables."""
        if self._flat is None:
            self._flat = FlatProgram(self.timeline, ops.actions, queues, self._calendar.memory)
        return self._flat
