"""Where the nodes of a cluster stand in a drawing, and the drawing as SVG, without any library."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

from ...interconnect.cluster import ClusterSpec
from ...interconnect.topology import Topology
from ...isa.errors import UnsupportedError

MOST_WIRES = 20_000
CARD_GAP, UNIT_GAP, TIER_GAP = 26.0, 14.0, 110.0
RADIUS_A_CARD, GRID_STEP = 9.0, 60.0
MARGIN = 40.0
PALETTE = ("#1f6f8b", "#c0562f", "#4a7a3a", "#7a4a8c", "#a8862a", "#555555")
Point = tuple[float, float]


@dataclass(frozen=True)
class Wire:
    """Both directions between two nodes as one stroke: `count` directed links of `bandwidth_bytes_per_s` each."""

    source: int
    target: int
    count: int
    bandwidth_bytes_per_s: int
    down: bool


@dataclass(frozen=True)
class Drawing:
    """A cluster laid out: a point for every node, the wires, and the speeds in order of their colours."""

    title: str
    cards: int
    points: tuple[Point, ...]
    wires: tuple[Wire, ...]
    speeds: tuple[int, ...]
    arcs: bool

    def colour(self, wire: Wire) -> str:
        """One colour a speed."""
        return PALETTE[min(self.speeds.index(wire.bandwidth_bytes_per_s), len(PALETTE) - 1)]


def draw(spec: ClusterSpec) -> Drawing:
    """Lay a cluster out; UnsupportedError beyond 20,000 wires, which nobody could tell apart."""
    topology = spec.topology()
    wires = tuple(_wires(topology))
    if len(wires) > MOST_WIRES:
        raise UnsupportedError(
            f"{spec.name} has {len(wires)} wires, and a drawing holds {MOST_WIRES}; the text drawing shows it by level"
        )
    speeds = tuple(sorted({wire.bandwidth_bytes_per_s for wire in wires}, reverse=True))
    flat = not topology.switches and not spec.levels
    points = tuple(
        _grid(topology) if flat and len(topology.dims) > 1 else _circle(topology) if flat else _tiers(topology)
    )
    return Drawing(f"{spec.name}: {topology.cards} cards", topology.cards, points, wires, speeds, not flat)


def _wires(topology: Topology) -> Iterator[Wire]:
    count: Counter[tuple[int, int, int, bool]] = Counter()
    for link in topology.links:
        low, high = sorted((link.source, link.target))
        count[low, high, link.bandwidth_bytes_per_s, link.down] += 1
    for (low, high, bandwidth, down), number in count.items():
        yield Wire(low, high, number, bandwidth, down)


def _circle(topology: Topology) -> Iterator[Point]:
    """Cards round a circle, the first one on top."""
    radius = max(90.0, RADIUS_A_CARD * topology.cards)
    for card in range(topology.cards):
        angle = 2 * math.pi * card / topology.cards
        yield radius * math.sin(angle), -radius * math.cos(angle)


def _grid(topology: Topology) -> Iterator[Point]:
    """Cards of a mesh or torus by their last two coordinates; a third one steps back to the right."""
    dims = (1, *topology.dims)[-3:]
    for card in range(topology.cards):
        deep, row, column = card // (dims[1] * dims[2]), card // dims[2] % dims[1], card % dims[2]
        bend = 6.0 * (row % 2) + 4.0 * (column % 2)  # so that wires round the ends do not hide those between
        across = (dims[2] * GRID_STEP + 40.0) * deep
        yield across + column * GRID_STEP + bend, row * GRID_STEP + bend


def _tiers(topology: Topology) -> Iterator[Point]:
    """Cards in a row, a gap between units of every level; switches above what hangs on them, tier by tier."""
    xs, gaps = [], 0.0
    for card in range(topology.cards):
        inside = topology.cards
        for side in topology.shape[:-1]:
            inside //= side
            gaps += UNIT_GAP * (card > 0 and card % inside == 0)
        xs.append(card * CARD_GAP + gaps)
    yield from ((x, 0.0) for x in xs)
    tier = _tier_of(topology)
    places = dict(enumerate(xs))
    taken: set[tuple[int, int]] = set()
    for node in range(topology.cards, topology.nodes):
        below = [
            topology.links[link].source
            for link in topology.incoming[node]
            if tier[topology.links[link].source] < tier[node]
        ]
        known = [places[other] for other in below if other in places]
        x = sum(known) / len(known) if known else xs[-1] / 2
        middle, tries = x, 0
        while (round(x), tier[node]) in taken:  # planes over the same cards stand side by side, right and left in turn
            tries += 1
            x = middle + CARD_GAP * (tries + 1 >> 1) * (1 if tries % 2 else -1)
        taken.add((round(x), tier[node]))
        places[node] = x
        yield x, -TIER_GAP * tier[node]


def _tier_of(topology: Topology) -> list[int]:
    """How far every node is from the nearest card."""
    tier = [0 if node < topology.cards else -1 for node in range(topology.nodes)]
    waiting = deque(range(topology.cards))
    while waiting:
        node = waiting.popleft()
        for link in topology.outgoing[node]:
            target = topology.links[link].target
            if tier[target] < 0:
                tier[target] = tier[node] + 1
                waiting.append(target)
    return [max(1, value) if node >= topology.cards else 0 for node, value in enumerate(tier)]


def svg(drawing: Drawing) -> str:
    """The drawing as an SVG document; every node and wire has a tooltip."""
    xs, ys = [x for x, _ in drawing.points], [y for _, y in drawing.points]
    deepest = max((_sag(drawing, wire) for wire in drawing.wires), default=0.0)
    left, top = min(xs) - MARGIN, min(ys) - MARGIN - 24
    width = max(max(xs) - min(xs) + 2 * MARGIN, 320.0)
    height = max(ys) - min(ys) + 2 * MARGIN + 24 + deepest + 18 * len(drawing.speeds)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{left:.0f} {top:.0f} {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" font-family="sans-serif" font-size="11">',
        f'<rect x="{left:.0f}" y="{top:.0f}" width="100%" height="100%" fill="white"/>',
        f'<text x="{left + 12:.0f}" y="{top + 20:.0f}" font-size="14">{escape(drawing.title)}</text>',
        *(_stroke(drawing, wire) for wire in drawing.wires),
        *(_node(drawing, node) for node in range(len(drawing.points))),
        *_legend(drawing, left + 12, max(ys) + MARGIN + deepest),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _sag(drawing: Drawing, wire: Wire) -> float:
    """How far a wire between two cards of a row hangs down; 0 for a straight one."""
    if not drawing.arcs or wire.target >= drawing.cards:
        return 0.0
    return min(160.0, 0.35 * abs(drawing.points[wire.target][0] - drawing.points[wire.source][0]) + 8)


def _stroke(drawing: Drawing, wire: Wire) -> str:
    (x1, y1), (x2, y2) = drawing.points[wire.source], drawing.points[wire.target]
    sag = _sag(drawing, wire)
    path = f"M{x1:.1f} {y1:.1f}" + (
        f"Q{(x1 + x2) / 2:.1f} {y1 + 2 * sag:.1f} {x2:.1f} {y2:.1f}" if sag else f"L{x2:.1f} {y2:.1f}"
    )
    style = ' stroke-dasharray="4 4"' if wire.down else ""
    label = f"{wire.count} links of {speed(wire.bandwidth_bytes_per_s)}" + (", down" if wire.down else "")
    return (
        f'<path d="{path}" fill="none" stroke="{drawing.colour(wire)}" stroke-width="1" stroke-opacity="0.7"{style}>'
        f"<title>{label}</title></path>"
    )


def _node(drawing: Drawing, node: int) -> str:
    x, y = drawing.points[node]
    if node < drawing.cards:
        shape = (
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="10" fill="#e8f0f4" stroke="#333"><title>card {node}</title></circle>'
        )
        return shape + f'<text x="{x:.1f}" y="{y + 4:.1f}" text-anchor="middle">{node}</text>'
    name = node - drawing.cards
    return (
        f'<rect x="{x - 11:.1f}" y="{y - 8:.1f}" width="22" height="16" fill="#f6ead8" stroke="#333">'
        f'<title>switch {name}</title></rect><text x="{x:.1f}" y="{y + 4:.1f}" text-anchor="middle">s{name}</text>'
    )


def _legend(drawing: Drawing, x: float, y: float) -> Iterator[str]:
    for number, bandwidth in enumerate(drawing.speeds):
        line = y + 18 * number
        colour = PALETTE[min(number, len(PALETTE) - 1)]
        yield f'<path d="M{x:.0f} {line:.0f}h24" stroke="{colour}" stroke-width="3"/>'
        yield f'<text x="{x + 32:.0f}" y="{line + 4:.0f}">{speed(bandwidth)} a link and direction</text>'


def speed(bandwidth_bytes_per_s: int) -> str:
    """A bandwidth in GB/s."""
    return f"{bandwidth_bytes_per_s / 1e9:g} GB/s"
