"""Layout: how a model is spread over cards - which rank stands where, in which groups, with which slices."""

from __future__ import annotations

from dataclasses import dataclass, fields

from ..isa.errors import ConfigError, NotYetError
from ..isa.instruction import split_even
from ..models.blocks import DecoderLayer, Graph
from ..models.fields import cut

MOST_CARDS = 1 << 16
_MOST_DIGITS = 9


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
    for axis in ("dp", "cp", "ep"):
        if degrees.get(axis, 1) > 1:
            raise NotYetError(f"layout {text!r}: {axis}={degrees[axis]} comes with a later version; use tp and pp")
    return Layout(**degrees)


def legal_tp(graph: Graph) -> list[int]:
    """Tensor-parallel degrees that divide every layer's heads and feed-forward width.

    The kv heads are dealt out evenly, or each is replicated on as many ranks as it takes; every rank holds at least one
    row of the vocabulary.
    """
    sizes = {_sizes(layer) for layer in graph.layers}
    most = min(graph.vocab_size, MOST_CARDS, *(heads for heads, _, _ in sizes)) if sizes else 1
    return [degree for degree in range(1, most + 1) if all(_fits(*size, degree) for size in sizes)]


def _sizes(layer: DecoderLayer) -> tuple[int, int, int]:
    return layer.attention.num_heads, layer.attention.num_kv_heads, layer.mlp.intermediate_size


def _fits(heads: int, kv_heads: int, width: int, degree: int) -> bool:
    return heads % degree == 0 and (kv_heads % degree == 0 or degree % kv_heads == 0) and width % degree == 0


def check_layout(layout: Layout, graph: Graph, cluster_cards: int | None) -> None:
    """Refuse a mesh that this model or cluster cannot take, naming the legal degrees."""
    legal = legal_tp(graph)
    if layout.tp not in legal:
        attention = graph.layers[0].attention
        raise ConfigError(
            f"tp={layout.tp} does not fit {graph.name}: it must divide {attention.num_heads} attention heads, share or "
            f"replicate {attention.num_kv_heads} kv heads evenly, divide the feed-forward width "
            f"{graph.layers[0].mlp.intermediate_size} and be at most the vocabulary of {graph.vocab_size}; "
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
