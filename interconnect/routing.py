"""The links that transfers take from one node to another, for one pair of nodes or for a million."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from ..isa.errors import ConfigError
from .distances import Distances, Place
from .search import cheapest
from .topology import Topology
from .walk import POLICIES, Graph, Rule, walk

Ints = np.ndarray[Any, np.dtype[Any]]
MAX_COSTS = 1 << 25  # entries of a table of costs, with what is known of ways 0.4 GB
WAYS_INSIDE = 1 << 10  # a link of the next level counts as so many: more than any way inside a unit has
PS_PER_S = 10**12


@lru_cache(maxsize=1 << 16)
def route(topology: Topology, source: int, target: int) -> tuple[int, ...]:
    """Ids of the directed links from `source` to `target`, in order; empty from a node to itself.

    By default the route has the fewest links; of several such, the one whose first link has the lowest id, then its
    second, and so on. The topology's `routing` may choose another. It is a pure function of the topology. ConfigError
    for a node that does not exist, or when nothing leads there: then it names the cut. Where transfers are striped,
    this is the way of the first share.
    """
    for node in (source, target):
        if not 0 <= node < topology.nodes:
            raise ConfigError(f"node {node} is not in the topology; its nodes are 0 to {topology.nodes - 1}")
    routes = router(topology).routes(np.array([source]), np.array([target]))
    return tuple(routes.links[: routes.starts[1]].tolist())


@lru_cache(maxsize=64)
def router(topology: Topology) -> Router:
    """The router of a topology, made once."""
    return Router(topology)


@dataclass(frozen=True, eq=False)
class Routes:
    """Ways of many flows: those of flow i are `links[starts[i] : starts[i + 1]]`, in order.

    With `stripes` s, flows i*s to i*s + s - 1 are the shares of pair i.
    """

    starts: Ints
    links: Ints
    stripes: int

    @property
    def hops(self) -> Ints:
        """Links of every flow."""
        return np.diff(self.starts)


class Router:
    """Routes on one topology by its policy; `fixed` takes the lowest link ids instead, so that ways form a tree."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.source, self.target = topology.columns.source, topology.columns.target
        self._up = np.flatnonzero(~topology.columns.down)
        pairs = self.source[self._up] * topology.nodes + self.target[self._up]
        order = np.argsort(pairs, kind="stable")
        self._pairs, self._by_pair = pairs[order], self._up[order]

    def routes(self, sources: Ints, targets: Ints, fixed: bool = False) -> Routes:
        """The ways from `sources[i]` to `targets[i]`; ConfigError names the cut where there is none."""
        policy = self.topology.routing
        start, goal = np.asarray(sources, np.int64), np.asarray(targets, np.int64)
        number = POLICIES.index("shortest" if fixed or policy.policy not in POLICIES else policy.policy)
        rule = Rule(number, 1 if fixed else policy.stripes, policy.seed)
        pairs, parts = np.arange(len(start)), list[tuple[Ints, Ints]]()
        if policy.policy == "dimension_order" and not fixed:
            pairs, parts = self._by_dimension(start, goal)
        row, places = np.zeros(len(start), np.int64), list[Place]()
        far = pairs[~self._is_next(start[pairs], goal[pairs])]
        if len(far):
            row[far], places = self._distances.rows(start[far], goal[far])
        at_once = max(1, MAX_COSTS // self.topology.nodes)
        for first in range(0, max(1, len(places)), at_once):
            mine = pairs if len(places) <= at_once else pairs[row[pairs] // at_once == first // at_once]
            ways = self._by_costs(start[mine], goal[mine], row[mine] - first, places[first : first + at_once], rule)
            if len(mine) == len(start):
                return ways
            flows = (mine[:, None] * rule.stripes + np.arange(rule.stripes)).reshape(-1)
            parts.append((np.repeat(flows, ways.hops), ways.links))
        return _joined(len(start) * rule.stripes, parts, rule.stripes)

    def _by_costs(self, start: Ints, goal: Ints, row: Ints, places: Sequence[Place], rule: Rule) -> Routes:
        costs = self._distances.to(places) if places else np.zeros((1, self.topology.nodes))
        starts, links, lost = walk(start, goal, row, costs, self._graph, rule)
        if lost >= 0:
            raise ConfigError(_cut(self.topology, self._graph, int(start[lost]), int(goal[lost])))
        return Routes(starts, links, rule.stripes)

    def _is_next(self, here: Ints, goal: Ints) -> Ints:
        """Whether a flow is at its goal, or its first link leads there."""
        found = here == goal
        if self._graph.is_direct.any() and len(self._by_pair):
            low, high = self._direct(here, goal)
            link = self._by_pair[np.minimum(low, len(self._by_pair) - 1)]
            found |= (high > low) & self._graph.is_direct[link]
        return np.asarray(found)

    @cached_property
    def _distances(self) -> Distances:
        return Distances(self.topology, self._up, self.costs, shared=self.topology.routing.metric == "hops")

    @cached_property
    def _graph(self) -> Graph:
        """What flows walk on.

        A link to the goal is a way of the fewest links from a switch, and at the innermost level; from a card there may
        be a longer way further inside.
        """
        level = self.topology.columns.level
        is_direct = (self.source >= self.topology.cards) | (level == 0)
        if not level.any():
            is_direct[:] = True
        if self.topology.routing.metric != "hops":
            is_direct[:] = False
        leaving = self._up[np.argsort(self.source[self._up], kind="stable")]
        first = np.searchsorted(self.source[leaving], np.arange(self.topology.nodes + 1))
        return Graph(first, leaving, self._by_pair, self.source, self.target, self.costs, is_direct)

    def _by_dimension(self, start: Ints, goal: Ints) -> tuple[Ints, list[tuple[Ints, Ints]]]:
        """(the pairs that meet a link that is down, which walk otherwise; the flows and links of the other pairs)."""
        dims, wraps = self.topology.sides, self.topology.wraps
        here = start.copy()
        moving = here != goal
        steps: list[tuple[Ints, Ints]] = []
        failed = np.zeros(len(start), bool)
        while moving.any():
            pairs = np.flatnonzero(moving)
            after = _next_by_dimension(here[pairs], goal[pairs], dims, wraps)
            low, high = self._direct(here[pairs], after)
            found = high > low
            failed[pairs[~found]] = True
            steps.append((pairs[found], self._by_pair[low[found]]))
            here[pairs] = after
            moving = (here != goal) & ~failed
        kept = [(pairs[~failed[pairs]], links[~failed[pairs]]) for pairs, links in steps]  # without stripes
        return np.flatnonzero(failed), kept

    def _direct(self, here: Ints, there: Ints) -> tuple[Ints, Ints]:
        """Where in `_by_pair` the links from `here[i]` to `there[i]` stand: from low to high, in order of their ids."""
        keys = here * self.topology.nodes + there
        return np.searchsorted(self._pairs, keys), np.searchsorted(self._pairs, keys, side="right")

    @cached_property
    def costs(self) -> Ints:
        """What every link costs by the metric, whole numbers."""
        policy = self.topology.routing
        if policy.metric == "hops":
            return np.asarray(float(WAYS_INSIDE) ** self.topology.columns.level)
        size = policy.message_bytes * PS_PER_S
        columns = zip(
            self.topology.columns.latency_ps.tolist(), self.topology.columns.bandwidth_bytes_per_s.tolist(), strict=True
        )
        return np.array([latency_ps - (-size // per_s) for latency_ps, per_s in columns], float)


def _joined(flows: int, parts: Sequence[tuple[Ints, Ints]], stripes: int) -> Routes:
    """Routes from (flows, a link of each) as they were found, the links of a flow in order."""
    if not parts:
        return Routes(np.zeros(flows + 1, np.int64), np.zeros(0, np.int64), stripes)
    which, links = (np.concatenate(column) for column in zip(*parts, strict=True))
    starts = np.concatenate(([0], np.cumsum(np.bincount(which, minlength=flows))))
    return Routes(starts, links[np.argsort(which, kind="stable")], stripes)


def _next_by_dimension(here: Ints, goal: Ints, dims: tuple[int, ...], wraps: bool) -> Ints:
    """The neighbour that is nearer in the first coordinate that differs; a tie round a torus goes ahead."""
    after = here.copy()
    undecided = np.ones(len(here), bool)
    stride = int(np.prod(dims))
    for side in dims:
        stride //= side
        at, to = here // stride % side, goal // stride % side
        ahead = (to - at) % side <= side // 2 if wraps else to > at
        moved = (at + np.where(ahead, 1, -1)) % side
        mine = undecided & (at != to)
        after[mine] = (here + (moved - at) * stride)[mine]
        undecided &= ~mine
    return after


def _cut(topology: Topology, graph: Graph, source: int, target: int) -> str:
    ways = graph.first, graph.target[graph.leaving], graph.costs[graph.leaving]
    near = set(np.flatnonzero(np.isfinite(cheapest(*ways, np.array([source]))[0])).tolist())
    far = set(range(topology.nodes)) - near
    down = [link.name for link in topology.links if link.down and link.source in near and link.target in far]
    broken = f" ({', '.join(down[:8])} {'is' if len(down) == 1 else 'are'} down)" if down else ""
    return (
        f"no route from {topology.node_name(source)} to {topology.node_name(target)}: "
        f"no link leads from {topology.names(near)} to {topology.names(far)}{broken}; "
        f"add one, or place the group on one side"
    )
