"""The memory of the compiled calendar: tables of int64 rows in one array, and the names of their columns.

A row is known by its address: `row = mem[QUEUES] + queue * QUEUE_COLUMNS`, then `mem[row + RUN]`. One flat array costs
compiled code neither arguments nor reference counts, which rows of many arrays would cost at every step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from ..calendar.flows import Arrays, Columns
from ..calendar.solver import Ints

NONE = -1

# The clock and its counters, at the start of the memory.
(
    NOW, SEQUENCE, READY, WAITERS, DIRTY, ROUND_DUE, FRESH, PENDING, CLAIM, FAULT, ACTIVITIES, MARK, LEVELS_KNOWN,
    PRIORITIES, QUEUES_A_CARD,
) = range(15)  # fmt: skip
# Where each table begins.
(
    QUEUES, INBOXES, PARTS, ENTRIES, WAITS, OPS, SHARES, USES, UNITS, RUNS, LINKS, MEETINGS, SEMAPHORES, SPANS, TICKETS,
    ACTIVITY, RESOURCES, READY_LIST, WAITING_LIST, DIRTY_LIST, FRESH_LIST, PENDING_HEAP, PRIORITY_LIST,
) = range(15, 38)  # fmt: skip
HEADER = 38

# What an entry of a queue does; the order of `card.Action`.
FLOW, WAIT, SIGNAL, HALT, COLLECTIVE, SEND, RECEIVE = range(7)

# Columns of a queue. `STEP`: what of its entry it is at; `WAITED`: waits of it already seen satisfied.
RUN, PC, END, STEP, WAITED, ISSUED, NEXT_BLOCKED, NEED, BLOCKED_ON, INBOX, INBOX_LAST, IS_READY = range(12)
FETCH, EXECUTING, DISPATCHING, DISPATCHED, MEETING, RECEIVED = range(6)  # steps

# Columns of an entry (of a program), and of a wait.
SITE, ACTION, OWN, FIRST_WAIT, WAIT_COUNT, SEMAPHORE, COUNT, LINK = range(8)
INDEX, REACH = range(2)

# Columns of an operation (of a run): what a site asks of the card; of a share, and of a use.
FIXED, ALONE, SHARE, BOUND, ADDS = range(5)
RATE_BOUND, FIRST_USE, USE_COUNT, FIRST_UNIT, UNIT_COUNT = range(5)
RESOURCE, COEFFICIENT, LOAD = range(3)

# Columns of a run: a program under way on a card. `R_LEFT` of its queues have not ended; `R_AFTER` must be over before.
(
    R_TICKET, R_OPS, R_SEMAPHORES, R_SPANS, R_LINKS, R_BASE, R_WEIGHT, R_PRIORITY, R_ORDER, R_FIRST, R_LEFT, R_AFTER,
) = range(12)  # fmt: skip

# Columns of a meeting. An eager message whose receiver has come before its sender has a fixed part of its own.
(
    MEMBERS, ARRIVED, EARLIEST, LATEST, LATE, STARTED, ENDED, IS_EAGER, FIRST_MEMBER, SLOT, M_NODES, M_FIXED, M_ALONE,
    M_SHARE, M_BOUND, BOTH_FIXED, BOTH_BOUND, M_WEIGHT, M_PRIORITY, M_ORDER,
) = range(20)  # fmt: skip

# Columns of a slot's activity: what it is for, and where it is in its life. A slot is a queue: of an instruction on its
# card alone its own, of an exchange that of its owner.
(
    KIND, PHASE, FLOWED, ARRIVAL, A_SHARE, A_BASE, A_ALONE, A_FIXED, A_BOUND, A_WEIGHT, A_PRIORITY, A_ORDER, A_MEETING,
    NODES, DUE, VERSION, STARTED_AS, FRESH_AT, HELD,
) = range(19)  # fmt: skip
OWN_WORK, GROUP_WORK = range(2)
IDLE, IN_FIXED, AWAITS_UNIT, IS_FRESH, IS_JOINED = range(5)

# Columns of a span: times, the bound's number in `span.BOUNDS`, who was late.
S_ISSUED, S_START, S_END, S_BOUND, S_LATE = range(5)
DISPATCH_BOUND, DEPENDENCY = 4, 5

# Columns of a ticket, of a semaphore, of a resource, of a pending end, and of a priority in use.
LEFT, DONE, HAS_FAILED = range(3)
VALUE, FIRST_BLOCKED = range(2)
KIND_BOUND, OWNER, CLAIMED, IS_DIRTY, TOTAL, ROOM, COUPLED = range(7)
P_DUE, P_SLOT, P_VERSION = range(3)
PRIORITY, IN_USE = range(2)

# How many columns each table has; QUEUE-wide ones have one a queue of a card, PARTS two.
QUEUE_COLUMNS, ENTRY_COLUMNS, OP_COLUMNS, SHARE_COLUMNS, USE_COLUMNS, RUN_COLUMNS = 12, 8, 5, 5, 3, 12
MEETING_COLUMNS, ACTIVITY_COLUMNS, SPAN_COLUMNS, RESOURCE_COLUMNS, PENDING_COLUMNS, TICKET_COLUMNS = 20, 19, 5, 7, 3, 3

# Why the loop returned.
TICKET_DONE, REACHED, DRY, GROW, TOO_MANY = range(5)


class Machine(NamedTuple):
    """The memory, and what dividing resources works on (`calendar.flows`): all that the loop reads and writes."""

    mem: Ints
    flows: Arrays
    columns: Columns
    found: Ints
    scratch: tuple[Ints, Ints]


class Memory:
    """Tables in one array: rows never move within their table; the array grows when one is full."""

    def __init__(self) -> None:
        self.mem: Ints = np.zeros(HEADER, np.int64)
        self._columns: dict[int, int] = {}
        self._room: dict[int, int] = {}
        self.count: dict[int, int] = {}
        self._free: defaultdict[tuple[int, int], list[int]] = defaultdict(list)  # by table and number of rows

    def add_table(self, table: int, columns: int, rows: int) -> None:
        """A table with room for `rows` rows of `columns` columns."""
        self._columns[table], self._room[table], self.count[table] = columns, rows, 0
        self._lay_out()

    def _lay_out(self) -> None:
        """Give every table its room, keeping what stands in it."""
        size = HEADER + sum(self._columns[table] * rows for table, rows in self._room.items())
        grown, at = np.zeros(size, np.int64), HEADER
        grown[:HEADER] = self.mem[:HEADER]
        for table, rows in self._room.items():
            old, length = int(self.mem[table]), self.count[table] * self._columns[table]
            grown[at : at + length] = self.mem[old : old + length]
            grown[table] = at
            at += rows * self._columns[table]
        self.mem = grown

    def make_room(self, more: Mapping[int, int]) -> None:
        """See that tables have room for so many rows more each, laid out once."""
        wanted = {table: self.count[table] + rows for table, rows in more.items()}
        short = {table: rows for table, rows in wanted.items() if rows > self._room[table]}
        if short:
            self._room |= short
            self._lay_out()

    def rows(self, table: int, first: int = 0, count: int | None = None) -> Ints:
        """Rows of a table, as a view [count, columns] that is good until it grows; all of them, unless told."""
        columns = self._columns[table]
        start = int(self.mem[table]) + first * columns
        rows = self.count[table] - first if count is None else count
        return self.mem[start : start + rows * columns].reshape(-1, columns)

    def reserve(self, table: int, rows: int) -> int:
        """Take rows of a table into use, those that were released if there are as many; returns the first's index."""
        free = self._free.get((table, rows))
        if free:
            return free.pop()
        first = self.count[table]
        self.ensure(table, first + rows)
        return first

    def ensure(self, table: int, rows: int) -> None:
        """A table has so many rows in use at least."""
        if rows > self._room[table]:
            self._room[table] = max(rows, 2 * self._room[table])
            self._lay_out()
        self.count[table] = max(rows, self.count[table])

    def append(self, table: int, rows: Ints) -> int:
        """Take rows into use and write them; returns the index of the first."""
        first = self.reserve(table, len(rows))
        self.rows(table, first, len(rows))[:] = rows.reshape(len(rows), self._columns[table])
        return first

    def release(self, table: int, first: int, rows: int) -> None:
        """Rows that were taken into use together are free again."""
        self._free[table, rows].append(first)

    def clear(self, *tables: int) -> None:
        """Forget all rows of tables; the room stays."""
        for table in tables:
            self.count[table] = 0
        for key in [key for key in self._free if key[0] in tables]:
            del self._free[key]
