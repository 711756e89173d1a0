"""A cluster drawn in characters: small grids and rings as they stand, the rest as a tree of its levels."""

from __future__ import annotations

from collections.abc import Iterator

from ...interconnect.cluster import ClusterSpec
from ...interconnect.levels import LevelSpec
from ...interconnect.link import LinkSpec
from ...interconnect.topology import Topology
from ..terminal import duration, ranges

MOST_ACROSS, MOST_ROWS = 16, 16


def text_drawing(spec: ClusterSpec) -> list[str]:
    """The lines of the drawing, at most some 80 characters wide where the cluster is small."""
    if spec.levels:
        return list(_levels(spec))
    topology = spec.topology()
    link = f"   each link {_link(spec.link)}" if spec.link else ""
    return [*_flat(topology), *([link] if link else [])]


def _levels(spec: ClusterSpec) -> Iterator[str]:
    yield f"{spec.name}: {spec.cards} cards"
    units = 1
    for depth, level in enumerate(reversed(spec.levels)):
        inner = list(reversed(spec.levels))[depth + 1].name if depth + 1 < len(spec.levels) else "card"
        yield f"{'   ' * depth}+- {_level(level, inner, units)}"
        yield f"{'   ' * depth}   {_link(level.link)}" + "".join(f"; above {_link(up)}" for up in level.uplinks)
        units *= level.of


def _level(level: LevelSpec, inner: str, units: int) -> str:
    count = f"{units} x " if units > 1 else ""
    words = [f"{count}{level.name}: {level.of} {inner}s joined by {level.kind.replace('_', ' ')}"]
    words += [f"{' x '.join(map(str, level.dims))}"] if level.dims else []
    words += ["card by card, one wiring a rail"] if level.joins == "rails" else []
    words += ["through the units' switches"] if level.joins == "switch" else []
    words += [f"{level.planes} planes"] if level.planes > 1 else []
    words += [f"oversubscribed {' and '.join(f'{ratio}:1' for ratio in level.oversubscription)}"] * bool(
        level.oversubscription
    )
    words += ["the switch reduces"] if level.switch_reduces else []
    return ", ".join(words)


def _link(link: LinkSpec) -> str:
    words = f"{link.bandwidth_bytes_per_s.value / 1e9:g} GB/s a direction ({link.bandwidth_bytes_per_s.evidence})"
    words += f", {duration(link.latency_ps.value)} ({link.latency_ps.evidence})"
    words += f", {duration(link.overhead_ps.value)} a message" if link.overhead_ps else ""
    return words + (", store and forward" if link.forwarding != "cut_through" else "")


def _flat(topology: Topology) -> Iterator[str]:
    cards = topology.cards
    if topology.kind in ("ring", "mesh", "torus"):
        yield from _grid(topology)
    elif topology.switches:
        yield from _switched(topology)
    elif cards == 1:
        yield "   card 0"
    else:
        yield f"   cards {_span(cards)}: each joined to each by a wire of its own"


def _grid(topology: Topology) -> Iterator[str]:
    dims = (1, 1, *(topology.dims or (topology.cards,)))[-3:]
    layers, rows, columns = dims
    width = len(str(topology.cards - 1))
    closes = "  (and back to the first, along every line)" if topology.wraps else ""
    for layer in range(min(layers, MOST_ROWS)):
        if layers > 1:
            yield f"   layer {layer}"
        for row in range(min(rows, MOST_ROWS)):
            first = (layer * rows + row) * columns
            line = " - ".join(f"{card:>{width}}" for card in range(first, first + min(columns, MOST_ACROSS)))
            yield f"   {line}" + (f" - .. - {first + columns - 1}" if columns > MOST_ACROSS else "")
            if row + 1 < min(rows, MOST_ROWS):
                yield "   " + "   ".join(f"{'|':>{width}}" for _ in range(min(columns, MOST_ACROSS)))
        if rows > MOST_ROWS:
            yield f"   .. {rows - MOST_ROWS} more rows"
    if layers > MOST_ROWS:
        yield f"   .. {layers - MOST_ROWS} more layers"
    if layers > 1:
        yield "   cards of equal place in neighbouring layers are joined too"
    if closes:
        yield closes.rstrip()


def _switched(topology: Topology) -> Iterator[str]:
    """Every switch with what hangs on it, from the top."""
    above: list[str] = []
    for node in range(topology.cards, topology.nodes):
        ends = sorted({topology.links[link].source for link in topology.incoming[node]})
        cards = [end for end in ends if end < topology.cards]
        others = [end - topology.cards for end in ends if end >= topology.cards]
        words = [f"cards {ranges(cards)}"] * bool(cards) + [f"switches {ranges(others)}"] * bool(others)
        above.append(f"   switch {node - topology.cards}: {', '.join(words)}")
    yield from above[:MOST_ROWS]
    if len(above) > MOST_ROWS:
        yield f"   .. {len(above) - MOST_ROWS} more switches, {above[-1].strip()} the last"


def _span(cards: int) -> str:
    return f"0-{cards - 1}"
