"""The compiled calendar: resources, memory and the clock, and the one door to the loop."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...isa.errors import ConfigError
from ..calendar.engine import too_many
from ..calendar.flows import HEAD, LEVEL, MADE, PLACE, RESOURCE_COLUMNS, ROOM, SLOT_COLUMNS, Columns
from ..calendar.flows import HELD as HELD_STRETCH
from ..calendar.flows import HOLDER as HOLDER_NOW
from ..calendar.resource_columns import KINDS, Resources
from ..calendar.resources import COEFFICIENT_BITS, Resource, room_of
from ..calendar.solver import NO_LEVEL, Ints, Members
from ..card_queue import HELD_BOUND
from ..span import BOUNDS
from . import machine as c
from . import numba_tables  # noqa: F401  (loads them)
from .activities import OWN_NODES, touch
from .flatten import Shares
from .loop import run_until
from .machine import NONE, Machine, Memory

PRIORITIES = 1 << 12  # different ones in flight at a time
PER_SUBMISSION = (c.OPS, c.LINKS, c.SEMAPHORES, c.RUNS, c.MEETINGS, c.TICKETS, c.SPANS, c.INBOXES, c.PARTS)


class CompiledCalendar:
    """Queues of cards and the resources they share, as tables that the loop runs over."""

    def __init__(self) -> None:
        self.resources = Resources()
        self.memory = Memory()
        self.shares = Shares(self.resources, self.memory)
        self._machine: Machine | None = None
        self._nodes = 0

    # resources

    def add_resource(self, name: str, capacity_per_s: int | None, kind: str, exclusive: bool = False) -> int:
        """As `Calendar.add_resource`; all are added before the first program."""
        return self.resources.add(name, capacity_per_s, kind, exclusive).index

    def add_resources(self, name_of: Callable[[int], str], capacities_per_s: Ints, kind: str) -> range:
        """As `Calendar.add_resources`."""
        return self.resources.add_many(name_of, capacities_per_s, kind)

    def set_capacity(self, resource: int, capacity_per_s: int) -> None:
        """Change a capacity from now on, 0 for dead; what flows is slowed or sped up at once, without a stall."""
        if not 0 <= resource < len(self.resources):
            raise ConfigError(f"no resource has index {resource}; there are {len(self.resources)}")
        self.resources[resource].set_capacity(capacity_per_s)
        room = room_of(self.resources[resource])
        self._table[resource, ROOM] = self.memory.rows(c.RESOURCES)[resource, c.ROOM] = room
        touch(self.machine.mem, resource)

    @property
    def now_ps(self) -> int:
        """The time."""
        return int(self.memory.mem[c.NOW])

    @property
    def activities(self) -> int:
        """How many activities have ended."""
        return int(self.memory.mem[c.ACTIVITIES])

    # tables

    def begin(self, cards: int, queues: int) -> None:
        """Make the tables of so many cards with so many queues each; all resources are there."""
        self._make_memory(cards * queues, queues)
        self._make_division(cards * queues)

    def _make_memory(self, slots: int, queues: int) -> None:
        memory, resources = self.memory, len(self.resources)
        for name, columns in (
            (c.INBOXES, queues), (c.PARTS, 2 * queues), (c.ENTRIES, c.ENTRY_COLUMNS), (c.WAITS, 2),
            (c.OPS, c.OP_COLUMNS), (c.SHARES, c.SHARE_COLUMNS), (c.USES, c.USE_COLUMNS), (c.UNITS, 1),
            (c.RUNS, c.RUN_COLUMNS), (c.LINKS, 1), (c.MEETINGS, c.MEETING_COLUMNS), (c.SEMAPHORES, 2),
            (c.SPANS, c.SPAN_COLUMNS), (c.TICKETS, c.TICKET_COLUMNS),
        ):  # fmt: skip
            memory.add_table(name, columns, 64)
        for name, columns, rows in (
            (c.QUEUES, c.QUEUE_COLUMNS, slots), (c.ACTIVITY, c.ACTIVITY_COLUMNS, slots),
            (c.RESOURCES, c.RESOURCE_COLUMNS, resources), (c.READY_LIST, 1, slots), (c.WAITING_LIST, 1, slots),
            (c.DIRTY_LIST, 1, resources), (c.FRESH_LIST, 1, slots), (c.PENDING_HEAP, c.PENDING_COLUMNS, 4 * slots),
            (c.PRIORITY_LIST, 2, PRIORITIES),
        ):  # fmt: skip
            memory.add_table(name, columns, rows)
            memory.reserve(name, rows)
        self._clear_queues()
        memory.mem[[c.FAULT, c.LEVELS_KNOWN, c.QUEUES_A_CARD]] = NONE, 1, queues

    def _clear_queues(self) -> None:
        """No queue executes anything and nobody owns a unit."""
        memory = self.memory
        memory.rows(c.QUEUES)[:, [c.RUN, c.INBOX, c.INBOX_LAST, c.NEXT_BLOCKED, c.BLOCKED_ON]] = NONE
        table = memory.rows(c.RESOURCES)
        table[:, c.OWNER] = NONE
        bounds = np.array([BOUNDS.index(HELD_BOUND[kind]) for kind in KINDS])
        table[:, c.KIND_BOUND], table[:, c.ROOM] = bounds[self.resources.columns.kind], self.resources.rooms()

    def _make_division(self, slots: int) -> None:
        resources = len(self.resources)
        self._slots, self._floats = np.zeros((slots, SLOT_COLUMNS), np.int64), np.zeros((slots, 2))
        self._slots[:, [PLACE, HELD_STRETCH, HOLDER_NOW]] = NONE
        self._heap, self._counts = np.zeros(slots, np.int64), np.array([0, NONE, 0, 0])
        self._held = np.zeros((4 * slots, 3), np.int64)
        self._table = np.zeros((resources, RESOURCE_COLUMNS), np.int64)
        self._table[:, HEAD], self._table[:, LEVEL], self._table[:, MADE] = NONE, NO_LEVEL, NO_LEVEL
        self._table[:, ROOM] = self.resources.rooms()
        self._nodes = slots * OWN_NODES
        self._node_table: Ints = np.zeros((self._nodes, 6), np.int64)

    def reserve_nodes(self, count: int) -> int:
        """Room for a group's uses of resources; returns the first node."""
        first, self._nodes = self._nodes, self._nodes + count
        if self._nodes > len(self._node_table):
            grown = np.zeros((max(self._nodes, 2 * len(self._node_table)), 6), np.int64)
            grown[:first] = self._node_table[:first]
            self._node_table = grown
            self._machine = None
        return first

    @property
    def machine(self) -> Machine:
        """All tables as compiled code takes them."""
        if self._machine is None:
            self._machine = self._bound()
        elif self._machine.mem is not self.memory.mem:
            self._machine = self._machine._replace(mem=self.memory.mem)
        return self._machine

    def _bound(self) -> Machine:
        slots, nodes, resources = len(self._slots), len(self._node_table), len(self._table)
        columns = Members(*(np.zeros(n, np.int64) for n in (slots, slots, slots, slots + 1, nodes, nodes)))
        return Machine(
            mem=self.memory.mem,
            flows=(self._slots, self._floats, self._node_table, self._table, self._held, self._heap, self._counts),
            columns=Columns(columns, np.zeros(resources, np.int64)),
            found=np.zeros((5, max(slots, resources)), np.int64),
            scratch=(np.zeros((4, slots), np.int64), np.zeros((2, 4 * resources), np.int64)),
        )

    def forget_programs(self) -> None:
        """Nothing is in flight: runs, meetings and spans are forgotten, and their indices used anew."""
        self.memory.clear(*PER_SUBMISSION)

    def rewind(self, now_ps: int) -> None:
        """Go back to a time at which nothing was in flight; programs and shares stay where they are."""
        self.forget_programs()
        memory = self.memory
        memory.mem[[c.READY, c.WAITERS, c.DIRTY, c.ROUND_DUE, c.FRESH, c.PENDING, c.PRIORITIES]] = 0
        memory.mem[[c.NOW, c.FAULT, c.LEVELS_KNOWN]] = now_ps, NONE, 1
        memory.rows(c.QUEUES)[:], memory.rows(c.ACTIVITY)[:], memory.rows(c.RESOURCES)[:] = 0, 0, 0
        self._clear_queues()
        nodes = len(self._node_table), self._nodes
        self._make_division(len(self._slots))
        self._node_table, self._nodes = np.zeros((nodes[0], 6), np.int64), nodes[1]
        self._machine = None

    # time

    def run(self, ticket: int = NONE, until_ps: int = NONE) -> int:
        """Let time pass; returns TICKET_DONE, REACHED or DRY (`loop.run_until`)."""
        while True:
            reason = int(run_until(self.machine, ticket, until_ps))
            if reason == c.GROW:
                grown = np.zeros((2 * len(self._held), 3), np.int64)
                grown[: len(self._held)] = self._held
                self._held, self._machine = grown, None
            elif reason == c.TOO_MANY:
                raise ConfigError(too_many(self._overfull()))
            else:
                return reason

    def _overfull(self) -> Resource:
        """The resource with more members than can be counted, as it stands."""
        index = int(self.memory.mem[c.FAULT])
        resource = self.resources[index]
        resource.load = int(self.memory.rows(c.RESOURCES)[index, c.TOTAL])
        resource.members = 1 + resource.load // (resource.nominal << COEFFICIENT_BITS)
        return resource
