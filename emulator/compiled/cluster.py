"""CompiledCluster: cards on an interconnect in the compiled calendar; the same programs in, the same spans out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...interconnect.topology import Topology
from ...isa.errors import ConfigError, ProgramError
from ..calendar.solver import Ints
from ..choosing import Choose, default_choice
from ..deadlock import DeadlockError, deadlock_of
from ..exchange import Sharing
from ..machines import Machines, Ran
from ..span import BOUNDS
from ..spec import CardSpec
from ..ticket import Submission
from . import machine as c
from .calendar import CompiledCalendar
from .exchanges import ExchangeTable, Held
from .folder import Folder, Priced
from .folding import Partition
from .machine import NONE
from .meetings import Matching, Place
from .ops import Ops
from .prepared import FlatPrepared
from .queues import make_ready
from .spans import CardSpans, SpanTable
from .tickets import CompiledRun, CompiledTicket
from .waiters import waiters


class Event(NamedTuple):
    """What a cluster was told while programs were in flight: a submission, to let time pass, or a capacity."""

    submitted: CompiledTicket | None = None
    awaited: CompiledTicket | None = None
    until_ps: int = NONE
    resource: int = NONE
    capacities_per_s: tuple[int, int] = (0, 0)  # before and after


class CompiledCluster(Machines):
    """Cards on an interconnect in the compiled calendar; see `Machines` for what it is made from.

    With `fold` cards in equal conditions are simulated once (`folding`). Where what is submitted or changed while
    programs are in flight tells cards apart that were one so far, all since the cluster was last idle runs again.
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
    ) -> None:
        self.calendar = CompiledCalendar()
        super().__init__(self.calendar, spec, topology, num_cards, choose, placement)
        self.queue_names = tuple(queue.name for queue in spec.queues)
        self.calendar.begin(len(self.cards), len(self.queue_names))
        self._resources_a_card = len(self.cards[0].resources)
        self._prepared: dict[int, FlatPrepared] = {}
        self._nodes: dict[tuple[tuple[int, ...], bool], tuple[int, int]] = {}
        self.in_flight: list[CompiledTicket] = []
        self._latest: dict[int, CompiledRun] = {}  # of runs in flight
        self._submitted = 0
        self._folder = Folder(self.cards, self.calendar, self._wires, fold)
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

    def _operations(self, programs: Sequence[Submission], ticket: CompiledTicket) -> dict[int, Ops]:
        """What the sites of every rank ask."""
        by_program: dict[int, list[Submission]] = {}
        for submission in programs:
            by_program.setdefault(id(submission.program), []).append(submission)
        found: dict[int, Ops] = {}
        for own in by_program.values():
            ops, batch = self._prepare(own[0]).ops_of(own)
            found |= zip([submission.rank for submission in own], ops, strict=True)
            if batch is not None:
                ticket.batches.append(batch)
        return found

    def _rest(self) -> None:
        """Nothing is in flight: forget all that was."""
        self.calendar.forget_programs()
        self._folder.forget_marks()
        for event in self._history:
            for batch in event.submitted.batches if event.submitted is not None else ():
                batch.release()
        self._history.clear()
        self._classes, self._idle_ps = None, self.now_ps

    def _regroup(self) -> bool:
        """Find the classes of all that is in flight; whether cards that were one no longer are, and all ran again."""
        classes = self._folder.partition([ticket.matching for ticket in self.in_flight], self._classes)
        if self._classes is None or self._classes.refines(classes):
            self._classes = classes
            return False
        tickets = [event.submitted for event in self._history if event.submitted is not None]
        self._repeat(self._folder.partition([ticket.matching for ticket in tickets], self._classes))
        return True

    def _repeat(self, classes: Partition) -> None:
        """Go back to when the cluster was idle, and let all happen again with other classes."""
        self._classes, history = classes, list(self._history)
        for event in reversed(history):
            if event.resource != NONE:
                self.calendar.resources[event.resource].set_capacity(event.capacities_per_s[0])
        self.calendar.rewind(self._idle_ps)
        for ticket in self.in_flight:
            ticket.row = NONE  # not submitted yet
        for event in history:
            if event.submitted is not None:
                self._enter(event.submitted)
            elif event.resource != NONE:
                self.calendar.set_capacity(event.resource, event.capacities_per_s[1])
            else:
                self._let_pass(event)

    def _prepare(self, submission: Submission) -> FlatPrepared:
        key = id(submission.program)
        prepared = self._prepared.get(key)
        if prepared is None:
            prepared = self._prepared[key] = FlatPrepared(submission.program, self.cards[0], self.calendar)
        return prepared

    def _enter(self, ticket: CompiledTicket) -> None:
        """Write a submission into the tables and hand it to the queues: of every class of cards one card's part."""
        assert self._classes is not None, "classes are found when programs are submitted"
        memory, standing = self.calendar.memory, self._classes.standing
        ticket.row = memory.append(c.TICKETS, np.array([[0, NONE]]))
        ticket.runs = {rank: run for rank, run in ticket.asked.items() if standing[rank] == rank}
        ticket.ops_at = {}
        self._enter_meetings(ticket, self._classes)
        for rank, run in ticket.runs.items():
            key = id(run.ops)
            if key not in ticket.ops_at:
                ticket.ops_at[key] = memory.append(c.OPS, run.ops.rows)
            self._enter_run(ticket, run, ticket.ops_at[key], ticket.matching.links(rank, ticket.bases))
        left = 0
        for rank, run in ticket.runs.items():
            for number in np.flatnonzero(run.program.parts[:, 0] != run.program.parts[:, 1]).tolist():
                self._post(rank * len(self.queue_names) + number, run.row, number)
                left += 1
        memory.rows(c.TICKETS)[ticket.row] = left, NONE if left else self.now_ps

    def _enter_meetings(self, ticket: CompiledTicket, classes: Partition) -> None:
        """Write the exchanges of every class of places."""
        alike: dict[int, list[Place]] = {}
        for place in ticket.matching.places:
            alike.setdefault(classes.place[id(place)], []).append(place)
        ticket.bases, ticket.meetings, tables, count = {}, [], [np.zeros((0, c.MEETING_COLUMNS), np.int64)], 0
        for places in alike.values():
            ticket.bases |= dict.fromkeys(map(id, places), count)
            ticket.meetings.append((places[0], count))
            tables.append(self._meetings(ticket, places, classes))
            count += places[0].count
        table = np.concatenate(tables)
        first = memory_first = self.calendar.memory.append(c.MEETINGS, table)
        ticket.bases = {place: base + first for place, base in ticket.bases.items()}
        ticket.meetings = [(place, base + memory_first) for place, base in ticket.meetings]

    def _enter_run(self, ticket: CompiledTicket, run: CompiledRun, ops: int, links: Ints) -> None:
        memory, rank, queues = self.calendar.memory, run.submission.rank, len(self.queue_names)
        run.out = memory.append(c.SPANS, np.full((run.program.count, c.SPAN_COLUMNS), NONE))
        run.semaphores = memory.append(c.SEMAPHORES, np.tile([0, NONE], (len(run.timeline.semaphores), 1)))
        run.first_link, run.links = memory.append(c.LINKS, links), len(links)
        order = ticket.number * self.orders + len(self.cards) + rank * queues
        after = NONE if run.after is None else run.after.row
        row = (
            ticket.row, ops, run.semaphores, run.out, run.first_link, rank * self._resources_a_card,
            *ticket.sharing, order, run.program.first, run.program.queues, after,
        )  # fmt: skip
        run.row = memory.append(c.RUNS, np.array([row], np.int64))
        memory.ensure(c.INBOXES, run.row + 1)
        memory.ensure(c.PARTS, run.row + 1)
        memory.rows(c.INBOXES)[run.row], memory.rows(c.PARTS)[run.row] = NONE, run.program.parts.reshape(-1)

    def _post(self, queue: int, run: int, number: int) -> None:
        """Put a run last into the inbox of a queue."""
        memory = self.calendar.memory
        row = memory.rows(c.QUEUES)[queue]
        if row[c.INBOX] == NONE:
            row[c.INBOX] = run
        else:
            memory.rows(c.INBOXES)[row[c.INBOX_LAST], number] = run
        row[c.INBOX_LAST] = run
        if row[c.RUN] == NONE:
            make_ready(memory.mem, queue)

    def _meetings(self, ticket: CompiledTicket, places: Sequence[Place], classes: Partition) -> Ints:
        """The rows of the exchanges of places of one class: who must come, and what all of them demand together."""
        place, rows = places[0], list[list[int]]()
        come = len({int(classes.standing[member.rank]) for member in place.members})
        slot = self._slot(place, classes)
        for number, priced in enumerate(self._folder.priced(place)):
            row = [0] * c.MEETING_COLUMNS
            row[c.LATE] = row[c.STARTED] = row[c.ENDED] = row[c.FIRST_MEMBER] = NONE
            row[c.M_WEIGHT], row[c.M_PRIORITY] = place.sharing
            row[c.SLOT], row[c.MEMBERS] = slot, come
            row[c.M_ORDER] = ticket.number * self.orders + slot // len(self.queue_names)
            if priced is None:
                row[c.MEMBERS] += 1  # it never starts
            else:
                self._price(row, priced, place.offers[number].is_eager)
                row[c.M_SHARE] = self._folder.share(places, number, classes)
                if row[c.M_SHARE] != NONE:
                    uses = self.calendar.shares.uses_of(row[c.M_SHARE])
                    row[c.M_NODES] = self._nodes_for(place, uses)
            rows.append(row)
        return np.array(rows, np.int64).reshape(-1, c.MEETING_COLUMNS)[place.kinds]

    @staticmethod
    def _price(row: list[int], priced: Priced, is_eager: bool) -> None:
        """When an exchange begins to flow and what holds it, with both ends of an eager message or its sender alone."""
        row[c.IS_EAGER], row[c.M_ALONE] = is_eager, priced.share.alone_ps
        row[c.BOTH_FIXED], row[c.BOTH_BOUND] = priced.share.fixed_ps, BOUNDS.index(priced.share.bound)
        row[c.M_FIXED], row[c.M_BOUND] = priced.alone.fixed_ps, BOUNDS.index(priced.alone.bound)

    def _slot(self, place: Place, classes: Partition) -> int:
        """The queue in which an exchange's owner waits: the sender of a transfer, or the lowest of a collective."""
        standing = {int(classes.standing[member.rank]): member.part for member in place.members if member.sends}
        standing = standing or {int(classes.standing[member.rank]): member.part for member in place.members}
        rank = min(standing)
        (name,) = standing[rank].program.link_queues
        return rank * len(self.queue_names) + self.queue_names.index(name)

    def _nodes_for(self, place: Place, count: int) -> int:
        """Where a group keeps its uses; exchanges of one group never overlap, for its members come one by one."""
        key = (place.ranks, place.is_transfer)
        first, room = self._nodes.get(key, (0, 0))
        if room < count:
            first = self.calendar.reserve_nodes(count)
            self._nodes[key] = (first, count)
        return first

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
            self._history.append(event)
            if self._let_pass(event) == c.DRY:
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

    def _let_pass(self, event: Event) -> int:
        ticket = event.awaited
        reason = self.calendar.run(NONE if ticket is None else ticket.row, event.until_ps)
        self._collect()
        return reason

    def _tell_apart(self) -> None:
        """Errors name cards: let each of them stand for itself."""
        if self._classes is not None and not self._classes.is_discrete:
            tickets = [event.submitted for event in self._history if event.submitted is not None]
            self._repeat(self._folder.unfolded([ticket.matching for ticket in tickets]))

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
            for place in ticket.matching.places:
                if place.is_transfer and (orphan := next(place.orphans, None)) is not None:
                    name = place.encounter(orphan[0]).name
                    ticket.cause = ProgramError(f"{name} was sent, and rank {orphan[1]} never receives it")
                    break
            ticket.end_ps = done
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
