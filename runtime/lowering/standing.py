"""Standing: the numbers that tell ranks of one program apart, where their shares begin, as scalar extents."""

from __future__ import annotations

from ...isa.instruction import share_of
from ...models.blocks import Graph, Moe
from ..layout import Layout

VOCABULARY = "vocabulary.first"  # the first id whose embedding a rank holds
PART = "tokens.part"  # tokens t with t % parts == part are the business of a rank
SHIFT = "replicas.shift"  # how far round a rank's holder begins to take the slots of an expert


def latent_first(width: int) -> str:
    """The extent of the first column of a latent of so many that a rank takes further."""
    return f"latent{width}.first"


def experts_first(total: int) -> str:
    """The extent of the first of so many experts (or slots, or cuts) that a rank holds."""
    return f"experts{total}.first"


def experts_at(total: int) -> str:
    """The extent of where a rank's loads begin among those of all parts."""
    return f"experts{total}.at"


def expert_places(layout: Layout, total: int) -> tuple[int | str, int | str, int | str]:
    """(first expert, part, where its loads begin) of a rank among so many: names of extents where ranks differ.

    Where tokens travel a rank sends its part of them to all experts.
    """
    has_parts, has_share = layout.expert_parts > 1, layout.ep > 1 and not layout.experts_travel
    return (
        experts_first(total) if has_share else 0,
        PART if has_parts else 0,
        experts_at(total) if has_parts or has_share else 0,
    )


def standing_extents(graph: Graph, layout: Layout, tp_index: int, holder: int) -> dict[str, tuple[int, ...]]:
    """The numbers of the ranks of a holder with a tensor-parallel index, in every stage."""
    rank, numbers = layout.rank(0, tp_index, holder), dict[str, int]()
    if layout.tp > 1:
        numbers[VOCABULARY] = share_of(graph.vocab_size, layout.tp, tp_index)[0]
    if layout.redundant and layout.holders > 1:
        numbers[SHIFT] = holder
    for count, width in {_sizes(layer.mlp) for layer in graph.layers if isinstance(layer.mlp, Moe)}:
        own, total = layout.experts_of(rank, count), layout.slots(count) * layout.cuts
        first = 0 if own.travels else own.first
        numbers |= {PART: own.part, experts_first(total): first, experts_at(total): own.part * total + first}
        if width and layout.tp > 1:
            numbers[latent_first(width)] = share_of(width, layout.tp, tp_index)[0]
    return {name: (number,) for name, number in numbers.items()}


def _sizes(moe: Moe) -> tuple[int, int]:
    """Experts of a layer, and the width of their latent, 0 without one."""
    return moe.experts.count, 0 if moe.latent is None else moe.latent.up.in_features
