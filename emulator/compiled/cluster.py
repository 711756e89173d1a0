"""CompiledCluster: cards on an interconnect in the compiled calendar; the same programs in, the same spans out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...interconnect.topology import Topology
from ...isa.errors import ConfigError, ProgramError
from ...isa.program import Program
from ..card import Card, Op
from ..choosing import Choose, default_choice
from ..costs import Cost, Costs
from ..deadlock import DeadlockError, deadlock_of
from ..exchange import TRANSFER, Exchanged, Sharing, owner
from ..machines import KEPT_PROGRAMS, Machines, Ran
from ..span import BOUNDS, Span
from ..span_columns import CardColumns
from ..spec import CardSpec
from ..ticket import Submission
from ..timeline import Timeline
from . import machine as c
from .calendar import CompiledCalendar
from .flatten import FlatProgram
from .lane_ops import Batch, lane_ops
from .machine import NONE
from .meetings import Encounter, Matching
from .ops import Ops
from .queues import make_ready
from .spans import CardSpans, SpanTable
from .waiters import waiters


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
        """`ops` of many ranks; those whose loads all differ are costed together, in a batch to be released."""
        calendar, bindings = self._calendar, [submission.binding for submission in submissions]
        found = lane_ops(self.timeline, self._costs, self._card, calendar.shares, bindings)
        if found is None:
            return [self.ops(submission) for submission in submissions], None
        return found[1], found[0]

    def flat(self, ops: Ops, queues: Sequence[str]) -> FlatProgram:
        """The program's entries in the calendar's tables."""
        if self._flat is None:
            self._flat = FlatProgram(self.timeline, ops.actions, queues, self._calendar.memory)
        return self._flat


class CompiledRun:
    """One card's part of a submission: its rows in the tables."""

    def __init__(self, submission: Submission, prepared: FlatPrepared, ops: Ops, program: FlatProgram) -> None:
        self.submission, self.timeline, self.ops, self.program = submission, prepared.timeline, ops, program
        self.after: CompiledRun | None = None
        self.row = self.out = self.semaphores = self.first_link = NONE
        self.links = 0


class CompiledTicket:
    """Programs in flight together, as `ticket.Ticket`; `spans` and `exchanged` are there once it is done."""

    def __init__(self, number: int, start_ps: int) -> None:
        self.number, self.start_ps, self.end_ps = number, start_ps, NONE
        self.row = NONE
        self.runs: dict[int, CompiledRun] = {}
        self.encounters: list[Encounter] = []
        self.first_meeting = 0
        self.batches: list[Batch] = []
        self.ops_at: dict[int, int] = {}  # by the identity of the operations of a run
        self.cards: list[CardSpans] = []
        self.spans: Sequence[Span] = ()
        self.columns: tuple[CardColumns, ...] = ()
        self.exchanged: list[Exchanged] = []
        self.cause: Exception | None = None


class CompiledCluster(Machines):
    """Cards on an interconnect in the compiled calendar; see `Machines` for what it is made from."""

    def __init__(
        self,
        spec: CardSpec,
        topology: Topology,
        num_cards: int | None = None,
        *,
        choose: Choose = default_choice,
        placement: Sequence[int] | None = None,
    ) -> None:
        self.calendar = CompiledCalendar()
        super().__init__(self.calendar, spec, topology, num_cards, choose, placement)
        self.queue_names = tuple(queue.name for queue in spec.queues)
        self.calendar.begin(len(self.cards), len(self.queue_names))
        self._resources_a_card = len(self.cards[0].resources)
        self._prepared: dict[int, FlatPrepared] = {}
        self._nodes: dict[tuple[tuple[int, ...], int], tuple[int, int]] = {}
        self.in_flight: list[CompiledTicket] = []
        self._latest: dict[int, CompiledRun] = {}  # of runs in flight
        self._submitted = 0

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
            self.calendar.forget_programs()
        sharing = Sharing(weight, priority)
        ticket = CompiledTicket(self._submitted, self.now_ps)
        matching = Matching(sharing, self.spec.link.eager_bytes)
        found: list[list[int]] = []
        operations = self._operations(programs, ticket)
        for submission in programs:
            prepared, ops = self._prepare(submission), operations[submission.rank]
            run = CompiledRun(submission, prepared, ops, prepared.flat(ops, self.queue_names))
            run.after = self._latest.get(submission.rank) if in_turn else None
            ticket.runs[submission.rank] = self._latest[submission.rank] = run
            found.append(matching.add(submission, run.program, ops))
        self._enter(ticket, matching, found, sharing)
        self._submitted += 1
        self.in_flight.append(ticket)
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

    def _prepare(self, submission: Submission) -> FlatPrepared:
        key = id(submission.program)
        prepared = self._prepared.get(key)
        if prepared is None:
            prepared = self._prepared[key] = FlatPrepared(submission.program, self.cards[0], self.calendar)
        return prepared

    def _enter(self, ticket: CompiledTicket, matching: Matching, found: list[list[int]], sharing: Sharing) -> None:
        """Write a submission into the tables and hand it to the queues."""
        memory = self.calendar.memory
        ticket.row = memory.append(c.TICKETS, np.array([[0, NONE]]))
        ticket.encounters = matching.encounters
        meetings = np.array([self._meeting(encounter) for encounter in matching.encounters], np.int64)
        ticket.first_meeting = memory.append(c.MEETINGS, meetings.reshape(-1, c.MEETING_COLUMNS))
        ops_at: dict[int, int] = ticket.ops_at
        for run, links in zip(ticket.runs.values(), found, strict=True):
            key = id(run.ops)
            if key not in ops_at:
                ops_at[key] = memory.append(c.OPS, run.ops.rows)
            self._enter_run(ticket, run, ops_at[key], links, sharing)
        left = 0
        for rank, run in ticket.runs.items():
            for number in np.flatnonzero(run.program.parts[:, 0] != run.program.parts[:, 1]).tolist():
                self._post(rank * len(self.queue_names) + number, run.row, number)
                left += 1
        memory.rows(c.TICKETS)[ticket.row] = left, NONE if left else self.now_ps

    def _enter_run(
        self, ticket: CompiledTicket, run: CompiledRun, ops: int, links: list[int], sharing: Sharing
    ) -> None:
        memory, rank = self.calendar.memory, run.submission.rank
        run.out = memory.append(c.SPANS, np.full((run.program.count, c.SPAN_COLUMNS), NONE))
        run.semaphores = memory.append(c.SEMAPHORES, np.tile([0, NONE], (len(run.timeline.semaphores), 1)))
        run.first_link, run.links = memory.append(c.LINKS, np.array(links, np.int64) + ticket.first_meeting), len(links)
        order = self._submitted * self.orders + rank * self.orders_a_card
        row = (
            ticket.row, ops, run.semaphores, run.out, run.first_link, rank * self._resources_a_card, sharing.weight,
            sharing.priority, order, run.program.first, run.program.queues, run.after.row if run.after else NONE,
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

    def _meeting(self, encounter: Encounter) -> list[int]:
        """The row of an exchange: who must come, and what its group's activity demands."""
        ranks, is_transfer = encounter.ranks, encounter.turn == TRANSFER
        row = [0] * c.MEETING_COLUMNS
        row[c.MEMBERS] = len(ranks)
        row[c.LATE] = row[c.STARTED] = row[c.ENDED] = row[c.FIRST_MEMBER] = NONE
        row[c.IS_EAGER] = encounter.is_eager
        first = next(iter(encounter.parties.values()))
        row[c.M_WEIGHT], row[c.M_PRIORITY] = first.sharing
        rank = owner(ranks, encounter.turn)
        row[c.M_ORDER] = self._submitted * self.orders + (rank + 1) * self.orders_a_card - 1
        number = self.queue_names.index(first.timeline.semaphores[first.entry.own])
        row[c.SLOT] = rank * len(self.queue_names) + number
        if encounter.message is None or (encounter.missing and not encounter.is_eager):
            return row  # it never starts
        dispatches = [party.dispatch_ps for party in encounter.parties.values()]
        cost = self._wires.cost(encounter.message, ranks, max(dispatches))
        demand = cost.demand
        row[c.M_FIXED] = row[c.BOTH_FIXED] = demand.fixed_ps
        row[c.M_BOUND] = row[c.BOTH_BOUND] = BOUNDS.index(cost.bound)
        row[c.M_ALONE] = demand.alone_ps
        if demand.alone_ps:
            row[c.M_SHARE] = self.calendar.shares.of(demand)
            row[c.M_NODES] = self._nodes_for(ranks, encounter.turn, self.calendar.shares.uses_of(row[c.M_SHARE]))
        if is_transfer and encounter.is_eager and ranks[0] in encounter.parties:
            alone = self._wires.cost(encounter.message, ranks, encounter.parties[ranks[0]].dispatch_ps)
            row[c.M_FIXED], row[c.M_BOUND] = alone.demand.fixed_ps, BOUNDS.index(alone.bound)
        return row

    def _nodes_for(self, ranks: tuple[int, ...], turn: int, count: int) -> int:
        """Where a group keeps its uses; exchanges of one group never overlap, for its members come one by one."""
        key = (ranks, min(turn, 0))
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
        if ticket.end_ps == NONE and ticket.cause is None:
            reason = self.calendar.run(ticket.row)
            self._collect()
            if reason == c.DRY:
                raise self._deadlock()
        if ticket.cause is not None:
            raise ticket.cause

    def advance_to(self, ps: int) -> None:
        """As `Cluster.advance_to`."""
        if type(ps) is not int or ps < self.now_ps:
            raise ConfigError(f"cannot advance to {ps!r} ps: the clock stands at {self.now_ps}; give a later int")
        if ps > self.now_ps:
            self.calendar.run(until_ps=ps)
            self._collect()

    def _deadlock(self) -> DeadlockError:
        return deadlock_of(self.now_ps, tuple(waiters(self.calendar, self.in_flight, self.queue_names)))

    def _collect(self) -> None:
        """Take what has ended out of the tables."""
        for ticket in list(self.in_flight):
            done = int(self.calendar.memory.rows(c.TICKETS)[ticket.row, c.DONE])
            if done == NONE:
                continue
            self.in_flight.remove(ticket)
            self._fill(ticket)
            orphan = next((e for e in ticket.encounters if e.turn == TRANSFER and e.missing), None)
            if orphan is not None:
                rank = orphan.missing[0]
                ticket.cause = ProgramError(f"{orphan.name} was sent, and rank {rank} never receives it")
            ticket.end_ps = done
            self.ledger.add(ticket.columns, ticket.exchanged)
            self._release(ticket)
        if not self.in_flight:
            self.ledger.settle()

    def _fill(self, ticket: CompiledTicket) -> None:
        """Copy what a ticket's programs did out of the tables."""
        memory = self.calendar.memory
        ticket.cards = [
            CardSpans(
                rank, run.program, self.queue_names, memory.rows(c.SPANS, run.out, run.program.count).copy(), run.ops
            )
            for rank, run in ticket.runs.items()
        ]
        ticket.spans = SpanTable(ticket.cards)
        ticket.columns = ticket.spans.columns
        rows = memory.rows(c.MEETINGS, ticket.first_meeting, len(ticket.encounters))
        met = [(int(rows[n, c.ENDED]), n) for n in range(len(ticket.encounters)) if rows[n, c.ENDED] != NONE]
        for ended, number in sorted(met):
            encounter, row = ticket.encounters[number], rows[number]
            assert encounter.message is not None
            dispatches = [party.dispatch_ps for party in encounter.parties.values()]
            if row[c.IS_EAGER] and row[c.ARRIVED] == 1:
                dispatches = [encounter.parties[encounter.ranks[0]].dispatch_ps]
            demand = self._wires.cost(encounter.message, encounter.ranks, max(dispatches)).demand
            started = int(row[c.STARTED])
            ticket.exchanged.append(Exchanged(encounter.message, encounter.ranks, started, ended, demand))

    def _release(self, ticket: CompiledTicket) -> None:
        """Leave a ticket's rows to others."""
        memory, lengths = self.calendar.memory, {id(run.ops): len(run.ops) for run in ticket.runs.values()}
        memory.release(c.TICKETS, ticket.row, 1)
        memory.release(c.MEETINGS, ticket.first_meeting, len(ticket.encounters))
        for batch in ticket.batches:
            batch.release()
        for key, first in ticket.ops_at.items():
            memory.release(c.OPS, first, lengths[key])
        for rank, run in ticket.runs.items():
            memory.release(c.SPANS, run.out, run.program.count)
            memory.release(c.SEMAPHORES, run.semaphores, len(run.timeline.semaphores))
            memory.release(c.LINKS, run.first_link, run.links)
            memory.release(c.RUNS, run.row, 1)
            if self._latest.get(rank) is run:
                del self._latest[rank]
