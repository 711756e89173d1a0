"""What ways cost to many goals at once; goals that are reached through the same switches share their answer."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

from .topology import Topology

Ints = np.ndarray[Any, np.dtype[Any]]
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

    def rows(self, start: Ints, goal: Ints) -> tuple[Ints, list[Place]]:
        """(the number of each flow's row, what the rows are to): flows of one row may be walked by the same costs."""
        goals, which = np.unique(goal, return_inverse=True)
        inside = (start // self._unit == goal // self._unit) & (start < self._topology.cards)
        numbers: dict[Place, int] = {}
        alone = np.zeros(len(goals), bool)
        alone[which[inside]] = True
        own = [numbers.setdefault(g, len(numbers)) if needed else -1 for g, needed in zip(goals.tolist(), alone, strict=True)]
        far = [numbers.setdefault(self._far(g), len(numbers)) for g in goals.tolist()]
        return np.where(inside, np.array(own, np.int64)[which], np.array(far, np.int64)[which]), list(numbers)

    def _far(self, goal: int) -> Place:
        """What stands for a goal as seen from outside its unit: its gateways if all of the unit have them, or itself."""
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

    def to(self, places: list[Place]) -> Ints:
        """Costs from every node, float64 [places, nodes]; infinite where there is no way."""
        nodes, wanted = self._topology.nodes, []
        ends: list[Ints] = []
        costs: list[Ints] = []
        hubs = 0
        for place in places:
            if isinstance(place, int):
                wanted.append(place)
                continue
            wanted.append(nodes + hubs)
            sources = np.frombuffer(place[0], np.int64)
            ends.append(np.stack((np.full(len(sources), nodes + hubs), sources)))
            costs.append(np.frombuffer(place[1], float))
            hubs += 1
        rows, columns = np.concatenate((self._pairs, *ends), axis=1)
        weights = np.concatenate((self._cheapest, *costs))
        graph = csr_array((weights, (rows, columns)), shape=(nodes + hubs, nodes + hubs))
        alike = len(weights) == 0 or bool((weights == 1).all())
        found: Ints = dijkstra(graph, indices=wanted, unweighted=alike)
        return np.ascontiguousarray(found[:, :nodes])

    @cached_property
    def _order(self) -> Ints:
        """Of parallel links the cheapest one each, ordered by (target, source)."""
        keys = self._target[self._up] * self._topology.nodes + self._source[self._up]
        order = np.lexsort((self._costs[self._up], keys))
        ordered = keys[order]
        return self._up[order[np.r_[True, ordered[1:] != ordered[:-1]]]] if len(order) else self._up

    @property
    def _pairs(self) -> Ints:
        """The ends of the links, turned round, int64 [2, pairs]."""
        return np.stack((self._target[self._order], self._source[self._order]))

    @property
    def _cheapest(self) -> Ints:
        return np.asarray(self._costs[self._order], float)
