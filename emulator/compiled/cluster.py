"""CompiledCluster: cards on an interconnect in the compiled calendar; the same programs in, the same spans out."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np

from ...interconnect.topology import Topology
from ...isa.errors import ConfigError
from ..choosing import Choose, default_choice
from ..deadlock import DeadlockError, deadlock_of
from ..exchange import Sharing
from ..failure import Cancelled
from ..machines import Machines, Ran
from ..spec import CardSpec
from ..ticket import Submission
from . import machine as c
from .calendar import CompiledCalendar
from .cutting import cut_ticket, ends_now, executes, fail_queue
from .entering import Entering
from .exchanges import ExchangeTable, Held
from .folder import Folder
from .folding import Partition
from .machine import NONE
from .meetings import Matching
from .ops import Ops
from .prepared import FlatPrepared
from .spans import CardSpans, SpanTable
from .steady import Steady
from .tickets import CompiledRun, CompiledTicket
from .waiters import waiters


class Event(NamedTuple):
    """What a cluster was told while programs were in flight: a submission, to let time pass, a capacity, or a failure.

    `failed` is the queue whose activity failed, counted over all cards.
    """

    submitted: CompiledTicket | None = None
    awaited: CompiledTicket | None = None
    until_ps: int = NONE
    resource: int = NONE
    capacities_per_s: tuple[int, int] = (0, 0)  # before and after
    cancelled: CompiledTicket | None = None
    failed: int = NONE


class CompiledCluster(Machines):
    """Cards on an interconnect in the compiled calendar; see `Machines` for what it is made from.

    With `fold` cards in equal conditions are simulated once (`folding`). Where what is submitted or changed while
    programs are in flight tells cards apart that were one so far, all since the cluster was last idle runs again.
    With `steady` a submission that runs alone, as an equal one did before, takes over what that did (`steady`).
    """

    def __init__(
        self,
        spec: CardSpec,
        topology: Topology,
        num_cards: int | None = None,
        *,
        choose: Choose = default_choice,
        placement: Sequence[int] | None = None,
        fold: bool = True,
        steady: bool = True,
    ) -> None:
        self.calendar = CompiledCalendar()
        super().__init__(self.calendar, spec, topology, num_cards, choose, placement)
        self.queue_names = tuple(queue.name for queue in spec.queues)
        self.calendar.begin(len(self.cards), len(self.queue_names))
        self._prepared: dict[tuple[int, int], FlatPrepared] = {}  # by program and clock
        self.in_flight: list[CompiledTicket] = []
        self._latest: dict[int, CompiledRun] = {}  # of runs in flight
        self._submitted = 0
        self._folder = Folder(self.cards, self.calendar, self._wires, fold)
        self._entering = Entering(self, self.calendar, self._folder, self.queue_names)
        self._steady = Steady(self.calendar) if steady else None
        self._classes: Partition | None = None
        self._history: list[Event] = []  # since the cluster was idle
        self._idle_ps = 0

    @property
    def now_ps(self) -> int:
        """The time, in picoseconds."""
        return self.calendar.now_ps

    # programs

    def submit(
        self, programs: Sequence[Submission], *, weight: int = 1, priority: int = 0, in_turn: bool = False
    ) -> CompiledTicket:
        """As `Cluster.submit`."""
        self._check(programs)
        if not self.in_flight:
            self._rest()
        sharing = Sharing(weight, priority)
        matching = Matching(sharing, self.spec.link.eager_bytes)
        ticket = CompiledTicket(self._submitted, self.now_ps, sharing, matching)
        operations = self._operations(programs, ticket)
        for submission in programs:
            prepared, ops = self._prepare(submission), operations[submission.rank]
            run = CompiledRun(submission, prepared.timeline, ops, prepared.flat(ops, self.queue_names))
            run.after = self._latest.get(submission.rank) if in_turn else None
            ticket.asked[submission.rank] = self._latest[submission.rank] = run
            matching.add(submission, run.program, ops)
        matching.settle()
        self._submitted += 1
        self.in_flight.append(ticket)
        self._history.append(Event(submitted=ticket))
        if not self._regroup():
            self._enter(ticket)
        return ticket

    def _enter(self, ticket: CompiledTicket) -> None:
        assert self._classes is not None, "classes are found when programs are submitted"
        self._entering.enter(ticket, self._classes)

    def _operations(self, programs: Sequence[Submission], ticket: CompiledTicket) -> dict[int, Ops]:
        """What the sites of every rank ask."""
        alike: dict[int, tuple[FlatPrepared, list[Submission]]] = {}
        for submission in programs:
            prepared = self._prepare(submission)
            alike.setdefault(id(prepared), (prepared, []))[1].append(submission)
        found: dict[int, Ops] = {}
        for prepared, own in alike.values():
            ops, batch = prepared.ops_of(own)
            found |= zip([submission.rank for submission in own], ops, strict=True)
            if batch is not None:
                ticket.batches.append(batch)
        return found

    def _rest(self) -> None:
        """Nothing is in flight: forget all that was."""
        self.calendar.forget_programs()
        self._folder.forget_marks()
        for ticket in self._told:
            self._release_shares(ticket)
            for batch in ticket.batches:
                batch.release()
        for prepared in self._prepared.values():
            prepared.lanes.release()
        self._history.clear()
        self._classes, self._idle_ps = None, self.now_ps

    def _regroup(self) -> bool:
        """Find the classes of all that is in flight; whether cards that were one no longer are, and all ran again."""
        classes = self._folder.partition([ticket.matching for ticket in self.in_flight], self._classes)
        if self._classes is None or self._classes.refines(classes):
            self._classes = classes
            return False
        self._repeat(self._folder.partition([ticket.matching for ticket in self._told], self._classes))
        return True

    @property
    def _told(self) -> list[CompiledTicket]:
        """All that was submitted since the cluster was idle."""
        return [event.submitted for event in self._history if event.submitted is not None]

    def _release_shares(self, ticket: CompiledTicket) -> None:
        for row in ticket.shares:
            self.calendar.shares.release(row)
        ticket.shares.clear()

    def _repeat(self, classes: Partition) -> None:
        """Go back to when the cluster was idle, and let all happen again with other classes."""
        self._classes, history = classes, list(self._history)
        for event in reversed(history):
            if event.resource != NONE:
                self.calendar.resources[event.resource].set_capacity(event.capacities_per_s[0])
        self.calendar.rewind(self._idle_ps)
        for ticket in self._told:
            self._release_shares(ticket)
        for ticket in self.in_flight:
            ticket.row = NONE  # not submitted yet
        for event in history:
            if event.submitted is not None:
                self._enter(event.submitted)
            elif event.cancelled is not None:
                cut_ticket(self.calendar.machine, event.cancelled.row)
            elif event.failed != NONE:
                fail_queue(self.calendar.machine, event.failed)
            elif event.resource != NONE:
                self.calendar.set_capacity(event.resource, event.capacities_per_s[1])
            else:
                self._let_pass(event)

    def _prepare(self, submission: Submission) -> FlatPrepared:
        spec = self._clocked(submission.rank).spec
        key = id(submission.program), spec.clock_hz
        prepared = self._prepared.get(key)
        if prepared is None:
            card = self.cards[0].of_spec(spec)
            prepared = self._prepared[key] = FlatPrepared(submission.program, card, self.calendar)
        return prepared

    def cancel(self, ticket: CompiledTicket, cause: Exception | None = None) -> None:
        """As `Cluster.cancel`."""
        self._collect()  # one that had nothing to do
        if ticket not in self.in_flight:
            return
        ticket.fail(cause or Cancelled(f"submission {ticket.number} was cancelled at {self.now_ps} ps"), self.now_ps)
        self._history.append(Event(cancelled=ticket))
        cut_ticket(self.calendar.machine, ticket.row)

    def fail(self, rank: int, queue: str, cause: Exception) -> bool:
        """As `Cluster.fail`; the card is told apart from those that were one with it."""
        own = self._queue_number(rank, queue)
        if self._classes is None:
            return False
        number = int(self._classes.standing[rank]) * len(self.queue_names) + own
        slot = executes(self.calendar.machine.mem, number)
        if slot == NONE or ends_now(self.calendar.machine, slot):
            return slot != NONE
        self._folder.mark(min(self.cards[rank].resources.values()))
        self._regroup()
        number = rank * len(self.queue_names) + own
        memory = self.calendar.memory
        row = memory.rows(c.RUNS)[memory.rows(c.QUEUES)[number, c.RUN], c.R_TICKET]
        next(ticket for ticket in self.in_flight if ticket.row == row).fail(cause, self.now_ps)
        self._history.append(Event(failed=number))
        fail_queue(self.calendar.machine, number)
        return True

    # time

    def start(self, programs: Sequence[Submission], *, in_turn: bool = False) -> CompiledTicket:
        """As `Machines.start`."""
        return self.submit(programs, in_turn=in_turn)

    def finish(self, ran: Ran) -> None:
        """As `Machines.finish`."""
        assert isinstance(ran, CompiledTicket), "programs end where they were started"
        self.run_until(ran)

    def run_until(self, ticket: CompiledTicket) -> None:
        """As `Cluster.run_until`."""
        if not ticket.is_over:
            event = Event(awaited=ticket)
            key = self._key(ticket)
            self._history.append(event)
            if self._let_pass(event, key) == c.DRY:
                self._tell_apart()
                raise self._deadlock()
        if ticket.cause is not None:
            raise ticket.cause

    def advance_to(self, ps: int) -> None:
        """As `Cluster.advance_to`."""
        if type(ps) is not int or ps < self.now_ps:
            raise ConfigError(f"cannot advance to {ps!r} ps: the clock stands at {self.now_ps}; give a later int")
        if ps > self.now_ps:
            event = Event(until_ps=ps)
            self._history.append(event)
            self._let_pass(event)

    def _let_pass(self, event: Event, key: Hashable | None = None) -> int:
        """Let time pass; a submission with a key runs alone from its start, and may have run before."""
        ticket, steady, before = event.awaited, self._steady, self.calendar.activities
        if ticket is not None and steady is not None and key is not None and steady.take(key, ticket):
            reason = c.TICKET_DONE
        else:
            reason = self.calendar.run(NONE if ticket is None else ticket.row, event.until_ps)
            if ticket is not None and steady is not None and key is not None and reason == c.TICKET_DONE:
                steady.keep(key, ticket, self.calendar.activities - before)
        self._collect()
        return reason

    def _key(self, ticket: CompiledTicket) -> Hashable | None:
        """What is equal of submissions that take the same course; None for one that is not alone, or under way."""
        if self._steady is None or self._classes is None or len(self._history) != 1 or self.now_ps != ticket.start_ps:
            return None
        return self._steady.key(ticket, self._classes)

    def _tell_apart(self) -> None:
        """Errors name cards: let each of them stand for itself."""
        if self._classes is not None and not self._classes.is_discrete:
            self._repeat(self._folder.unfolded([ticket.matching for ticket in self._told]))

    def _change(self, resource: int, capacity_per_s: int) -> None:
        """Change a capacity; a card or link that is not as others any more is told apart from them."""
        before = self.calendar.resources[resource].capacity_per_s
        if self.in_flight:
            self._folder.mark(resource)
            self._regroup()
            self._history.append(Event(resource=resource, capacities_per_s=(before or 0, capacity_per_s)))
        self.calendar.set_capacity(resource, capacity_per_s)

    def _deadlock(self) -> DeadlockError:
        return deadlock_of(self.now_ps, tuple(waiters(self.calendar, self.in_flight, self.queue_names)))

    def _collect(self) -> None:
        """Take what has ended out of the tables."""
        for ticket in [ticket for ticket in self.in_flight if ticket.row != NONE]:
            done = int(self.calendar.memory.rows(c.TICKETS)[ticket.row, c.DONE])
            if done == NONE:
                continue
            self.in_flight.remove(ticket)
            self._fill(ticket)
            if ticket.cause is None:
                ticket.end(done)
            self.ledger.add(ticket.columns, ticket.exchanged)
            self._release(ticket)
        if not self.in_flight:
            self.ledger.settle()

    def _fill(self, ticket: CompiledTicket) -> None:
        """Copy what a ticket's programs did out of the tables."""
        assert self._classes is not None
        memory, standing = self.calendar.memory, self._classes.standing
        cards = [
            CardSpans(
                rank, run.program, self.queue_names, memory.rows(c.SPANS, run.out, run.program.count).copy(), run.ops
            )
            for rank, run in ticket.runs.items()
        ]
        ticket.spans = SpanTable(cards, {rank: int(standing[rank]) for rank in ticket.asked}, ticket.matching)
        ticket.columns = ticket.spans.columns
        held = []
        for place in ticket.matching.places:
            rows = memory.rows(c.MEETINGS, ticket.bases[id(place)], place.count)
            turns = np.flatnonzero(rows[:, c.ENDED] != NONE)
            alone = (rows[turns, c.IS_EAGER] == 1) & (rows[turns, c.ARRIVED] == 1)
            times = rows[turns, c.STARTED], rows[turns, c.ENDED]
            held.append(Held(place, turns, *times, alone, self._folder.demand))
        ticket.exchanged = ExchangeTable(held)

    def _release(self, ticket: CompiledTicket) -> None:
        """Leave a ticket's rows to others."""
        memory, lengths = self.calendar.memory, {id(run.ops): len(run.ops) for run in ticket.runs.values()}
        memory.release(c.TICKETS, ticket.row, 1)
        self._release_shares(ticket)
        if ticket.meetings:
            count = sum(place.count for place, _ in ticket.meetings)
            memory.release(c.MEETINGS, ticket.meetings[0][1], count)
        if self._classes is not None and self._classes.is_discrete:  # else all may have to be repeated
            for batch in ticket.batches:
                batch.release()
            ticket.batches.clear()
        for key, first in ticket.ops_at.items():
            memory.release(c.OPS, first, lengths[key])
        for run in ticket.runs.values():
            memory.release(c.SPANS, run.out, run.program.count)
            memory.release(c.SEMAPHORES, run.semaphores, len(run.timeline.semaphores))
            memory.release(c.LINKS, run.first_link, run.links)
            memory.release(c.RUNS, run.row, 1)
        for rank, run in ticket.asked.items():
            if self._latest.get(rank) is run:
                del self._latest[rank]
