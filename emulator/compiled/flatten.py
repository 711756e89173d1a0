"""Programs and what they ask of cards as rows of numbers: entries, waits and shares."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from ..calendar.activity import Demand
from ..calendar.resource_columns import Resources
from ..calendar.shares import share_of
from ..calendar.solver import Ints
from ..card import Action
from ..digest import digest_of
from ..timeline import Timeline
from .machine import (
    COLLECTIVE,
    ENTRIES,
    FLOW,
    HALT,
    NONE,
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
LINKS = [ACTIONS[action] for action in LINKED]


class FlatProgram:
    """A timeline's entries as rows: `parts[q]` are the first and the last but one of a queue of the card.

    `entries` says which entry of the timeline each row is, `queue` in which queue of the card it stands, and `calls`,
    `positions` and `sites` what it executes; `links` are the rows of exchanges in their order, queue by queue.
    """

    def __init__(self, timeline: Timeline, actions: Ints, queues: Sequence[str], memory: Memory) -> None:
        """`actions` are what is done at each site, by its number in the order of `Action`."""
        self.timeline = timeline
        known, own = timeline.entries, {name: n for n, name in enumerate(timeline.program.queues)}
        parts = [known.parts[own[name]].tolist() if name in own else (0, 0) for name in queues]
        lengths = np.array([stop - first for first, stop in parts], np.int64)
        stops = np.cumsum(lengths)
        self.entries: Ints = np.concatenate([np.arange(first, stop) for first, stop in parts])
        self.count = len(self.entries)
        self.queue: Ints = np.repeat(np.arange(len(queues)), lengths)
        self.sites: Ints = known.site[self.entries]
        self.calls: Ints = known.call[self.entries]
        self.positions: Ints = known.position[self.entries]
        acts = actions[self.sites]
        self.links: Ints = np.flatnonzero(np.isin(acts, LINKS))
        link = np.full(self.count, NONE, np.int64)
        link[self.links] = np.arange(len(self.links))
        first_wait = memory.append(WAITS, known.asked) + known.first_wait
        columns = known.own, first_wait, known.wait_count, known.semaphore, known.counts
        table = np.stack((self.sites, acts, *(column[self.entries] for column in columns), link), axis=1)
        self.first = memory.append(ENTRIES, table)
        self.parts: Ints = self.first + np.stack((np.concatenate(([0], stops[:-1])), stops), axis=1)
        self.queues_of_card = tuple(queues)
        self.queues = int(np.count_nonzero(self.parts[:, 0] != self.parts[:, 1]))


class Shares:
    """Shares as rows, kept by demand."""

    def __init__(self, resources: Resources, memory: Memory) -> None:
        self.resources, self.memory = resources, memory
        self._known: dict[Hashable, int] = {}
        self._rows: dict[tuple[int, int, bytes, bytes], int] = {}

    def of(self, demand: Demand) -> int:
        """The row of a demand's share; its resources stand there with the indices that they have in the demand."""
        key = demand.key
        found = self._known.get(key)
        if found is None:
            share = share_of(demand, self.resources)
            uses = np.stack(share.columns, axis=1)
            units = np.array([unit.index for unit in share.exclusive], np.int64)
            found = self._known[key] = self.add(share.bound, uses, units)
        return found

    def add(self, bound: int, uses: Ints, units: Ints) -> int:
        """A share that stays: uses [n, 3] are resources, coefficients and loads, `units` those that it must own."""
        key = (bound, len(uses), digest_of(uses), digest_of(units))
        found = self._rows.get(key)
        if found is None:
            found = self._rows[key] = self.put(bound, uses, units)
        return found

    def put(self, bound: int, uses: Ints, units: Ints) -> int:
        """As `add`, of a share that is the caller's own until it releases it."""
        first_use, first_unit = self.memory.append(USES, uses.reshape(-1, 3)), self.memory.append(UNITS, units)
        row = (bound, first_use, len(uses), first_unit, len(units))
        return self.memory.append(SHARES, np.array([row], np.int64))

    def release(self, row: int) -> None:
        """Nobody uses a share any more that was put there."""
        _, first_use, uses, first_unit, units = self.memory.rows(SHARES)[row].tolist()
        self.memory.release(USES, first_use, uses)
        self.memory.release(UNITS, first_unit, units)
        self.memory.release(SHARES, row, 1)

    def uses_of(self, row: int) -> int:
        """How many resources a share has to do with."""
        return int(self.memory.rows(SHARES)[row, USE_COUNT])
