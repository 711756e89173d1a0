"""Which activities must be divided anew, and at what speed each goes on: the flowing ones, kept in arrays in place."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any, NamedTuple

import numpy as np
import simpy

from .activity import Account, Running, now_ps
from .flows import (
    BOUND,
    CONCERNED,
    COUPLED,
    DUE,
    FLIPPED,
    HEAD,
    HELD,
    HELD_AT,
    HELD_BY,
    HELD_NEXT,
    HELD_PS,
    HELD_SINCE,
    HOLDER,
    IN_HEAP,
    LEVEL,
    MADE,
    NONE,
    RATE,
    RESOURCE_COLUMNS,
    ROOM,
    SINCE,
    SLOT,
    SLOT_COLUMNS,
    TOTAL,
    USED_HELD,
    Columns,
    apply,
    forget,
    gather,
    join,
    leave,
)
from .refill import LOOKS, PATIENCE, learn, learn_levels, refill
from .resources import Resource, room_of
from .solver import NO_LEVEL, Ints, Members, solve

NEVER = 1 << 200  # picoseconds
SMALL = 64  # rows of arrays at first; they double

Array = np.ndarray[Any, Any]


class Expected(NamedTuple):
    """The end that comes first: when, and of which activity, by the order of their start where two end together."""

    at_ps: int
    sequence: int
    running: Running | None


NOTHING = Expected(NEVER, 0, None)


class Division:
    """The activities that flow, and the walk over those that a change reaches.

    One that starts to flow is `fresh` until the next division, and costs nothing more if it ends before: while no
    resource is short, there is none. The others have a slot in the arrays, which hold their speed and account.
    """

    def __init__(self, env: simpy.Environment) -> None:
        self._env = env
        self._mark = 0  # whoever bears it has been visited in this round
        self._resources: list[Resource] = []
        self._in_table = 0  # how many of them are in the arrays
        self.fresh: dict[Running, None] = {}
        self._running: list[Running | None] = []  # by slot
        self._free_slots: list[int] = []
        self._free_nodes: defaultdict[int, list[int]] = defaultdict(list)  # first nodes, by how many there are
        self._used_nodes = 0
        self._first: Expected | None = None  # the end that comes first, if that has been found
        self._priorities: Counter[int] = Counter()  # of the activities in the arrays
        self._levels_known = True  # not while priorities differ: `refill` knows but one
        self._slots, self._floats = zeros(SMALL, SLOT_COLUMNS), np.zeros((SMALL, 2))
        self._nodes, self._table, self._held = zeros(SMALL, 6), zeros(SMALL, RESOURCE_COLUMNS), zeros(SMALL, 3)
        self._heap, self._counts = zeros(SMALL), np.array([0, NONE, 0, 0])
        self._bind()

    # resources

    def add_resource(self, resource: Resource) -> None:
        """A resource, by the index it has; without members."""
        self._resources.append(resource)

    def set_room(self, resource: Resource) -> None:
        """Its capacity has changed."""
        if resource.index < self._in_table:
            self._table[resource.index, ROOM] = room_of(resource)

    def _enter_resources(self) -> None:
        """Enter those that were added since the last division into the arrays, all at once."""
        first, count = self._in_table, len(self._resources)
        if count > len(self._table):
            self._table = longer(self._table, count)
            self._bind()
        rows = self._table[first:count]
        rows[:] = 0
        rows[:, HEAD], rows[:, LEVEL], rows[:, MADE] = NONE, NO_LEVEL, NO_LEVEL
        rows[:, ROOM] = [room_of(resource) for resource in self._resources[first:]]
        self._in_table = count

    # activities

    def drop(self, running: Running) -> None:
        """An activity flows no more; what it knew of itself in the arrays is handed to it."""
        slot = running.slot
        if slot < 0:
            self.fresh.pop(running, None)
            return
        self._first = None
        first, stretch = leave(self._arrays, slot, now_ps(self._env))
        running.leave_slot(self.account(slot), self._stretches(stretch))
        if stretch != NONE:
            forget(self._arrays, slot)
        self._running[slot] = None
        self._priorities[running.priority] -= 1
        if not self._priorities[running.priority]:
            del self._priorities[running.priority]
        self._free_slots.append(slot)
        self._free_nodes[len(running.share.uses)].append(first)

    def due_ps(self, slot: int) -> int:
        """When an activity ends, as things stand; -1 if that is not expected."""
        return int(self._slots[slot, DUE])

    def account(self, slot: int) -> Account:
        """How an activity flows."""
        speed, remaining_ps = self._floats[slot].tolist()
        return Account(speed, remaining_ps, int(self._slots[slot, SINCE]))

    def held(self, slot: int) -> tuple[int, int, dict[int, int]]:
        """Who holds an activity now and since when, and for how long each has before."""
        holder, since, stretch = self._slots[slot, [HOLDER, HELD_SINCE, HELD]].tolist()
        return holder, since, self._stretches(stretch)

    def expected(self) -> Expected:
        """The end that comes first, of those in the arrays; NOTHING if there is none."""
        if self._first is None:
            self._first = NOTHING
            if self._counts[IN_HEAP]:
                slot = self._heap[0]
                running = self._running[slot]
                assert running is not None
                self._first = Expected(int(self._slots[slot, DUE]), running.sequence, running)
        return self._first

    def standing(self) -> list[tuple[Running, int]]:
        """Activities without speed, by resource that holds them, then in order of their start."""
        found = [
            (int(self._slots[slot, HOLDER]), running.sequence, running)
            for slot, running in enumerate(self._running)
            if running is not None and self._slots[slot, DUE] == NONE
        ]
        return [(running, holder) for holder, _, running in sorted(found, key=lambda each: each[:2])]

    def _join(self, running: Running) -> None:
        columns = running.share.columns
        count = len(columns[0])
        slot = self._free_slots.pop() if self._free_slots else self._new_slot()
        free = self._free_nodes[count]
        first = free.pop() if free else self._new_nodes(count)
        share = (first, running.share.bound, running.weight, running.priority, running.sequence)
        _, remaining_ps, since_ps = running.account
        join(self._arrays, slot, columns, share, running.due_ps, since_ps, remaining_ps)
        running.version += 1  # the agenda's entry is void
        self._running[slot] = running
        self._priorities[running.priority] += 1
        running.take_slot(self, slot)

    def _new_slot(self) -> int:
        slot = len(self._running)
        self._running.append(None)
        if slot >= len(self._slots):
            self._slots, self._floats = longer(self._slots, slot + 1), longer(self._floats, slot + 1)
            self._heap = longer(self._heap, slot + 1)
            self._bind()
        return slot

    def _new_nodes(self, count: int) -> int:
        first, self._used_nodes = self._used_nodes, self._used_nodes + count
        if self._used_nodes > len(self._nodes):
            self._nodes = longer(self._nodes, self._used_nodes)
            self._bind()
        return first

    def _stretches(self, stretch: int) -> dict[int, int]:
        found = {}
        while stretch != NONE:
            row = self._held[stretch].tolist()
            found[row[HELD_BY]] = row[HELD_PS]
            stretch = row[HELD_NEXT]
        return found

    # the round

    def divide(self, dirty: list[Resource]) -> None:
        """Give everybody whom a change at the dirty resources reaches its speed, from now on."""
        now = now_ps(self._env)
        self._mark += 1
        if self._in_table < len(self._resources):
            self._enter_resources()
        for running in self.fresh:
            self._join(running)
        self.fresh.clear()
        self._make_room_for_stretches()
        for resource in dirty:
            resource.dirty = False
        changed = np.array([resource.index for resource in dirty], np.int64)
        if len(self._priorities) > 1:
            self._levels_known = False
            members = self._fill(changed)
        elif not self._levels_known:
            self._levels_known = True
            members = self._fill(np.flatnonzero(self._table[: len(self._resources), TOTAL]))
        else:
            budget = LOOKS + PATIENCE * self._used_nodes
            members, flipped = refill(self._arrays, changed, self._mark, self._found, self._scratch, budget)
            self._flip(flipped)
            if members < 0:
                self._mark += 1
                members = self._fill(changed)
        if members:
            apply(self._arrays, self._found, members, now)
        self._first = None

    def _fill(self, changed: Ints) -> int:
        """Divide from nothing among all that hang together with the changed resources; returns how many members."""
        found = self._found
        members, short, flipped = gather(self._arrays, changed, self._mark, found, self._columns)
        self._flip(flipped)
        if not short:
            found[RATE, :members] = self._slots[found[SLOT, :members], BOUND]
            found[HELD_AT, :members] = NONE
            return members
        columns, room = self._columns
        columns = columns._replace(priority=columns.priority[:members], bound=columns.bound[:members])
        solve(columns, room[:short], found[RATE], found[HELD_AT])
        learn(self._arrays, members, short, found)
        if self._levels_known:
            learn_levels(self._arrays, found[CONCERNED, :short], self._scratch)
        return members

    def _flip(self, flipped: int) -> None:
        """Let resources know that they began or ceased to be short."""
        if not flipped:
            return
        for index in self._found[FLIPPED, :flipped].tolist():
            self._resources[index].coupled = bool(self._table[index, COUPLED])

    def _make_room_for_stretches(self) -> None:
        """Each division, and then each end, may begin a stretch of every activity."""
        needed = int(self._counts[USED_HELD]) + 2 * len(self._running)
        if needed > len(self._held):
            self._held = longer(self._held, needed)
            self._bind()

    def _bind(self) -> None:
        """The arrays as compiled code takes them, after one has grown."""
        self._arrays = (self._slots, self._floats, self._nodes, self._table, self._held, self._heap, self._counts)
        slots, nodes, resources = len(self._slots), len(self._nodes), len(self._table)
        columns = Members(*(zeros(n) for n in (slots, slots, slots, slots + 1, nodes, nodes)))
        self._columns = Columns(columns, zeros(resources))
        self._found = zeros(5, max(slots, resources))
        self._scratch = zeros(4, slots), zeros(2, 4 * resources)


def zeros(*shape: int) -> Ints:
    """An int64 array."""
    return np.zeros(shape, np.int64)


def longer(array: Array, rows: int) -> Array:
    """The array with at least so many rows, and twice as many as before; the new ones are zeros."""
    grown = np.zeros((max(rows, 2 * len(array)), *array.shape[1:]), array.dtype)
    grown[: len(array)] = array
    return grown
