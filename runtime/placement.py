"""Placement: on which card of a cluster every rank of a layout stands, the chattiest axis on the fastest links."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..interconnect.topology import Topology
from ..isa.errors import ConfigError
from .layout import Layout

# Outermost first: tensor-parallel neighbours exchange most in every layer, stages once a step.
ORDER = ("pp", "dp", "cp", "tp")
PACKED = "packed"
FORM = "write packed, an order of axes from the outermost as pp,dp,tp, or a card for every rank as 0,1,8,9"


def place(layout: Layout, topology: Topology, text: str | None = None) -> tuple[int, ...]:
    """The card of each rank, by rank.

    By default the groups of the innermost axis (tp) stand one after the other, each in as few units of every level
    (nodes, packages, rows of a grid) as it can, cards left free where it would straddle; without room for that, and
    with `packed`, ranks fill cards without a gap. `text` may order the axes instead, the last one innermost, or name
    the card of every rank. ConfigError for what is no placement of this layout on this cluster.
    """
    words = [word.strip() for word in text.split(",")] if text is not None else []
    if words and all(word.isdecimal() for word in words):
        return _named(layout, topology, words)
    order = ORDER if text is None or words == [PACKED] else _order(layout, words, str(text))
    positions = _positions(layout, order)
    group = getattr(layout, order[-1])
    starts = None if words == [PACKED] else _starts(group, layout.cards // group, topology)
    if starts is None:
        return tuple(positions)
    return tuple(starts[position // group] + position % group for position in positions)


def straddling(layout: Layout, placement: Sequence[int], topology: Topology) -> str | None:
    """A warning where a tp group stands in more units of a level than it needs; None where all stand well."""
    for unit in _units(topology):
        for first in range(0, layout.cards, layout.tp):
            spans = len({card // unit for card in placement[first : first + layout.tp]})
            if spans > (least := -(-layout.tp // unit)):
                return (
                    f"tp={layout.tp}: ranks {first}-{first + layout.tp - 1} stand in {spans} units of {unit} "
                    f"cards where {least} would hold them; their all-reduces cross slower links"
                )
    return None


def _positions(layout: Layout, order: Sequence[str]) -> list[int]:
    """Where each rank stands in a row that counts through the axes in this order."""
    positions = []
    for rank in range(layout.cards):
        replica, share = divmod(layout.holder_of(rank), layout.cp)
        index = {"pp": layout.stage_of(rank), "dp": replica, "cp": share, "tp": layout.tp_index_of(rank)}
        position = 0
        for axis in order:
            position = position * getattr(layout, axis) + index[axis]
        positions.append(position)
    return positions


def _order(layout: Layout, words: Sequence[str], text: str) -> tuple[str, ...]:
    """The axes from the outermost; those of degree 1 may be left out."""
    needed = [axis for axis in ORDER if axis in words or getattr(layout, axis) > 1]
    if sorted(words) != sorted(needed):
        raise ConfigError(f"--placement {text!r} is no placement; {FORM} (axes: {', '.join(ORDER)}, each once)")
    return tuple(words)


def _named(layout: Layout, topology: Topology, words: Sequence[str]) -> tuple[int, ...]:
    cards = tuple(int(word[:12]) for word in words)
    if len(cards) != layout.cards:
        raise ConfigError(
            f"--placement names {len(cards)} cards; layout {layout} has {layout.cards} ranks, a card each"
        )
    for card in cards:
        if card >= topology.cards:
            raise ConfigError(f"--placement: there is no card {card}; the cluster has 0 to {topology.cards - 1}")
        if cards.count(card) > 1:
            raise ConfigError(f"--placement: card {card} stands twice; each rank needs a card of its own")
    return cards


def _units(topology: Topology) -> list[int]:
    """Cards in a unit of each level, smallest first: packages, nodes; or rows and layers of a grid."""
    sides = topology.shape or topology.dims
    return [math.prod(sides[depth:]) for depth in range(len(sides) - 1, 0, -1)]


def _starts(group: int, count: int, topology: Topology) -> list[int] | None:
    """The first card of each group, none straddling units more than it must; None where the cluster has no room."""
    units, starts, card = _units(topology), [], 0
    for _ in range(count):
        while any((card + group - 1) // unit - card // unit + 1 > -(-group // unit) for unit in units):
            card += 1
        starts.append(card)
        card += group
    return starts if card <= topology.cards else None
