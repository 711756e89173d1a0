"""What ways cost to many goals at once; goals that are reached through the same switches share their answer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from .search import cheapest
from .topology import Topology

Ints = np.ndarray[Any, np.dtype[Any]]
MAX_KNOWN = 1 << 24  # costs that are kept
Gateways = tuple[bytes, bytes]  # switches with a link to a card, and the costs of these links
Place = int | Gateways  # a node, or what stands for all cards behind some switches


class Distances:
    """Costs of the cheapest ways over the links `up`, which cost `costs` each (by link id).

    Cards of one unit (a package) that the same switches reach at the same costs are as far from every node outside of
    it as those switches are, so that one search serves all that hang on them, in whatever unit.
    """

    def __init__(self, topology: Topology, up: Ints, costs: Ints, shared: bool) -> None:
        self._topology, self._costs, self._shared = topology, costs, shared
        source, target = topology.columns.source, topology.columns.target
        self._source, self._target, self._up = source, target, up
        order = up[np.argsort(target[up], kind="stable")]
        self._entering, self._first = order, np.searchsorted(target[order], np.arange(topology.nodes + 1))
        joined = bool(((source[up] < topology.cards) & (target[up] < topology.cards)).any())
        self._unit = topology.shape[-1] if joined and len(topology.shape) > 1 else 1  # cards that know short cuts
        self._gateways: dict[int, Gateways | None] = {}
        self._known: dict[Place, Ints] = {}

    def rows(self, start: Ints, goal: Ints) -> tuple[Ints, list[Place]]:
        """(the number of each flow's row, what the rows are to): flows of one row may be walked by the same costs."""
        goals, which = np.unique(goal, return_inverse=True)
        inside = (start // self._unit == goal // self._unit) & (start < self._topology.cards)
        numbers: dict[Place, int] = {}
        alone = np.zeros(len(goals), bool)
        alone[which[inside]] = True
        own = [
            numbers.setdefault(g, len(numbers)) if needed else -1
            for g, needed in zip(goals.tolist(), alone, strict=True)
        ]
        far = [numbers.setdefault(self._far(g), len(numbers)) for g in goals.tolist()]
        return np.where(inside, np.array(own, np.int64)[which], np.array(far, np.int64)[which]), list(numbers)

    def _far(self, goal: int) -> Place:
        """What stands for a goal seen from outside its unit: its gateways, if all of the unit have them, or itself."""
        if not self._shared or goal >= self._topology.cards:
            return goal
        unit = goal // self._unit
        if unit not in self._gateways:
            of_all = {self._gateways_of(card, unit) for card in range(unit * self._unit, (unit + 1) * self._unit)}
            self._gateways[unit] = of_all.pop() if len(of_all) == 1 else None
        return self._gateways[unit] or goal

    def _gateways_of(self, card: int, unit: int) -> Gateways | None:
        links = self._entering[self._first[card] : self._first[card + 1]]
        sources = self._source[links]
        outside = sources // self._unit != unit if self._unit > 1 else np.ones(len(links), bool)
        outside |= sources >= self._topology.cards
        links, sources = links[outside], sources[outside]
        if not len(links) or sources.min() < self._topology.cards:
            return None  # another card may know a shorter way
        order = np.argsort(sources, kind="stable")
        return sources[order].tobytes(), self._costs[links[order]].tobytes()

    def to(self, places: Sequence[Place]) -> Ints:
        """Costs from every node, float64 [places, nodes]; infinite where there is no way."""
        found: dict[Place, Ints] = {}
        missing = []
        for place in places:
            row = self._known.get(place)
            if row is None:
                missing.append(place)
            else:
                found[place] = row
        if missing:
            found.update(zip(missing, self._searched(missing), strict=True))
        if len(self._known) + len(missing) > MAX_KNOWN // self._topology.nodes:
            self._known.clear()
        self._known.update((place, found[place]) for place in missing)
        return np.stack([found[place] for place in places])

    def _searched(self, places: Sequence[Place]) -> Ints:
        """Costs from every node, by searches that begin where ways end, or at a node beyond some gateways."""
        nodes, (first, sources, costs) = self._topology.nodes, self._turned_round
        hubs = [place for place in places if not isinstance(place, int)]
        wanted = [place for place in places if isinstance(place, int)] + list(range(nodes, nodes + len(hubs)))
        ends = [np.frombuffer(hub[0], np.int64) for hub in hubs]
        first = np.concatenate((first, first[-1] + np.cumsum([len(some) for some in ends], dtype=np.int64)))
        columns = np.concatenate((sources, *ends))
        weights = np.concatenate((costs, *(np.frombuffer(hub[1], float) for hub in hubs)))
        found: Ints = cheapest(first, columns, weights, np.array(wanted, np.int64))[:, :nodes]
        order = sorted(range(len(places)), key=lambda place: not isinstance(places[place], int))
        return found[np.argsort(order)]

    @cached_property
    def _turned_round(self) -> tuple[Ints, Ints, Ints]:
        """The links that are up, from their targets to their sources, row by row; of parallel ones the cheapest."""
        keys = self._target[self._up] * self._topology.nodes + self._source[self._up]
        order = np.lexsort((self._costs[self._up], keys))
        kept = self._up[order[np.diff(keys[order], prepend=-1) != 0]]
        first = np.searchsorted(self._target[kept], np.arange(self._topology.nodes + 1))
        return first, self._source[kept], np.asarray(self._costs[kept], float)
