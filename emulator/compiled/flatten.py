"""Programs and what they ask of cards as rows of numbers: entries, waits, operations and shares."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..calendar.activity import Demand
from ..calendar.resources import Resource
from ..calendar.shares import share_of
from ..calendar.solver import Ints
from ..card import Action, Op
from ..span import BOUNDS
from ..timeline import Timeline
from .machine import (
    COLLECTIVE,
    ENTRIES,
    ENTRY_COLUMNS,
    FLOW,
    HALT,
    NONE,
    OP_COLUMNS,
    RECEIVE,
    SEND,
    SHARES,
    SIGNAL,
    UNITS,
    USE_COUNT,
    USES,
    WAIT,
    WAITS,
    Memory,
)

ACTIONS = {
    Action.FLOW: FLOW,
    Action.WAIT: WAIT,
    Action.SIGNAL: SIGNAL,
    Action.HALT: HALT,
    Action.COLLECTIVE: COLLECTIVE,
    Action.SEND: SEND,
    Action.RECEIVE: RECEIVE,
}
LINKED = (Action.COLLECTIVE, Action.SEND, Action.RECEIVE)


class FlatProgram:
    """A timeline's entries as rows: `parts[q]` are the first and the last but one of a queue of the card.

    `calls`, `positions` and `sites` say what each row is; `links[q]` lists the rows of exchanges in their order.
    """

    def __init__(self, timeline: Timeline, actions: Sequence[Action], queues: Sequence[str], memory: Memory) -> None:
        self.timeline = timeline
        rows: list[tuple[int, ...]] = []
        asked: list[tuple[int, int]] = []
        named: list[tuple[int, int]] = []
        self.parts = np.zeros((len(queues), 2), np.int64)
        self.links: list[tuple[int, int]] = []  # (row, site) of each exchange, by the order in its queue
        self.link_queues: set[str] = set()
        first_wait = memory.count[WAITS]
        for number, name in enumerate(queues):
            self.parts[number, 0] = len(rows)
            for entry in timeline.queues.get(name, ()):
                action = actions[entry.site]
                link = NONE
                if action in LINKED:
                    link = len(self.links)
                    self.links.append((len(rows), entry.site))
                    self.link_queues.add(name)
                semaphore, count = entry.semaphore or (NONE, 0)
                at = first_wait + len(asked)
                asked += entry.waits
                rows.append((entry.site, ACTIONS[action], entry.own, at, len(entry.waits), semaphore, count, link))
                named.append((entry.call, entry.position))
            self.parts[number, 1] = len(rows)
        table = np.array(rows, np.int64).reshape(-1, ENTRY_COLUMNS)
        self.first = memory.append(ENTRIES, table)
        memory.append(WAITS, np.array(asked, np.int64).reshape(-1, 2))
        self.parts += self.first
        self.sites: Ints = table[:, 0].copy()
        self.calls, self.positions = np.array(named, np.int64).reshape(-1, 2).T.copy()
        self.count = len(rows)
        self.queues = int(np.count_nonzero(self.parts[:, 0] != self.parts[:, 1]))


class Shares:
    """Shares as rows, kept by demand."""

    def __init__(self, resources: Sequence[Resource], memory: Memory) -> None:
        self._resources, self._memory = resources, memory
        self._known: dict[tuple[int, tuple[tuple[int, int], ...]], int] = {}

    def of(self, demand: Demand) -> int:
        """The row of a demand's share; its resources stand there with the indices that they have in the demand."""
        key = (demand.alone_ps, demand.amounts)
        found = self._known.get(key)
        if found is None:
            share = share_of(demand, self._resources)
            uses = [(use.resource.index, use.coefficient, use.load) for use in share.uses]
            units = [unit.index for unit in share.exclusive]
            first_use = self._memory.append(USES, np.array(uses, np.int64).reshape(-1, 3))
            first_unit = self._memory.append(UNITS, np.array(units, np.int64))
            row = [(share.bound, first_use, len(uses), first_unit, len(units))]
            found = self._known[key] = self._memory.append(SHARES, np.array(row, np.int64))
        return found

    def uses_of(self, row: int) -> int:
        """How many resources a share has to do with."""
        return int(self._memory.rows(SHARES)[row, USE_COUNT])


def op_rows(ops: Sequence[Op], shares: Shares) -> Ints:
    """Operations as rows, by site."""
    rows = np.zeros((len(ops), OP_COLUMNS), np.int64)
    for site, op in enumerate(ops):
        demand = op.demand
        own = op.action not in LINKED or op.runs_alone
        share = shares.of(demand) if own and demand.alone_ps else NONE
        rows[site] = (demand.fixed_ps, demand.alone_ps, share, BOUNDS.index(op.bound), op.runs_alone)
    return rows
