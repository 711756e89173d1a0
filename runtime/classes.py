"""Classes: which ranks of a layout run the very same program, and which of them hold the very same weights."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable

from ..isa.instruction import share_of
from ..models.blocks import DecoderLayer, Graph, Moe
from .layout import ExpertShare, Layout
from .lowering.held import PackedBuffer
from .lowering.weights import WeightBuffer


def weight_twins(graph: Graph, layout: Layout) -> tuple[int, ...]:
    """For each rank the lowest rank that holds the very same weights."""
    counts = _expert_counts(graph)

    def key(rank: int) -> Hashable:
        return layout.stage_of(rank), layout.tp_index_of(rank), *(layout.experts_of(rank, count) for count in counts)

    return lowest(layout, key)


def program_classes(graph: Graph, layout: Layout, cuts_blocks: bool) -> tuple[int, ...]:
    """For each rank the lowest rank that runs the very same program, over buffers of the same sizes.

    Tensor-parallel peers of a stage do, save for a larger share of an uneven vocabulary, of the experts or of their
    latents, for biases that only the first of them adds, and, where `cuts_blocks`, for how blocks that share a scale
    are divided.
    """
    biased = any(_first_adds(layer) for layer in graph.layers)
    slices_biased = any(isinstance(layer.mlp, Moe) and layer.mlp.experts.down_bias for layer in graph.layers)
    sizes, counts = (graph.vocab_size, *_latent_widths(graph)), _expert_counts(graph)

    def of_share(share: ExpertShare) -> Hashable:
        return share.count, slices_biased and not share.slice_, share.slice_ if cuts_blocks else 0

    of_index = [
        (*(share_of(size, layout.tp, index)[1] for size in sizes), biased and index == 0, index if cuts_blocks else 0)
        for index in range(layout.tp)
    ]

    own = [[layout.experts_of(rank, count) for count in counts] for rank in range(layout.ep * layout.etp)]
    of_place = [tuple(of_share(share) for share in shares) for shares in own]

    def key(rank: int) -> Hashable:
        place = rank % layout.stage_cards % len(of_place)
        return layout.stage_of(rank), of_index[layout.tp_index_of(rank)], of_place[place]

    return lowest(layout, key)


def lowest(layout: Layout, key: Callable[[int], Hashable]) -> tuple[int, ...]:
    """For each rank the lowest rank of the same key."""
    first: dict[Hashable, int] = {}
    return tuple(first.setdefault(key(rank), rank) for rank in range(layout.cards))


def cuts_blocks(weights: Iterable[WeightBuffer], graph: Graph, layout: Layout) -> bool:
    """Whether blocks that share a scale may be divided otherwise on one rank than on another.

    `weights` are those of some rank. They are not where its share of every tensor is a whole number of blocks: shares
    of all ranks are of one size, so that each then begins where a block does.
    """
    whole = {"replicated"} | ({"expert"} if layout.etp == 1 else set())
    packed = {
        id(weight.packed): (weight, weight.packed)
        for weight in weights
        if weight.packed is not None and weight.bucket not in whole
    }
    if packed and any(width % layout.tp for width in _latent_widths(graph)):
        return True
    return any(_divides(weight, how) for weight, how in packed.values())


def _divides(weight: WeightBuffer, packed: PackedBuffer) -> bool:
    """Whether the rank's share of some tensor, or where that has gaps some piece of it, is no whole number of blocks.

    A share without gaps begins as many of its sizes further on each rank than on the one before.
    """
    spans: dict[tuple[str, int], list[range]] = {}
    for piece in weight.pieces_of_one:
        if piece.axis is not None:
            spans.setdefault((piece.tensor, piece.axis), []).append(range(piece.start, piece.stop, piece.step))
    for (_, axis), own in spans.items():
        side = packed.form.cols if axis else packed.held.scheme.block[0]
        whole = max(span.stop for span in own) - min(span.start for span in own)
        has_gaps = sum(map(len, own)) != whole
        if side and any(size % side for size in (map(len, own) if has_gaps else [whole])):
            return True
    return False


def _expert_counts(graph: Graph) -> list[int]:
    return sorted({layer.mlp.experts.count for layer in graph.layers if isinstance(layer.mlp, Moe)})


def _latent_widths(graph: Graph) -> list[int]:
    """Widths of latents whose way up is cut evenly, whether tp divides them or not."""
    moes = (layer.mlp for layer in graph.layers if isinstance(layer.mlp, Moe))
    return sorted({moe.latent.up.in_features for moe in moes if moe.latent is not None})


def _first_adds(layer: DecoderLayer) -> bool:
    """Whether only the first tensor-parallel rank holds some bias of the layer, because partial sums are added."""
    if isinstance(layer.mlp, Moe):
        return bool(layer.attention.out.biases)
    return bool(layer.attention.out.biases or layer.mlp.down.biases)
