"""Cluster: cards on an interconnect, in one calendar; programs in, spans out."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import simpy
from simpy.core import EmptySchedule

from ..interconnect.topology import Topology
from ..isa.errors import ConfigError
from ..isa.program import Program
from .calendar.activity import Running, now_ps
from .calendar.engine import Calendar, int_env
from .card import Card, Op
from .card_queue import CardQueue
from .choosing import Choose, default_choice
from .costs import Costs
from .deadlock import deadlock
from .exchange import Detail, Exchange, Sharing
from .failure import Cancelled, carried
from .machines import KEPT_PROGRAMS, Machines, Ran
from .span_columns import columns_of
from .spec import CardSpec
from .ticket import CardRun, Submission, Ticket
from .timeline import Timeline


class Prepared:
    """A program made ready for one kind of card: its timeline, its costs, and each card's latest operations."""

    def __init__(self, program: Program, card: Card) -> None:
        self.program = program  # kept alive, since it is found by its identity
        self.timeline = Timeline(program)
        card.check(self.timeline)
        self._costs = Costs(self.timeline, card.spec)
        self._ops: dict[int, list[Op]] = {}

    def ops(self, submission: Submission, card: Card) -> list[Op]:
        """What every site asks of a card under a submission's binding."""
        timeline, costs = self.timeline, self._costs.answers(submission.binding)
        ops = self._ops[card.rank] = card.ops(timeline.questions, costs, self._ops.get(card.rank, ()))
        return [ops[number] for number in timeline.asked.tolist()]


class Cluster(Machines):
    """Cards on an interconnect in the SimPy calendar; see `Machines` for what it is made from.

    `detail` "step" runs every lockstep step of a collective as an activity of its own, where "group" makes one of the
    whole. All times are integer picoseconds of `env`.
    """

    def __init__(
        self,
        spec: CardSpec,
        topology: Topology,
        num_cards: int | None = None,
        *,
        env: simpy.Environment | None = None,
        detail: Detail = "group",
        choose: Choose = default_choice,
        placement: Sequence[int] | None = None,
    ) -> None:
        if detail not in ("group", "step"):
            raise ConfigError(f"detail={detail!r}; choose group or step")
        self.env = int_env() if env is None else env
        self.detail = detail
        self.calendar = Calendar(self.env)
        super().__init__(self.calendar, spec, topology, num_cards, choose, placement)
        self.queues = tuple(
            {
                queue.name: CardQueue(self.calendar, card.rank, queue.name, self.orders_of(card.rank, number))
                for number, queue in enumerate(spec.queues)
            }
            for card in self.cards
        )
        self._prepared: OrderedDict[tuple[int, int], Prepared] = OrderedDict()
        self._latest: dict[int, CardRun] = {}
        self._submitted = self._in_flight = 0

    @property
    def now_ps(self) -> int:
        """The time, in picoseconds."""
        return now_ps(self.env)

    # programs

    def submit(
        self, programs: Sequence[Submission], *, weight: int = 1, priority: int = 0, in_turn: bool = False
    ) -> Ticket:
        """Hand programs to the queues of their cards, to be executed after all that was submitted before.

        Queues run on by themselves; with `in_turn` none of a card starts before the card's last program is over, for
        programs that share buffers.
        On a resource that is short, activities of the highest priority are served first, and those of one priority by
        weight; exchanges of a group by its own, where submissions give it a sharing. ProgramError for a program that is
        not legal, for queues, groups or sharings that do not fit, or for a rank twice.
        """
        self._check(programs)
        exchange = Exchange(self.calendar, self._wires, self.spec.link.eager_bytes, self.detail)
        exchange.sharing = Sharing(weight, priority)
        exchange.first_order = self._submitted * self.orders
        ticket = Ticket(self.env, self._submitted, exchange)
        for submission in programs:
            prepared = self._prepare(submission)
            ops = prepared.ops(submission, self.cards[submission.rank])
            after = self._latest.get(submission.rank) if in_turn else None
            run = CardRun(ticket, submission, prepared.timeline, ops, after)
            ticket.runs[submission.rank] = self._latest[submission.rank] = run
        self._submitted += 1
        parts = [
            (self.queues[rank][name], run)
            for rank, run in ticket.runs.items()
            for name, entries in run.timeline.queues.items()
            if entries
        ]
        for queue, run in parts:
            queue.submit(run)
        self._in_flight += 1
        ticket.expect(len(parts), self._at_rest)
        return ticket

    def _at_rest(self, ticket: Ticket) -> None:
        """A submission has left the queues: enter what it used."""
        timelines = {rank: (run.timeline, run.ops) for rank, run in ticket.runs.items()}
        ticket.columns = columns_of(ticket.spans, timelines, tuple(self.queues[0]))
        self.ledger.add(ticket.columns, ticket.exchanged)
        self._in_flight -= 1
        if not self._in_flight:
            self.ledger.settle()

    def cancel(self, ticket: Ticket, cause: Exception | None = None) -> None:
        """Take a submission back now: what it is doing is cut short, and it fails with `cause`."""
        cause = cause or Cancelled(f"submission {ticket.number} was cancelled at {self.env.now} ps")
        ticket.fail(cause)
        for rank, run in ticket.runs.items():
            for queue in self.queues[rank].values():
                if queue.run is run:
                    self._cut(queue, cause)
        ticket.exchange.abort(carried(cause))  # an eager message may be on its way for nobody

    def fail(self, rank: int, queue: str, cause: Exception) -> bool:
        """What a queue executes now, alone or with its peers, fails with `cause`, and its submission with it.

        False if it executes nothing now: it is idle, or waits for a semaphore or for a peer.
        """
        self._queue_number(rank, queue)
        standing = self.queues[rank][queue]
        cut = self._cut(standing, cause)
        if any(running.outcome == "failed" for running in cut):
            assert standing.run is not None, "what executes belongs to a run"
            standing.run.ticket.fail(cause)  # at once, so that nothing more of it is issued at this picosecond
        return bool(cut)

    def _cut(self, queue: CardQueue, cause: Exception) -> list[Running]:
        activities = queue.in_flight
        for running in activities:
            self.calendar.cancel(running, failed=carried(cause))
        return activities

    def _prepare(self, submission: Submission) -> Prepared:
        """The program's timeline and costs, found by its identity: comparing programs would cost more."""
        card = self._clocked(submission.rank)
        key = id(submission.program), card.spec.clock_hz
        prepared = self._prepared.get(key)
        if prepared is None:
            prepared = self._prepared[key] = Prepared(submission.program, card)
            if len(self._prepared) > KEPT_PROGRAMS:
                self._prepared.popitem(last=False)
        self._prepared.move_to_end(key)
        return prepared

    # time

    def start(self, programs: Sequence[Submission], *, in_turn: bool = False) -> Ticket:
        """As `Machines.start`."""
        return self.submit(programs, in_turn=in_turn)

    def finish(self, ran: Ran) -> None:
        """As `Machines.finish`."""
        assert isinstance(ran, Ticket), "programs end where they were started"
        self.run_until(ran)

    def run_until(self, ticket: Ticket) -> None:
        """Let time pass until the ticket is done; raises its cause if it failed.

        DeadlockError names every waiter when nothing can happen any more before that; the simulation may go on after a
        capacity change or a cancel.
        """
        done, step = ticket.done, self.env.step
        done.defused = True  # what fails is raised here
        while done.callbacks is not None:
            try:
                step()
            except EmptySchedule:
                raise deadlock(self.env, self.calendar, self.queues) from None
        if ticket.cause is not None:
            raise ticket.cause

    def advance_to(self, ps: int) -> None:
        """Let everything happen that happens before `ps`; the clock then stands there."""
        if type(ps) is not int or ps < self.env.now:
            raise ConfigError(f"cannot advance to {ps!r} ps: the clock stands at {self.env.now}; give a later int")
        if ps > self.env.now:
            self.env.run(until=ps)
