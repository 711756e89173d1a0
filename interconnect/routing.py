"""The links that transfers take from one node to another, for one pair of nodes or for a million."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import networkx as nx
import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

from ..isa.errors import ConfigError
from .topology import Topology

Ints = np.ndarray[Any, np.dtype[Any]]
Choose = Callable[[Ints, Ints, Ints], Ints]  # (flows, numbers of candidates, branchings so far) -> choices
MAX_COSTS = 1 << 26  # entries of a table of costs, half a gigabyte
MAX_CANDIDATES = 1 << 23
MAX_PAIRS = 1 << 23  # of nodes, for tables with an entry for each
WAYS_INSIDE = 1 << 10  # a link of the next level counts as so many: more than any way inside a unit has
MIX = np.uint64(0x9E3779B97F4A7C15)
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


def sorted_unique(numbers: Ints) -> Ints:
    """np.unique by sorting, which for a million of them is faster than by hashing."""
    ordered = np.sort(numbers)
    return ordered[np.concatenate(([True], ordered[1:] != ordered[:-1]))] if len(ordered) else ordered


def numbered(numbers: Ints, limit: int) -> tuple[Ints, Ints]:
    """The different ones of some numbers below `limit`, ascending, and which of them each one is."""
    if limit > MAX_PAIRS:
        unique = sorted_unique(numbers)
        return unique, np.searchsorted(unique, numbers)
    seen = np.zeros(limit, bool)
    seen[numbers] = True
    return np.flatnonzero(seen), (np.cumsum(seen) - 1)[numbers]


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
        leaving = np.argsort(self.source[self._up], kind="stable")
        self._leaving = self._up[leaving]
        self._first = np.searchsorted(self.source[self._leaving], np.arange(topology.nodes + 1))

    def routes(self, sources: Ints, targets: Ints, fixed: bool = False) -> Routes:
        """The ways from `sources[i]` to `targets[i]`; ConfigError names the cut where there is none."""
        policy = self.topology.routing
        stripes = 1 if fixed else policy.stripes
        start, goal = np.repeat(sources, stripes).astype(np.int64), np.repeat(targets, stripes).astype(np.int64)
        walked = _Walk(len(start))
        pending = np.arange(len(start))
        if policy.policy == "dimension_order" and not fixed:
            pending = self._by_dimension(start, goal, walked)
        choose = _chooser("shortest" if fixed else policy.policy, start, goal, stripes, policy.seed)
        wanted = numbered(goal[pending], self.topology.nodes)[0]
        at_once = max(1, MAX_COSTS // self.topology.nodes)
        for low in range(0, len(wanted), at_once):
            last = wanted[min(low + at_once, len(wanted)) - 1]
            batch = pending[(goal[pending] >= wanted[low]) & (goal[pending] <= last)]
            self._walk(start, goal, batch, choose, walked)
        return walked.routes(stripes)

    def _walk(self, start: Ints, goal: Ints, flows: Ints, choose: Choose, walked: _Walk) -> None:
        here, branchings = start.copy(), np.zeros(len(start), np.int64)
        finder = _Finder(self)
        flows = flows[here[flows] != goal[flows]]
        while len(flows):
            links, counts = finder.next_links(here[flows], goal[flows], flows, branchings, choose)
            walked.add(flows, links)
            here[flows] = self.target[links]
            branchings[flows] += counts > 1
            flows = flows[here[flows] != goal[flows]]

    def _by_dimension(self, start: Ints, goal: Ints, walked: _Walk) -> Ints:
        """Walk all flows that dimension order serves; those that meet a link that is down are returned unwalked."""
        dims, wraps = self.topology.sides, self.topology.wraps
        here = start.copy()
        moving = here != goal
        steps: list[tuple[Ints, Ints]] = []
        failed = np.zeros(len(start), bool)
        while moving.any():
            flows = np.flatnonzero(moving)
            after = _next_by_dimension(here[flows], goal[flows], dims, wraps)
            low, high = self.direct(here[flows], after)
            found = high > low
            failed[flows[~found]] = True
            steps.append((flows[found], self._by_pair[low[found]]))
            here[flows] = after
            moving = (here != goal) & ~failed
        for flows, links in steps:
            walked.add(flows[~failed[flows]], links[~failed[flows]])
        return np.flatnonzero(failed)

    def direct(self, here: Ints, there: Ints) -> tuple[Ints, Ints]:
        """Where in `by_pair` the links from `here[i]` to `there[i]` stand: from low to high, in order of their ids."""
        keys = here * self.topology.nodes + there
        if self._first_of_pair is None:
            return np.searchsorted(self._pairs, keys), np.searchsorted(self._pairs, keys, side="right")
        return self._first_of_pair[keys], self._first_of_pair[keys + 1]

    @cached_property
    def _first_of_pair(self) -> Ints | None:
        """Where in by_pair the links of every pair of nodes begin, while such a table is small."""
        pairs = self.topology.nodes**2
        if pairs > MAX_PAIRS:
            return None
        return np.concatenate(([0], np.cumsum(np.bincount(self._pairs, minlength=pairs))))

    def is_best(self, here: Ints, low: Ints) -> Ints:
        """Whether the link at `low` of by_pair, if it leads to the target, is a way of the fewest links.

        So it is from a switch, and at the innermost level; from a card there may be a longer way further inside.
        """
        level = self.topology.columns.level
        if not level.any():
            return np.ones(len(here), bool)
        found = self._by_pair[np.minimum(low, len(self._by_pair) - 1)]
        return np.asarray((here >= self.topology.cards) | (level[found] == 0))

    @property
    def by_pair(self) -> Ints:
        """Ids of the links that are up, ordered by (source, target), then by id."""
        return self._by_pair

    @cached_property
    def costs(self) -> Ints:
        """What every link costs by the metric, whole numbers."""
        policy = self.topology.routing
        if policy.metric == "hops":
            return np.asarray(float(WAYS_INSIDE) ** self.topology.columns.level)
        size = policy.message_bytes * PS_PER_S
        return np.array(
            [link.latency_ps + -(-size // link.bandwidth_bytes_per_s) for link in self.topology.links], float
        )

    @cached_property
    def reversed_graph(self) -> Any:
        """The graph of the links that are up, turned round; of parallel links the cheapest one."""
        nodes = self.topology.nodes
        order = np.argsort(self.costs[self._up], kind="stable")[::-1]  # the cheapest is written last
        cheapest = dict(
            zip(
                zip(self.target[self._up[order]].tolist(), self.source[self._up[order]].tolist(), strict=True),
                self.costs[self._up[order]].tolist(),
                strict=True,
            )
        )
        rows, columns = np.array(list(cheapest), np.int64).reshape(-1, 2).T
        return csr_array((list(cheapest.values()), (rows, columns)), shape=(nodes, nodes))

    @property
    def degrees(self) -> Ints:
        """How many links that are up leave every node."""
        return np.diff(self._first)

    def leaving(self, nodes: Ints) -> tuple[Ints, Ints]:
        """(which of `nodes`, link id) for every link that leaves one of them, in order of ids."""
        counts = self._first[nodes + 1] - self._first[nodes]
        owner = np.repeat(np.arange(len(nodes)), counts)
        offset = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
        return owner, self._leaving[self._first[nodes][owner] + offset]


class _Walk:
    """Flows' links as they are found, hop by hop."""

    def __init__(self, flows: int) -> None:
        self._flows = flows
        self._hops: list[tuple[Ints, Ints]] = []

    def add(self, flows: Ints, links: Ints) -> None:
        self._hops.append((flows, links))

    def routes(self, stripes: int) -> Routes:
        if not self._hops:
            return Routes(np.zeros(self._flows + 1, np.int64), np.zeros(0, np.int64), stripes)
        flows, links = (np.concatenate(column) for column in zip(*self._hops, strict=True))
        starts = np.concatenate(([0], np.cumsum(np.bincount(flows, minlength=self._flows))))
        return Routes(starts, links[np.argsort(flows, kind="stable")], stripes)


class _Finder:
    """Finds next links; what was found out about a node and a target is used for all flows that meet there."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._targets = np.zeros(0, np.int64)
        self._costs = np.zeros((0, 0))

    def next_links(self, here: Ints, goal: Ints, flows: Ints, branchings: Ints, choose: Choose) -> tuple[Ints, Ints]:
        """(the next link, among how many it was chosen) of every flow."""
        router = self._router
        links, counts = np.empty(len(here), np.int64), np.empty(len(here), np.int64)
        far = np.ones(len(here), bool)
        if router.topology.routing.metric == "hops":
            low, high = router.direct(here, goal)
            near = np.flatnonzero((high > low) & router.is_best(here, low))
            far[near] = False
            counts[near] = (high - low)[near]
            links[near] = router.by_pair[low[near] + choose(flows[near], counts[near], branchings)]
        left = np.flatnonzero(far)
        if len(left):
            wanted = here[left] * router.topology.nodes + goal[left]
            keys, which = numbered(wanted, router.topology.nodes**2)
            starts, candidates = self._candidates(*np.divmod(keys, router.topology.nodes))
            counts[left] = np.diff(starts)[which]
            links[left] = candidates[starts[which] + choose(flows[left], counts[left], branchings)]
        return links, counts

    def _candidates(self, here: Ints, goal: Ints) -> tuple[Ints, Ints]:
        """For each place and target the links that begin a way of least cost, in order of ids (starts, ids)."""
        router = self._router
        self._learn(goal)
        row = np.searchsorted(self._targets, goal)
        lost = np.flatnonzero(~np.isfinite(self._costs[row, here]))
        if len(lost):
            raise ConfigError(_cut(router.topology, int(here[lost[0]]), int(goal[lost[0]])))
        owners, found = [], []
        batch = np.cumsum(router.degrees[here]) // MAX_CANDIDATES
        for number in np.unique(batch):
            part = np.flatnonzero(batch == number)
            owner, links = router.leaving(here[part])
            owner = part[owner]
            rest = self._costs[row[owner], router.target[links]]
            good = rest + router.costs[links] == self._costs[row, here][owner]
            owners.append(owner[good])
            found.append(links[good])
        counts = np.bincount(np.concatenate(owners), minlength=len(here))
        return np.concatenate(([0], np.cumsum(counts))), np.concatenate(found)

    def _learn(self, goal: Ints) -> None:
        targets = numbered(goal, self._router.topology.nodes)[0]
        if not np.isin(targets, self._targets).all():
            router = self._router
            alike = len(router.costs) == 0 or bool((router.costs == 1).all())
            costs = dijkstra(router.reversed_graph, indices=targets, unweighted=alike)
            self._targets, self._costs = targets, np.asarray(costs)


def _chooser(policy: str, start: Ints, goal: Ints, stripes: int, seed: int) -> Choose:
    """How flows choose among candidates; shares of one pair choose neighbours."""
    share = np.arange(len(start)) % stripes

    def nth_digit(number: Ints, counts: Ints, level: Ints) -> Ints:
        return np.asarray(number // np.maximum(counts, 1) ** level)

    def choose(flows: Ints, counts: Ints, branchings: Ints) -> Ints:
        level = branchings[flows]
        base = nth_digit(share[flows], counts, level)
        if policy == "ecmp":
            base = base + (_hash(start[flows], goal[flows], level, seed) % counts.astype(np.uint64)).astype(np.int64)
        elif policy == "by_destination":
            base = base + nth_digit(goal[flows], counts, level)
        return np.asarray(base % counts)

    return choose


def _hash(start: Ints, goal: Ints, level: Ints, seed: int) -> Ints:
    """64 well mixed bits of (start, goal, level, seed): the finaliser of splitmix64, the same everywhere."""
    mixed = np.full(len(start), seed, np.uint64)
    with np.errstate(over="ignore"):
        for value in (start, goal, level):
            mixed = mixed + value.astype(np.uint64) + MIX
            mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            mixed = mixed ^ (mixed >> np.uint64(31))
    return mixed


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


def _cut(topology: Topology, source: int, target: int) -> str:
    graph: Any = nx.DiGraph()
    graph.add_nodes_from(range(topology.nodes))
    graph.add_edges_from((link.source, link.target) for link in topology.links if not link.down)
    near = {source} | nx.descendants(graph, source)
    far = set(range(topology.nodes)) - near
    down = [link.name for link in topology.links if link.down and link.source in near and link.target in far]
    broken = f" ({', '.join(down[:8])} {'is' if len(down) == 1 else 'are'} down)" if down else ""
    return (
        f"no route from {topology.node_name(source)} to {topology.node_name(target)}: "
        f"no link leads from {topology.names(near)} to {topology.names(far)}{broken}; "
        f"add one, or place the group on one side"
    )
