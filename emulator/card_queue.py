"""CardQueue: one in-order queue of a card: fetch, wait for semaphores, execute, signal, write a span."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator

import simpy

from .calendar.activity import Running, now_ps
from .calendar.engine import Calendar
from .card import Action, Op
from .exchange import Meeting, Party
from .failure import original
from .span import NOBODY_LATE, Bound, Span
from .ticket import CardRun
from .timeline import Entry

Process = Generator[simpy.Event, object, None]
Awaited = Meeting | tuple[int, int]  # a meeting, or (semaphore, count)
HELD_BOUND: dict[str, Bound] = {"unit": "compute", "hbm": "hbm", "link": "link", "host": "host"}


class CardQueue:
    """A queue and its inbox of submissions, served one after the other.

    `orders` are the places, among the activities of all, of the exchanges that it owns and of what it does alone. `run`
    and `entry` are where it stands, `blocked` what it waits for there, `running` its last activity of its own.
    """

    def __init__(self, calendar: Calendar, rank: int, name: str, orders: tuple[int, int]) -> None:
        self.calendar, self.rank, self.name = calendar, rank, name
        self.order_together, self.order = orders
        self.env = calendar.env
        self.run: CardRun | None = None
        self.running: Running | None = None
        self.entry: Entry | None = None
        self.blocked: Awaited | None = None
        self._inbox: deque[CardRun] = deque()
        self._idle: simpy.Event | None = None
        self.env.process(self._serve())

    def submit(self, run: CardRun) -> None:
        """Execute a program's part in this queue, after all that was submitted before."""
        self._inbox.append(run)
        if self._idle is not None:
            self._idle.succeed()
            self._idle = None

    @property
    def in_flight(self) -> list[Running]:
        """The activities it executes now, alone or with its peers."""
        activities = self.blocked.activities if isinstance(self.blocked, Meeting) else [self.running]
        return [running for running in activities if running is not None and running.outcome is None]

    def _serve(self) -> Process:
        while True:
            if not self._inbox:
                self._idle = simpy.Event(self.env)
                yield self._idle
            self.run = run = self._inbox.popleft()
            try:
                if run.after is not None and not run.after.over.triggered:
                    yield run.after.over
                run.after = None
                yield from self._execute(run)
            except Exception as error:  # whatever it is, it is the ticket's end and is raised to whoever awaits that
                run.ticket.fail(original(error))
            self.run = self.entry = self.blocked = self.running = None
            run.queue_ended()

    def _execute(self, run: CardRun) -> Process:
        """The hot loop; what is not a plain activity goes through `_special`."""
        rank, name, ops, ticket = self.rank, self.name, run.ops, run.ticket
        start, (weight, priority) = self.calendar.run, ticket.exchange.sharing
        semaphores, flow, append = run.semaphores, Action.FLOW, ticket.spans.append
        values, waiters = semaphores.values, semaphores.waiters
        order = ticket.exchange.first_order + self.order
        for entry in run.timeline.queues[name]:
            self.entry = entry
            call, position, site, mnemonic, own, waits, _ = entry
            for index, need in waits:
                if values[index] < need:
                    self.blocked = (index, need)
                    yield semaphores.reaches(index, need)
                    self.blocked = None
            if ticket.cause is not None:
                return
            op = ops[site]
            if op.action is flow:
                self.running = running = start(op.demand, weight=weight, priority=priority, order=order)
                yield running.done
                bound = op.bound if running.held_ps is None else self._held_bound(running, op.bound, "dispatch")
                begin, end = running.start_ps, running.end_ps
                append(Span(rank, name, call, position, mnemonic, begin, begin, end, bound, NOBODY_LATE))
            else:
                append((yield from self._special(run, entry, op)))
            values[own] += 1
            if waiters[own]:
                semaphores.wake(own)

    def _special(self, run: CardRun, entry: Entry, op: Op) -> Generator[simpy.Event, object, Span]:
        issued = now_ps(self.env)
        if op.action is Action.COLLECTIVE:
            meeting = run.ticket.exchange.collective(self._party(run, entry, op), run.groups[op.group])
            return (yield from self._attend(entry, meeting, issued))
        if op.action is Action.SEND:
            meeting = run.ticket.exchange.send(self._party(run, entry, op), run.groups[op.group][op.peer])
            return (yield from self._attend(entry, meeting, issued))
        if op.action is Action.RECEIVE:
            return (yield from self._receive(run, entry, op, issued))
        yield from self._control(run, entry, op)
        return self._span(entry, issued, issued, op.bound)

    def _control(self, run: CardRun, entry: Entry, op: Op) -> Process:
        """A wait, a signal or a halt, after its dispatch."""
        if op.demand.fixed_ps:
            yield self._start(run, op).done
        if op.action is Action.HALT:
            return
        assert entry.semaphore is not None
        index, count = entry.semaphore
        if op.action is Action.SIGNAL:
            run.semaphores.add(index, count)
        elif run.semaphores.values[index] < count:
            self.blocked = entry.semaphore
            yield run.semaphores.reaches(index, count)
            self.blocked = None

    def _attend(self, entry: Entry, meeting: Meeting, issued: int) -> Generator[simpy.Event, object, Span]:
        """Take part in a collective, or send."""
        self.blocked = meeting
        yield meeting.gate
        self.blocked = None
        assert meeting.cost is not None
        start, bound = meeting.start_ps, meeting.cost.bound
        for running in meeting.activities:
            if running.held_ps is not None:
                bound = self._held_bound(running, bound, bound)
        if start - issued > now_ps(self.env) - start:
            bound = "dependency"
        return self._span(entry, issued, start, bound, meeting.late)

    def _receive(self, run: CardRun, entry: Entry, op: Op, issued: int) -> Generator[simpy.Event, object, Span]:
        """Wait for the sender's transfer; add what an eager one left in its buffer."""
        meeting = run.ticket.exchange.receive(self._party(run, entry, op), run.groups[op.group][op.peer])
        self.blocked = meeting
        yield meeting.gate
        self.blocked = None
        if op.runs_alone:
            yield self._start(run, op).done
        return self._span(entry, issued, max(issued, meeting.start_ps), "dependency", meeting.late)

    def _start(self, run: CardRun, op: Op) -> Running:
        exchange = run.ticket.exchange
        weight, priority = exchange.sharing
        order = exchange.first_order + self.order
        self.running = self.calendar.run(op.demand, weight=weight, priority=priority, order=order)
        return self.running

    def _party(self, run: CardRun, entry: Entry, op: Op) -> Party:
        assert op.message is not None
        sharing = run.sharing.get(op.group, run.ticket.exchange.sharing)
        issued, order = now_ps(self.env), self.order_together
        return Party(self.rank, issued, op.message, op.demand.fixed_ps, run.timeline, entry, sharing, order)

    def _span(self, entry: Entry, issued: int, start: int, bound: Bound, late: int = NOBODY_LATE) -> Span:
        end = now_ps(self.env)
        return Span(self.rank, self.name, entry.call, entry.position, entry.mnemonic, issued, start, end, bound, late)

    def _held_bound(self, running: Running, alone: Bound, fixed: Bound) -> Bound:
        """The bound of an activity that something may have held below its alone speed for a while.

        `alone` is what it would be if nothing did, `fixed` what it is where the fixed part is longer even so.
        """
        holder = running.held_by
        if holder is None:
            return alone
        if running.demand.fixed_ps > running.end_ps - running.flow_start_ps:
            return fixed
        return HELD_BOUND[self.calendar.resources[holder].kind]
