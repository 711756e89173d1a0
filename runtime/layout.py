"""Layout: how a model is spread over cards - which rank stands where, in which groups, with which slices."""

from __future__ import annotations

from dataclasses import dataclass, fields

from ..isa.errors import ConfigError, NotYetError
from ..isa.instruction import split_even
from ..models.blocks import DecoderLayer, Graph, Moe
from ..models.fields import cut

MOST_CARDS = 1 << 16
_MOST_DIGITS = 9


@dataclass(frozen=True)
class ExpertShare:
    """A rank's part of an expert layer: `count` experts from `first` on, for tokens t with t % parts == part."""

    first: int
    count: int
    part: int
    parts: int


@dataclass(frozen=True)
class Layout:
    """Degrees of each parallel axis. `cards = pp * dp * cp * tp`; tensor-parallel neighbours have adjacent ranks.

    Within a stage `dp * cp * tp = ep * etp * edp` for the experts.
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    cp: int = 1
    ep: int = 1

    @property
    def etp(self) -> int:
        """Tensor-parallel degree of the experts: tp without expert parallelism, else 1."""
        return self.tp if self.ep == 1 else 1

    @property
    def cards(self) -> int:
        """Cards that the layout fills."""
        return self.pp * self.dp * self.cp * self.tp

    def experts_of(self, tp_index: int, experts: int) -> ExpertShare:
        """Which experts, for which tokens, the rank of a tensor-parallel index computes."""
        if self.ep == 1:
            return ExpertShare(0, experts, 0, 1)
        first, count = split_even(experts, self.ep)[tp_index % self.ep]
        return ExpertShare(first, count, tp_index // self.ep, self.expert_parts)

    @property
    def expert_parts(self) -> int:
        """Copies of each expert within a tensor-parallel group; token t is the business of copy t % copies."""
        return 1 if self.ep == 1 else self.tp // self.ep

    def rank(self, stage: int, tp_index: int) -> int:
        """The rank of tensor-parallel index `tp_index` in pipeline stage `stage`."""
        return stage * self.tp + tp_index

    def stage_of(self, rank: int) -> int:
        """Pipeline stage of a rank."""
        return rank // self.tp

    def tp_index_of(self, rank: int) -> int:
        """Tensor-parallel index of a rank."""
        return rank % self.tp

    def groups(self, rank: int) -> dict[str, tuple[int, ...]]:
        """The ranks of each group that `rank` is in, in group order: `tp` within its stage, `pp` across stages."""
        stage, index = self.stage_of(rank), self.tp_index_of(rank)
        return {
            "tp": tuple(self.rank(stage, other) for other in range(self.tp)),
            "pp": tuple(self.rank(other, index) for other in range(self.pp)),
        }

    def stage_layers(self, num_layers: int) -> list[range]:
        """The layers of each stage: an even split, earlier stages holding one more where it does not divide."""
        return [range(start, start + size) for start, size in split_even(num_layers, self.pp)]

    def __str__(self) -> str:
        return ",".join(f"{field.name}={getattr(self, field.name)}" for field in fields(self))


def parse_layout(text: str | None) -> Layout:
    """Read `tp=3,pp=2`; an axis that is not named is 1. ConfigError names the axis, its value and what is legal."""
    axes = [field.name for field in fields(Layout)]
    degrees: dict[str, int] = {}
    if text is not None and not text.strip(" ,"):
        raise ConfigError(f"layout {text!r} names no axis; write it as tp=2,pp=2, or leave it out for one card")
    for part in filter(None, (part.strip() for part in (text or "").split(","))):
        axis, equals, value = (word.strip() for word in part.partition("="))
        if axis == "cards":
            raise NotYetError("layout: cards=N makes dp follow, and dp comes with a later version; name tp and pp")
        if not equals or axis not in axes:
            raise ConfigError(f"layout {text!r}: {part!r} is not axis=degree; axes: {', '.join(axes)}")
        if axis in degrees:
            raise ConfigError(f"layout {text!r}: {axis} is given twice")
        if not value.isdecimal() or len(value) > _MOST_DIGITS or not 1 <= int(value) <= MOST_CARDS:
            raise ConfigError(
                f"layout {cut(text or '')!r}: {axis}={cut(value)!r} must be a whole number from 1 to {MOST_CARDS}"
            )
        degrees[axis] = int(value)
    for axis in ("dp", "cp"):
        if degrees.get(axis, 1) > 1:
            raise NotYetError(f"layout {text!r}: {axis}={degrees[axis]} comes with a later version; use tp, pp and ep")
    return Layout(**degrees)


def legal_tp(graph: Graph, ep: int = 1) -> list[int]:
    """Tensor-parallel degrees that divide every layer's heads and feed-forward widths, and are multiples of `ep`.

    Experts are cut along their width only where ep is 1. The kv heads are dealt out evenly, or each is replicated on as
    many ranks as it takes; every rank holds at least one row of the vocabulary.
    """
    sizes = {_sizes(layer, ep) for layer in graph.layers}
    most = min(graph.vocab_size, MOST_CARDS, *(heads for heads, _, _ in sizes)) if sizes else 1
    degrees = range(ep, most + 1, ep)
    return [degree for degree in degrees if all(_fits(*size, degree) for size in sizes)]


def _sizes(layer: DecoderLayer, ep: int) -> tuple[int, int, tuple[int, ...]]:
    return layer.attention.num_heads, layer.attention.num_kv_heads, _widths(layer, ep)


def _widths(layer: DecoderLayer, ep: int) -> tuple[int, ...]:
    """The feed-forward widths that tensor parallelism cuts."""
    if not isinstance(layer.mlp, Moe):
        return (layer.mlp.intermediate_size,)
    experts = (layer.mlp.experts.intermediate_size,) if ep == 1 else ()
    return experts if layer.mlp.shared is None else (*experts, layer.mlp.shared.intermediate_size)


def _fits(heads: int, kv_heads: int, widths: tuple[int, ...], degree: int) -> bool:
    kv_fits = kv_heads % degree == 0 or degree % kv_heads == 0
    return heads % degree == 0 and kv_fits and all(width % degree == 0 for width in widths)


def _check_ep(layout: Layout, graph: Graph) -> None:
    """Refuse an expert-parallel degree that has no experts, or more ranks than experts or cards to place them on."""
    counts = {layer.mlp.experts.count for layer in graph.layers if isinstance(layer.mlp, Moe)}
    if layout.ep == 1:
        return
    if not counts:
        raise ConfigError(f"ep={layout.ep} does not fit {graph.name}: it has no experts; leave ep at 1")
    legal = [degree for degree in range(1, min(counts) + 1) if layout.tp % degree == 0]
    if layout.ep not in legal:
        raise ConfigError(
            f"ep={layout.ep} does not fit {graph.name} at tp={layout.tp}: a stage's experts stand on its tp cards, "
            f"so ep must divide tp and be at most {min(counts)} experts; choose ep from {', '.join(map(str, legal))}"
        )


def check_layout(layout: Layout, graph: Graph, cluster_cards: int | None) -> None:
    """Refuse a mesh that this model or cluster cannot take, naming the legal degrees."""
    _check_ep(layout, graph)
    legal = legal_tp(graph, layout.ep)
    if layout.tp not in legal:
        heads, kv_heads = (
            " and ".join(map(str, sorted({getattr(layer.attention, name) for layer in graph.layers})))
            for name in ("num_heads", "num_kv_heads")
        )
        widths = sorted({width for layer in graph.layers for width in _widths(layer, layout.ep)})
        raise ConfigError(
            f"tp={layout.tp} does not fit {graph.name}: it must divide {heads} attention heads, share or "
            f"replicate {kv_heads} kv heads evenly, divide the feed-forward width "
            f"{' and '.join(map(str, widths))} and be at most the vocabulary of {graph.vocab_size}; "
            f"choose tp from {', '.join(map(str, legal))}"
        )
    if layout.pp > len(graph.layers):
        raise ConfigError(
            f"pp={layout.pp} leaves stages without a layer: {graph.name} has {len(graph.layers)} layers; "
            f"choose pp from 1 to {len(graph.layers)}"
        )
    if cluster_cards is not None and layout.cards > cluster_cards:
        raise ConfigError(
            f"layout {layout} needs {layout.cards} cards and the cluster has {cluster_cards}; "
            f"choose a smaller tp or pp, or a larger cluster"
        )


def kv_heads_of(num_kv_heads: int, tp: int, index: int) -> tuple[int, int]:
    """(first kv head, count) that a rank holds: a share of them, or one head that several ranks hold a copy of."""
    if num_kv_heads >= tp:
        count = num_kv_heads // tp
        return index * count, count
    return index * num_kv_heads // tp, 1
