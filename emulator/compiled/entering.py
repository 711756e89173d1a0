"""Entering: submissions written into the tables of the compiled calendar and handed to queues."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..calendar.solver import Ints
from ..machines import Machines
from ..span import BOUNDS
from . import machine as c
from .calendar import CompiledCalendar
from .folder import Folder, Priced
from .folding import Partition
from .machine import NONE
from .meetings import Place
from .queues import make_ready
from .tickets import CompiledRun, CompiledTicket


class Entering:
    """Writes submissions to a cluster's cards, whose queues have these names."""

    def __init__(
        self, machines: Machines, calendar: CompiledCalendar, folder: Folder, queue_names: tuple[str, ...]
    ) -> None:
        self._machines, self._calendar, self._folder, self._queue_names = machines, calendar, folder, queue_names
        self._resources_a_card = folder.resources_a_card
        self._nodes: dict[tuple[tuple[int, ...], bool], tuple[int, int]] = {}

    def enter(self, ticket: CompiledTicket, classes: Partition) -> None:
        """Write a submission into the tables and hand it to the queues: of every class of cards one card's part."""
        memory, standing = self._calendar.memory, classes.standing
        ticket.row = memory.append(c.TICKETS, np.array([[0, NONE, 0]]))
        ticket.runs = {rank: run for rank, run in ticket.asked.items() if standing[rank] == rank}
        ticket.ops_at = {}
        alike = self._alike(ticket, classes)
        self._make_room(list(ticket.runs.values()), [places[0] for places in alike])
        self._enter_meetings(ticket, classes, alike)
        for rank, run in ticket.runs.items():
            key = id(run.ops)
            if key not in ticket.ops_at:
                ticket.ops_at[key] = memory.append(c.OPS, run.ops.rows)
            self._enter_run(ticket, run, ticket.ops_at[key], ticket.matching.links(rank, ticket.bases))
        left = 0
        for rank, run in ticket.runs.items():
            for number in np.flatnonzero(run.program.parts[:, 0] != run.program.parts[:, 1]).tolist():
                self._post(rank * len(self._queue_names) + number, run.row, number)
                left += 1
        memory.rows(c.TICKETS)[ticket.row] = left, NONE if left else self._calendar.now_ps, 0

    @staticmethod
    def _alike(ticket: CompiledTicket, classes: Partition) -> list[list[Place]]:
        """The places of a submission, class by class."""
        found: dict[int, list[Place]] = {}
        for place in ticket.matching.places:
            found.setdefault(classes.place[id(place)], []).append(place)
        return list(found.values())

    def _make_room(self, runs: Sequence[CompiledRun], places: Sequence[Place]) -> None:
        """See that the tables have room for runs and places: they are big, and grow once rather than piece by piece."""
        different = {id(run.ops): len(run.ops) for run in runs}
        priced = [priced for place in places for priced in self._folder.priced(place) if priced is not None]
        self._calendar.memory.make_room(
            {
                c.OPS: sum(different.values()),
                c.SPANS: sum(run.program.count for run in runs),
                c.SEMAPHORES: sum(len(run.timeline.semaphores) for run in runs),
                c.LINKS: sum(len(run.program.links) for run in runs),
                c.USES: sum(len(one.share.resources) for one in priced),
                **dict.fromkeys((c.RUNS, c.INBOXES, c.PARTS), len(runs)),
            }
        )

    def _enter_meetings(self, ticket: CompiledTicket, classes: Partition, alike: Sequence[Sequence[Place]]) -> None:
        """Write the exchanges of every class of places."""
        ticket.bases, ticket.meetings, tables, count = {}, [], [np.zeros((0, c.MEETING_COLUMNS), np.int64)], 0
        for places in alike:
            ticket.bases |= dict.fromkeys(map(id, places), count)
            ticket.meetings.append((places[0], count))
            tables.append(self._meetings(ticket, places, classes))
            count += places[0].count
        table = np.concatenate(tables)
        first = self._calendar.memory.append(c.MEETINGS, table)
        ticket.bases = {place: base + first for place, base in ticket.bases.items()}
        ticket.meetings = [(place, base + first) for place, base in ticket.meetings]

    def _enter_run(self, ticket: CompiledTicket, run: CompiledRun, ops: int, links: Ints) -> None:
        memory, rank, machines = self._calendar.memory, run.submission.rank, self._machines
        run.out = memory.append(c.SPANS, np.full((run.program.count, c.SPAN_COLUMNS), NONE))
        run.semaphores = memory.append(c.SEMAPHORES, np.tile([0, NONE], (len(run.timeline.semaphores), 1)))
        run.first_link, run.links = memory.append(c.LINKS, links), len(links)
        order = ticket.number * machines.orders + machines.orders_of(rank, 0)[1]  # of its first queue; others follow
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
        memory = self._calendar.memory
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
            rank, queue = divmod(slot, len(self._queue_names))
            row[c.M_ORDER] = ticket.number * self._machines.orders + self._machines.orders_of(rank, queue)[0]
            if priced is None:
                row[c.MEMBERS] += 1  # it never starts
            else:
                self._price(row, priced, place.offers[number].is_eager)
                row[c.M_SHARE] = self._folder.share(places, number, classes)
                if row[c.M_SHARE] != NONE:
                    ticket.shares.append(row[c.M_SHARE])
                    uses = self._calendar.shares.uses_of(row[c.M_SHARE])
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
        standing = {int(classes.standing[member.rank]): member for member in place.members if member.sends}
        standing = standing or {int(classes.standing[member.rank]): member for member in place.members}
        rank = min(standing)
        return rank * len(self._queue_names) + standing[rank].queue

    def _nodes_for(self, place: Place, count: int) -> int:
        """Where a group keeps its uses; exchanges of one group never overlap, for its members come one by one."""
        key = (place.ranks, place.is_transfer)
        first, room = self._nodes.get(key, (0, 0))
        if room < count:
            first = self._calendar.reserve_nodes(count)
            self._nodes[key] = (first, count)
        return first
