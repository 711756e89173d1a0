"""Ticket: programs submitted together, one a card, from submission to their last span."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import simpy

from ..isa.errors import ProgramError
from ..isa.program import Binding, Program
from .calendar.activity import NOT_YET, now_ps
from .card import Op
from .exchange import Exchange, Exchanged, Sharing
from .failure import carried
from .semaphores import Semaphores
from .span import Span
from .span_columns import CardColumns
from .timeline import Timeline


@dataclass(frozen=True)
class Submission:
    """One card's part: its program, what that binds, and the ranks of each group it names, in group order.

    `sharing` gives the exchanges of a group a weight or a priority of their own, in place of the submission's; all
    members of a group must give it the same.
    """

    rank: int
    program: Program
    binding: Binding
    groups: Mapping[str, tuple[int, ...]]
    sharing: Mapping[str, Sharing] = field(default_factory=dict)


class CardRun:
    """A submission under way on its card.

    `over` succeeds when all queues have come to its end; `after` is a run of the card that must be over before.
    """

    __slots__ = ("ticket", "rank", "timeline", "ops", "groups", "sharing", "semaphores", "over", "after", "_queues")

    def __init__(
        self,
        ticket: Ticket,
        submission: Submission,
        timeline: Timeline,
        ops: Sequence[Op],
        after: CardRun | None = None,
    ) -> None:
        self.ticket, self.rank, self.groups = ticket, submission.rank, submission.groups
        self.sharing = submission.sharing
        self.timeline, self.ops = timeline, ops
        self.semaphores = Semaphores(ticket.env, len(timeline.semaphores))
        self.over, self.after = simpy.Event(ticket.env), after
        self._queues = sum(bool(entries) for entries in timeline.queues.values())
        if not self._queues:
            self.over.succeed()

    def queue_ended(self) -> None:
        """A queue has come to the end of its part."""
        self._queues -= 1
        if not self._queues:
            self.over.succeed()
        self.ticket.queue_ended()


class Ticket:
    """Programs in flight together.

    `done` succeeds with this ticket when every queue of every card has come to the end of its program, and fails with
    `cause` when an instruction did; a failure that nobody waits for stops the simulation, as always in SimPy. `spans`
    holds every instruction that has ended, in order of its end; `columns` the same, once all queues are at rest. Times
    are picoseconds, -1 until they come.
    """

    def __init__(self, env: simpy.Environment, number: int, exchange: Exchange) -> None:
        self.env, self.number, self.exchange = env, number, exchange
        self.done = simpy.Event(env)
        self.spans: list[Span] = []
        self.columns: tuple[CardColumns, ...] = ()
        self.runs: dict[int, CardRun] = {}
        self.start_ps, self.end_ps = now_ps(env), NOT_YET
        self.cause: Exception | None = None
        self._queues_left = 0
        self._at_rest: Callable[[Ticket], None] = lambda _: None

    @property
    def exchanged(self) -> list[Exchanged]:
        """The collectives and transfers that have ended, in order of their end."""
        return self.exchange.exchanged

    def expect(self, queues: int, at_rest: Callable[[Ticket], None]) -> None:
        """It is done when so many queues have reported their end; `at_rest` is called then, also if it has failed."""
        self._queues_left, self._at_rest = queues, at_rest
        if not queues:
            self._finish()
            at_rest(self)

    def queue_ended(self) -> None:
        """A queue has executed all it had to."""
        self._queues_left -= 1
        if not self._queues_left:
            if self.cause is None:
                self._finish()
            self._at_rest(self)

    def _finish(self) -> None:
        orphan = next(self.exchange.half_met, None)
        if orphan is not None:
            self.fail(ProgramError(f"{orphan.name} was sent, and rank {orphan.missing[0]} never receives it"))
            return
        self.end_ps = now_ps(self.env)
        self.done.succeed(self)

    def fail(self, cause: Exception) -> None:
        """End it with `cause`: nothing more is issued, and all who wait for a semaphore or a peer fail with it.

        What is being executed runs to its end.
        """
        if self.done.triggered:
            return
        self.cause, self.end_ps = cause, now_ps(self.env)
        failure = carried(cause)
        for run in self.runs.values():
            run.semaphores.poison(failure)
        self.exchange.poison(failure)
        self.done.fail(failure)
