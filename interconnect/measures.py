"""What a cluster's wires amount to: bisection bandwidth by minimum cuts, diameter over its routes, links by kind."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import networkx as nx
import numpy as np

from .cluster import ClusterSpec
from .levels import build
from .link import Link
from .routing import router
from .topology import Topology

MOST_ROUTES = 1 << 18  # walked for a diameter, some seconds
AT_ONCE = 1 << 16
SOURCE, SINK = -1, -2


@dataclass(frozen=True)
class Cut:
    """Cards parted in two equal halves, and the bandwidth of the narrowest cut between them, the narrower direction."""

    halves: str
    bandwidth_bytes_per_s: int


@dataclass(frozen=True)
class Diameter:
    """The most links, and the longest latency, that a message between two cards meets on its route."""

    hops: int
    latency_ps: int
    method: str


@dataclass(frozen=True)
class LinkKind:
    """Directed links that are alike: of one level, between the same kinds of node, of one speed."""

    level: str
    ends: str
    count: int
    bandwidth_bytes_per_s: int
    latency_ps: int
    down: int


def bisections(topology: Topology) -> tuple[Cut, ...]:
    """The natural halves and their exact minimum cuts, narrowest first; none where the cards have no two equal halves.

    The first half of the cards by number against the second, which in a mesh or torus halves the first dimension; there
    also along every other even dimension. Switches stand on whichever side makes the cut narrowest, which is what a
    maximum flow finds.
    """
    cards = np.arange(topology.cards)
    halves = {f"cards 0-{topology.cards // 2 - 1} | the rest": cards < topology.cards // 2}
    stride = topology.cards
    for number, side in enumerate(topology.dims):
        stride //= side
        if side % 2 == 0 and number:  # along the first one they part by number already
            halves[f"dimension {number} halved"] = cards // stride % side < side // 2
    if topology.cards < 2 or topology.cards % 2:
        return ()
    return tuple(sorted((Cut(name, _between(topology, near)) for name, near in halves.items()), key=_bandwidth))


def _between(topology: Topology, near: np.ndarray[Any, Any]) -> int:
    """What passes between two halves in the direction in which less does."""
    first, second = np.flatnonzero(near).tolist(), np.flatnonzero(~near).tolist()
    return min(cut_bytes_per_s(topology, first, second), cut_bytes_per_s(topology, second, first))


def _bandwidth(cut: Cut) -> int:
    return cut.bandwidth_bytes_per_s


def cut_bytes_per_s(topology: Topology, near: Iterable[int], far: Iterable[int]) -> int:
    """The most that can flow at once from some cards to others, in bytes a second: no collective gets more across.

    An exact minimum cut by maximum flow; cards that are neither may hand on what they are sent.
    """
    side = dict.fromkeys(near, SOURCE) | dict.fromkeys(far, SINK)
    capacity: Counter[tuple[int, int]] = Counter()
    for link in topology.links:
        ends = (side.get(link.source, link.source), side.get(link.target, link.target))
        if ends[0] != ends[1] and not link.down:
            capacity[ends] += link.bandwidth_bytes_per_s
    direct = capacity.pop((SOURCE, SINK), 0)
    graph: Any = nx.DiGraph()
    graph.add_nodes_from((SOURCE, SINK))
    graph.add_weighted_edges_from(((a, b, size) for (a, b), size in capacity.items()), weight="capacity")
    return direct + int(nx.maximum_flow_value(graph, SOURCE, SINK, flow_func=nx.algorithms.flow.preflow_push))


def diameter(topology: Topology) -> Diameter:
    """The worst route between two cards, by the routes that messages take; ConfigError where some pair has none.

    All pairs, or where that is more than 2**18 routes, from some cards evenly spread, with the first and last, to all.
    """
    cards = topology.cards
    sources = np.arange(cards)
    method = "all pairs of cards"
    each = cards * topology.routing.stripes
    if cards * each > MOST_ROUTES:
        count = max(2, MOST_ROUTES // each)
        sources = np.unique(np.linspace(0, cards - 1, count).astype(np.int64))
        method = f"from {len(sources)} cards, evenly spread, to all others"
    latency = topology.columns.latency_ps
    hops = longest = 0
    rows = max(1, AT_ONCE // each)
    for first in range(0, len(sources) if cards > 1 else 0, rows):
        start = np.repeat(sources[first : first + rows], cards)
        goal = np.tile(np.arange(cards), len(start) // cards)
        routes = router(topology).routes(start[start != goal], goal[start != goal])
        ends = np.concatenate(([0], np.cumsum(latency[routes.links])))[routes.starts]
        hops, longest = max(hops, int(routes.hops.max())), max(longest, int(np.diff(ends).max()))
    return Diameter(hops, longest, method)


def link_kinds(spec: ClusterSpec) -> tuple[LinkKind, ...]:
    """Directed links by level, ends and speed, in the order in which they are built."""
    topology = spec.topology()
    count: Counter[tuple[str, str, int, int]] = Counter()
    down: Counter[tuple[str, str, int, int]] = Counter()
    for level, link in zip(_levels(spec), topology.links, strict=True):
        key = (level, _ends(topology, link), link.bandwidth_bytes_per_s, link.latency_ps)
        count[key] += 1
        down[key] += link.down
    return tuple(LinkKind(*key[:2], number, *key[2:], down[key]) for key, number in count.items())


def _levels(spec: ClusterSpec) -> list[str]:
    """The level of every link: levels are wired one after the other, innermost first."""
    if not spec.levels:
        return [""] * len(spec.topology().links)
    names: list[str] = []
    inside = 0  # links in one unit of the level below
    for number, level in enumerate(spec.levels):
        unit = len(build(spec.levels[: number + 1]).source)
        units = math.prod(outer.of for outer in spec.levels[number + 1 :])
        names += [level.name] * (units * (unit - level.of * inside))
        inside = unit
    return names


def _ends(topology: Topology, link: Link) -> str:
    words = ["card" if node < topology.cards else "switch" for node in (link.source, link.target)]
    return words[0] + "-" + words[1] if words[0] == words[1] else "card-switch"
