"""A plan on a topology: which transfers cross which links, before anybody says how many bytes they are."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ...isa.errors import ConfigError
from ..routing import router
from ..topology import Topology
from .cache import WeighedCache
from .plan import Incidence, Ints, Pattern, Plan
from .protocol import Terms
from .reducers import nearest_reducer
from .sums import loads

MOST_COMPARED = 1 << 20  # crossings of a plan
AT_ONCE = 1 << 22  # crossings looked at together
NEARLY = 1 - 1e-12  # floats choose the busiest link but for ties this close, which whole numbers decide


@dataclass(frozen=True, eq=False)
class PlacedPattern:
    """A pattern of steps on a topology: at which links the flows cross, flow p * stripes + s being shares s of pair p.

    Transfer i is of pair `pairs[i]`. Entries stand in order of their links' bandwidths, those of `bandwidths[i]` from
    place `classes[i]` on.
    """

    pattern: Pattern
    crossings: Incidence
    pairs: Ints
    stripes: int
    bandwidths: tuple[int, ...]
    classes: Ints
    stored: Stored | None

    def loads(self, bytes_of: Ints) -> Ints:
        """Bytes on `crossings.ids` in every step, int64 [steps, links]."""
        return loads(
            bytes_of[self.pattern.rows], self.pairs, self.stripes, self.crossings.columns, self.crossings.starts
        )

    def flow_terms(self, bytes_of: Ints, loads: Ints) -> list[dict[int, int]]:
        """Bytes and bandwidths of every step, whose quotients sum up to how long its bytes flow alone."""
        if not self.bandwidths:
            return [{} for _ in self.pattern.steps]
        busiest = np.maximum.reduceat(loads, self.classes, axis=1)
        terms = _longest(busiest, self.bandwidths)
        if self.stored is not None:
            for step, held in zip(terms, self.stored.longest(bytes_of[self.pattern.rows]), strict=True):
                for bandwidth, size in held.items():
                    step[bandwidth] = step.get(bandwidth, 0) + size
        return terms


@dataclass(frozen=True, eq=False)
class PlacedShape:
    """What plans have in common whose members stand alike, pattern by pattern, on links numbered from 0 on.

    `latency_ps` is that of every step, int64 [steps]; `links` is how many links it crosses.
    """

    plan: Plan
    links: int
    latency_ps: Ints
    patterns: tuple[PlacedPattern, ...]

    @property
    def num_bytes(self) -> int:
        """Host memory that the arrays take."""
        return self.latency_ps.nbytes + sum(
            2000 + 3 * placed.crossings.columns.nbytes + placed.pattern.rows.nbytes for placed in self.patterns
        )

    def flows(self, bytes_of: Ints) -> tuple[Ints, list[Terms]]:
        """When transfer i has `bytes_of[i]`: bytes on each of its links, int64 [links], and the terms of steps' flows.

        The terms are the bytes and bandwidth of the busiest link, and of the hops at which the longest held message
        waits to be whole; their quotients add up.
        """
        total = np.zeros(self.links, np.int64)
        terms: list[Terms] = [{} for _ in range(self.plan.num_steps)]
        for placed in self.patterns:
            steps = max(1, AT_ONCE // max(1, len(placed.crossings.columns), len(placed.pairs)))
            for first in range(0, len(placed.pattern.steps), steps):
                some = placed if first == 0 and steps >= len(placed.pattern.steps) else _cut(placed, first, steps)
                loads = some.loads(bytes_of)
                total[some.crossings.ids] += loads.sum(axis=0)
                for step, held in zip(some.pattern.steps.tolist(), some.flow_terms(bytes_of, loads), strict=True):
                    terms[step] = held
        return total, terms


def _cut(placed: PlacedPattern, first: int, count: int) -> PlacedPattern:
    pattern, some = placed.pattern, slice(first, first + count)
    return replace(placed, pattern=replace(pattern, steps=pattern.steps[some], rows=pattern.rows[some]))


@dataclass(frozen=True, eq=False)
class Stored:
    """Messages that are stored on their way: of which transfers each is made, and at which hops it waits.

    Message i waits at `hops[kinds[i]]`: (bandwidth of the link to there, packet bytes or 0 for all of it) each.
    """

    messages: Incidence
    kinds: Ints
    hops: tuple[tuple[tuple[int, int], ...], ...]

    def longest(self, bytes_of: Ints) -> list[dict[int, int]]:
        """For every step the message that is held up longest, as bytes by bandwidth; from [steps, transfers]."""
        sizes = self.messages.sums(bytes_of[:, self.messages.columns])
        seconds = np.zeros(sizes.shape)
        for kind, hops in enumerate(self.hops):
            mine = self.kinds == kind
            for bandwidth, packet in hops:
                seconds[:, mine] += (np.minimum(sizes[:, mine], packet) if packet else sizes[:, mine]) / bandwidth
        longest = seconds.argmax(axis=1)
        chosen = sizes[np.arange(len(sizes)), longest].tolist()
        return [self._terms(kind, size) for kind, size in zip(self.kinds[longest].tolist(), chosen, strict=True)]

    def _terms(self, kind: int, size: int) -> dict[int, int]:
        terms: dict[int, int] = {}
        for bandwidth, packet in self.hops[kind]:
            terms[bandwidth] = terms.get(bandwidth, 0) + (min(size, packet) if packet else size)
        return terms


def _longest(busiest: Ints, bandwidths: tuple[int, ...]) -> list[dict[int, int]]:
    """For every step the class of links whose bytes / bandwidth is largest, exactly: [{bandwidth: bytes}]."""
    if len(bandwidths) == 1:
        return [{bandwidths[0]: size} for size in busiest[:, 0].tolist()]
    seconds = busiest / np.array(bandwidths, float)
    best = seconds.argmax(axis=1)
    close = (seconds >= seconds.max(axis=1)[:, None] * NEARLY).sum(axis=1) > 1
    for step in np.flatnonzero(close).tolist():
        for index in range(len(bandwidths)):
            size, rate = int(busiest[step, index]), bandwidths[index]
            if size * bandwidths[best[step]] > int(busiest[step, best[step]]) * rate:
                best[step] = index
    sizes = busiest[np.arange(len(busiest)), best]
    return [{bandwidths[index]: size} for index, size in zip(best.tolist(), sizes.tolist(), strict=True)]


class PlacedPlan(NamedTuple):
    """A plan on a topology: its shape, and which link of the topology each of the shape's is, ascending."""

    shape: PlacedShape
    links: Ints


_PLACED: WeighedCache[PlacedPlan] = WeighedCache(1 << 28, lambda placed: 1000 + placed.links.nbytes)
_WAYS: WeighedCache[_Ways] = WeighedCache(1 << 28, lambda ways: 1000 + ways.num_bytes)
_SHAPES: WeighedCache[PlacedShape] = WeighedCache(1 << 28, lambda shape: 1000 + shape.num_bytes)


def place(plan: Plan, ranks: tuple[int, ...], topology: Topology) -> PlacedPlan:
    """The plan with member i on card `ranks[i]`; ConfigError for ranks that do not suit, or without a way between.

    Groups whose members reach each other over like links in the same way have one shape.
    """
    return _PLACED.get((plan, ranks, topology), lambda: _place(plan, ranks, topology))


def _place(plan: Plan, ranks: tuple[int, ...], topology: Topology) -> PlacedPlan:
    _check_ranks(plan, ranks, topology)
    nodes = np.array([*ranks, _switch_of(plan, ranks, topology)], np.int64)
    key = plan.pairs.tobytes(), nodes.tobytes(), topology, plan.uses_switch
    ways = _WAYS.get(key, lambda: _Ways(plan.pairs, nodes, topology, fixed=plan.uses_switch))
    return PlacedPlan(_SHAPES.get((plan, ways.key), lambda: _shape(plan, ways)), ways.links)


def _shape(plan: Plan, ways: _Ways) -> PlacedShape:
    latency_ps = np.zeros(plan.num_steps, np.int64)
    patterns = []
    for pattern in plan.patterns:
        pairs = ways.pairs(pattern)
        longest = int(ways.latency_ps[pairs].max())
        streamed = plan.moves.streamed[pattern.steps]
        latency_ps[pattern.steps] = np.where(streamed, 0, longest) + ways.overhead_ps(pairs)
        patterns.append(ways.placed(plan, pattern, pairs))
    return PlacedShape(plan, len(ways.links), latency_ps, tuple(patterns))


class _Ways:
    """Routes of all pairs of members that plans let talk to each other, and what passes along them.

    The links that they cross are numbered anew, in their order; `links` are their ids.
    """

    def __init__(self, pairs: Ints, nodes: Ints, topology: Topology, fixed: bool) -> None:
        self._pairs, self._members = pairs, len(nodes)
        sources, targets = np.divmod(pairs, len(nodes))
        routes = router(topology).routes(nodes[sources], nodes[targets], fixed=fixed)
        crossed = np.zeros(len(topology.links), bool)
        crossed[routes.links] = True
        self.links = np.flatnonzero(crossed)
        number = np.cumsum(crossed, dtype=np.int32) - 1
        self._routes = replace(routes, links=number[routes.links])
        self._facts = facts = [column[self.links] for column in topology.columns.facts]
        self._bandwidth, latency_ps, self._overhead, self._stores, self._packets = facts
        self._place = np.empty(len(self.links), np.uint16 if len(self.links) <= 1 << 16 else np.int64)
        self._place[np.argsort(self._bandwidth, kind="stable")] = np.arange(len(self.links))  # uint16 sorts fast
        total = np.concatenate(([0], np.cumsum(latency_ps[self._routes.links])))
        starts = self._routes.starts
        self.latency_ps = (total[starts[1:]] - total[starts[:-1]]).reshape(-1, self._routes.stripes).max(axis=1)

    @property
    def num_bytes(self) -> int:
        """Host memory that the arrays take."""
        return 3 * self._routes.links.nbytes + 2 * self._routes.starts.nbytes

    @cached_property
    def key(self) -> Hashable:
        """Equal for ways that are alike, unless they are too many to compare."""
        routes = self._routes
        if len(routes.links) > MOST_COMPARED:
            return object()
        columns = (routes.starts, routes.links, *self._facts)
        return routes.stripes, *(column.tobytes() for column in columns)

    def pairs(self, pattern: Pattern) -> Ints:
        """The number of the pair that each transfer of a pattern belongs to."""
        return np.searchsorted(self._pairs, pattern.sources.astype(np.int64) * self._members + pattern.targets)

    def overhead_ps(self, pairs: Ints) -> int:
        """How long the messages of a step, one a pair, hold the busiest port beside their bytes."""
        if not self._overhead.any():
            return 0
        messages = np.unique(pairs)
        ports = self._routes.links[self._routes.starts[messages * self._routes.stripes]]
        return int((np.bincount(ports, minlength=len(self._overhead)) * self._overhead).max())

    def placed(self, plan: Plan, pattern: Pattern, pairs: Ints) -> PlacedPattern:
        """A pattern's transfers as crossings of links."""
        routes, stripes = self._routes, self._routes.stripes
        some, which = (pairs, np.arange(len(pairs))) if plan.uses_switch else np.unique(pairs, return_inverse=True)
        flows = (some[:, None] * stripes + np.arange(stripes)).reshape(-1)
        counts = routes.hops[flows]
        entry = np.repeat(np.arange(len(flows)), counts)
        first = routes.starts[flows] - (np.cumsum(counts) - counts)
        links = routes.links[first[entry] + np.arange(len(entry))]
        if plan.uses_switch:
            kept = self._unmerged(plan, pattern, entry, links)
            entry, links = entry[kept], links[kept]
        order = np.argsort(self._place[links], kind="stable")
        entry, links = entry[order], links[order]
        starts = np.flatnonzero(np.r_[True, np.diff(links) != 0]) if len(links) else np.zeros(0, np.int64)
        crossings = Incidence(links[starts], entry.astype(np.int32), starts)
        rates, classes = np.unique(self._bandwidth[crossings.ids], return_index=True)
        stored = self._stored(pairs) if self._stores.any() else None
        return PlacedPattern(
            pattern, crossings, which.astype(np.int32), stripes, tuple(rates.tolist()), classes, stored
        )

    def _unmerged(self, plan: Plan, pattern: Pattern, entry: Ints, links: Ints) -> Ints:
        """What meets on its way to a reducing switch, or parts on its way from it, crosses a link once a part."""
        parts = plan.moves.parts[pattern.rows[0]][entry]
        up = pattern.targets[entry] == plan.size
        _, first = np.unique(np.stack((parts * 2 + up, links)), axis=1, return_index=True)
        return np.sort(first)

    def _stored(self, pairs: Ints) -> Stored | None:
        """The messages of a step that a node on their way stores before it sends them on."""
        messages = Incidence.of(pairs, np.arange(len(pairs)))
        kinds: dict[tuple[tuple[int, int], ...], int] = {}
        kind_of = [kinds.setdefault(self._hops(pair), len(kinds)) for pair in messages.ids.tolist()]
        return Stored(messages, np.array(kind_of), tuple(kinds)) if any(kinds) else None

    def _hops(self, pair: int) -> tuple[tuple[int, int], ...]:
        flow = pair * self._routes.stripes
        on_way: list[int] = self._routes.links[self._routes.starts[flow] : self._routes.starts[flow + 1] - 1].tolist()
        return tuple((int(self._bandwidth[link]), int(self._packets[link])) for link in on_way if self._stores[link])


def _switch_of(plan: Plan, ranks: tuple[int, ...], topology: Topology) -> int:
    """The switch that a plan's members reduce in; -1 where none is needed."""
    if not plan.uses_switch or plan.size == 1:
        return -1
    if not topology.reducing:
        raise ConfigError(
            f"{plan.name}: no switch of this {topology.kind} reduces; choose another algorithm, or say "
            "`switch_reduces: true` at the level whose switches do"
        )
    switch = nearest_reducer(ranks, topology)
    if switch is None:
        raise ConfigError(
            f"{plan.name}: {topology.names(ranks)} do not all reach one switch that reduces without passing through "
            "other cards; choose another algorithm"
        )
    return switch


def _check_ranks(plan: Plan, ranks: tuple[int, ...], topology: Topology) -> None:
    if len(ranks) != plan.size:
        raise ConfigError(f"{plan.name}: ranks {ranks} are {len(ranks)}; the group has {plan.size} members")
    if len(set(ranks)) < len(ranks):
        twice = min(rank for rank in ranks if ranks.count(rank) > 1)
        raise ConfigError(f"{plan.name}: rank {twice} stands twice in {ranks}; every rank is one card")
    if outside := [rank for rank in ranks if not 0 <= rank < topology.cards]:
        raise ConfigError(
            f"{plan.name}: rank {outside[0]} is no card; the {topology.kind} has 0 to {topology.cards - 1}"
        )
