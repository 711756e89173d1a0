"""Layout: how a model is spread over cards - which rank stands where, in which groups, with which slices."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

from ..isa.errors import ConfigError
from ..isa.instruction import share_of, split_even
from ..models.blocks import DecoderLayer, Graph, Moe
from ..models.fields import cut

MOST_CARDS = 1 << 16
AXES = ("tp", "pp", "dp", "cp", "ep", "etp")  # those that groups of ranks lie along
EXCHANGE = "exchange"  # the group in which tokens travel where the cuts of an expert span holders; else it is ep
_WORDS = (*AXES, "edp", "cards")
_MOST_DIGITS = 9


@dataclass(frozen=True)
class ExpertShare:
    """A rank's part of an expert layer: `count` experts from `first` on, for tokens t with t % parts == part.

    Where some experts stand in several slots, these are slots.

    Of every expert it holds the `slice_`-th of `slices` cuts along the width. Where `travels`, those tokens are sent to
    the cards of their experts over the ep group; else the experts come to the rank's own holder's tokens.
    """

    first: int
    count: int
    part: int
    parts: int
    slice_: int = 0
    slices: int = 1
    travels: bool = False


@dataclass(frozen=True)
class Layout:
    """Degrees of each parallel axis. `cards = pp * dp * cp * tp`; tensor-parallel neighbours have adjacent ranks.

    rank = ((stage * dp + replica) * cp + share) * tp + tp index. The ranks of one replica and share of a stage are a
    *holder*: they hold the same tokens, holder replica * cp + share. Within a stage `dp * cp * tp = edp * ep * etp` for
    the experts, whose index in the stage is (copy * ep + ep index) * etp + slice. `etp` 0 follows: tp without expert
    parallelism, else 1. `split` gives the layers of each of the pp stages; without it they are dealt evenly.
    `redundant` slots beside one for each expert hold copies of some, all of them dealt out over the ep ranks.
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = 0
    redundant: int = 0
    split: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.etp:
            object.__setattr__(self, "etp", self.default_etp)

    @property
    def default_etp(self) -> int:
        """Tensor-parallel degree of the experts where none is given."""
        return self.tp if self.ep == 1 else 1

    @property
    def given_etp(self) -> int:
        """The experts' degree where it is not what follows, else 0."""
        return 0 if self.etp == self.default_etp else self.etp

    @property
    def edp(self) -> int:
        """Copies of each expert over the cards of a stage."""
        return self.stage_cards // (self.ep * self.etp)

    @property
    def cards(self) -> int:
        """Cards that the layout fills."""
        return self.pp * self.stage_cards

    @property
    def stage_cards(self) -> int:
        """Cards of one pipeline stage."""
        return self.holders * self.tp

    @property
    def holders(self) -> int:
        """Sets of ranks of a stage that hold tokens of their own."""
        return self.dp * self.cp

    def with_tp(self, tp: int) -> Layout:
        """The same mesh at another tensor-parallel degree; the experts' degree follows where it did."""
        return replace(self, tp=tp, etp=self.given_etp)

    @property
    def experts_travel(self) -> bool:
        """Whether tokens are sent to their experts: those of one copy do not all stand within one holder's ranks."""
        return self.tp % (self.ep * self.etp) != 0

    def slots(self, experts: int) -> int:
        """Places for experts over the ep ranks: more than there are experts where some stand in several."""
        return experts + self.redundant

    def experts_of(self, rank: int, experts: int) -> ExpertShare:
        """Which experts, for which tokens, and which cut of them, a rank computes."""
        first, count = share_of(self.slots(experts), self.ep, self.expert_card_of(rank))
        per_part = self.etp if self.experts_travel else self.ep * self.etp
        part = self.tp_index_of(rank) // per_part
        return ExpertShare(first, count, part, self.expert_parts, rank % self.etp, self.etp, self.experts_travel)

    def expert_card_of(self, rank: int) -> int:
        """The place of a rank along ep: which share of the experts it has."""
        return rank % self.stage_cards // self.etp % self.ep

    @property
    def expert_parts(self) -> int:
        """Parts that a holder's tokens are dealt in: token t is the business of part t % parts of its ranks."""
        return max(1, self.tp // (self.etp if self.experts_travel else self.ep * self.etp))

    @property
    def cuts(self) -> int:
        """Groups of `tp` cards that an expert's cuts stand on: more than one where they span holders."""
        return max(1, self.etp // self.tp)

    @property
    def exchange(self) -> int:
        """Ranks that exchange tokens with one another: one for each ep member and each group of cuts."""
        return self.ep * self.cuts

    def rank(self, stage: int, tp_index: int, holder: int = 0) -> int:
        """The rank of tensor-parallel index `tp_index` of a holder in pipeline stage `stage`."""
        return (stage * self.holders + holder) * self.tp + tp_index

    def stage_of(self, rank: int) -> int:
        """Pipeline stage of a rank."""
        return rank // self.stage_cards

    def tp_index_of(self, rank: int) -> int:
        """Tensor-parallel index of a rank."""
        return rank % self.tp

    def holder_of(self, rank: int) -> int:
        """The holder that a rank is of, whose tokens it computes."""
        return rank // self.tp % self.holders

    def replica_of(self, rank: int) -> int:
        """The data-parallel index of a rank."""
        return self.holder_of(rank) // self.cp

    def ranks_of(self, holder: int) -> tuple[int, ...]:
        """All ranks of a holder, stage by stage."""
        return tuple(self.rank(stage, index, holder) for stage in range(self.pp) for index in range(self.tp))

    def holders_of(self, request: int) -> range:
        """The holders that compute a request: requests are dealt to the replicas in turn."""
        replica = request % self.dp
        return range(replica * self.cp, (replica + 1) * self.cp)

    def groups(self, rank: int) -> dict[str, tuple[int, ...]]:
        """The ranks of each group that `rank` is in, in group order, by axis (`AXES`)."""
        return self._groups[rank]

    @cached_property
    def _groups(self) -> tuple[dict[str, tuple[int, ...]], ...]:
        """Of every rank; those of one group have the same tuple."""
        made: dict[tuple[int, int, int], tuple[int, ...]] = {}
        return tuple(
            {
                axis: made.get(run) or made.setdefault(run, tuple(range(run[0], run[0] + run[1] * run[2], run[1])))
                for axis, run in self._runs(rank).items()
            }
            for rank in range(self.cards)
        )

    def _runs(self, rank: int) -> dict[str, tuple[int, int, int]]:
        """(first rank, distance from one to the next, how many) of each group that a rank is in."""
        holder, place, stage_cards = self.holder_of(rank), rank % self.stage_cards, self.stage_cards
        copy = rank - place + place // (self.ep * self.etp) * self.ep * self.etp  # where its copy of the experts begins
        across = {EXCHANGE: (copy + rank % self.tp, self.tp, self.exchange)} if self.cuts > 1 else {}
        return across | {
            "tp": (rank - rank % self.tp, 1, self.tp),
            "cp": (rank - holder % self.cp * self.tp, self.tp, self.cp),
            "ep": (copy + place % self.etp, self.etp, self.ep),
            "etp": (rank - place % self.etp, 1, self.etp),
            "dp": (rank - holder // self.cp * self.cp * self.tp, self.cp * self.tp, self.dp),
            "pp": (place, stage_cards, self.pp),
        }

    @cached_property
    def group_indices(self) -> tuple[dict[str, int], ...]:
        """The index of every rank in each of its groups."""
        return tuple(
            {axis: (rank - first) // step for axis, (first, step, _) in self._runs(rank).items()}
            for rank in range(self.cards)
        )

    def stage_layers(self, num_layers: int) -> list[range]:
        """The layers of each stage: as given, or evenly, earlier stages holding one more where it does not divide."""
        if self.split:
            ends = list(accumulate(self.split))
            return [range(end - size, end) for end, size in zip(ends, self.split, strict=True)]
        return [range(start, start + size) for start, size in split_even(num_layers, self.pp)]

    def __str__(self) -> str:
        axes = [*AXES[:5], *(["etp"] if self.given_etp else [])]
        words = {axis: str(getattr(self, axis)) for axis in axes}
        if self.split:
            words["pp"] = "+".join(map(str, self.split))
        return ",".join(f"{axis}={word}" for axis, word in words.items())


def parse_layout(text: str | None) -> Layout:
    """Read `tp=3,pp=2`; an axis that is not named is 1. ConfigError names the axis, its value and what is legal.

    `pp=3+5` gives two stages of 3 and 5 layers; `cards=N` makes dp follow; `edp` is only checked.
    """
    degrees: dict[str, int] = {}
    split: tuple[int, ...] = ()
    if text is not None and not text.strip(" ,"):
        raise ConfigError(f"layout {text!r} names no axis; write it as tp=2,pp=2, or leave it out for one card")
    for part in filter(None, (part.strip() for part in (text or "").split(","))):
        axis, equals, value = (word.strip() for word in part.partition("="))
        if not equals or axis not in _WORDS:
            raise ConfigError(f"layout {text!r}: {part!r} is not axis=degree; axes: {', '.join(_WORDS)}")
        if axis in degrees:
            raise ConfigError(f"layout {text!r}: {axis} is given twice")
        if axis == "pp" and "+" in value:
            split = tuple(_degree(text, axis, size.strip()) for size in value.split("+"))
        degrees[axis] = len(split) or _degree(text, axis, value) if axis == "pp" else _degree(text, axis, value)
    return _whole(str(text), degrees, split)


def _degree(text: str | None, axis: str, value: str) -> int:
    if not value.isdecimal() or len(value) > _MOST_DIGITS or not 1 <= int(value) <= MOST_CARDS:
        raise ConfigError(
            f"layout {cut(text or '')!r}: {axis}={cut(value)!r} must be a whole number from 1 to {MOST_CARDS}"
        )
    return int(value)


def _whole(text: str, degrees: dict[str, int], split: tuple[int, ...]) -> Layout:
    """The layout of what was named: dp follows from cards, and edp must be what follows."""
    edp, cards = degrees.pop("edp", None), degrees.pop("cards", None)
    layout = Layout(**degrees, split=split)
    if cards is not None:
        own = layout.cards // layout.dp
        if cards % own or ("dp" in degrees and cards != layout.cards):
            legal = f"cards={layout.cards}" if "dp" in degrees else f"a multiple of {own}"
            raise ConfigError(f"layout {text!r}: cards={cards} is not filled by pp * dp * cp * tp; choose {legal}")
        layout = Layout(**(degrees | {"dp": cards // own}), split=split)
    if layout.stage_cards % (layout.ep * layout.etp) == 0 and edp not in (None, layout.edp):
        raise ConfigError(
            f"layout {text!r}: edp={edp} does not fit: edp * ep * etp must be the {layout.stage_cards} cards of a "
            f"stage, with ep={layout.ep} and etp={layout.etp} that is edp={layout.edp}"
        )
    return layout


def legal_tp(graph: Graph, ep: int = 1, holders: int = 1, etp: int = 0) -> list[int]:
    """Tensor-parallel degrees that divide every layer's heads and feed-forward widths, and give the experts a place.

    `holders` is dp * cp and `etp` the experts' own degree (0: it follows), which alone cuts their width. The kv heads
    are dealt out evenly, or each is replicated on as many ranks as it takes; every rank holds at least one row of the
    vocabulary.
    """
    sizes = {_sizes(layer, ep == 1 and not etp) for layer in graph.layers}
    most = min(graph.vocab_size, MOST_CARDS, *(heads for heads, _, _ in sizes)) if sizes else 1

    def has_room(degree: int) -> bool:
        slices = etp or (degree if ep == 1 else 1)
        return holders * degree % (ep * slices) == 0 and (degree % slices == 0 or slices % degree == 0)

    return [degree for degree in range(1, most + 1) if has_room(degree) and all(_fits(*size, degree) for size in sizes)]


def _sizes(layer: DecoderLayer, with_experts: bool) -> tuple[int, int, tuple[int, ...]]:
    return layer.attention.num_heads, layer.attention.num_kv_heads, _widths(layer, with_experts)


def _widths(layer: DecoderLayer, with_experts: bool) -> tuple[int, ...]:
    """The feed-forward widths that tensor parallelism cuts; those of the experts where their degree follows it."""
    if not isinstance(layer.mlp, Moe):
        return (layer.mlp.intermediate_size,)
    experts = (layer.mlp.experts.intermediate_size,) if with_experts else ()
    return experts if layer.mlp.shared is None else (*experts, layer.mlp.shared.intermediate_size)


def _fits(heads: int, kv_heads: int, widths: tuple[int, ...], degree: int) -> bool:
    kv_fits = kv_heads % degree == 0 or degree % kv_heads == 0
    return heads % degree == 0 and kv_fits and all(width % degree == 0 for width in widths)


def _check_experts(layout: Layout, graph: Graph) -> None:
    """Refuse expert degrees that have no experts, or that find no experts or cards to place them on."""
    experts = [layer.mlp.experts for layer in graph.layers if isinstance(layer.mlp, Moe)]
    if layout.redundant and layout.ep == 1:
        raise ConfigError(
            f"--redundant-experts {layout.redundant}: every card has all experts at ep=1; deal them out with ep in "
            "--layout, or leave it out"
        )
    if layout.ep == 1 and not layout.given_etp:
        return
    axis = "ep" if layout.ep > 1 else "etp"
    if not experts:
        raise ConfigError(
            f"{axis}={getattr(layout, axis)} does not fit {graph.name}: it has no experts; leave {axis} at 1"
        )
    fewest, given = min(found.count for found in experts), layout.given_etp
    most = layout.slots(fewest)
    if layout.redundant > fewest * (layout.ep - 1):
        raise ConfigError(
            f"--redundant-experts {layout.redundant} is more than every other card could hold: ep={layout.ep} and "
            f"{fewest} experts leave room for {fewest * (layout.ep - 1)}"
        )
    legal = [ep for ep in range(1, most + 1) if layout.stage_cards % (ep * (given or 1)) == 0]
    if legal and layout.ep not in legal:
        raise ConfigError(
            f"ep={layout.ep} does not fit {graph.name} at {_of_stage(layout)}: edp * ep * etp must be the cards of a "
            f"stage, so ep must divide {layout.stage_cards // (given or 1)} and be at most {most} experts; "
            f"choose ep from {', '.join(map(str, legal))}"
        )
    widths = sorted({found.intermediate_size for found in experts})
    slices = [
        etp
        for etp in range(1, layout.stage_cards + 1)
        if (layout.tp % etp == 0 or etp % layout.tp == 0)
        and layout.stage_cards % (layout.ep * etp) == 0
        and all(width % etp == 0 for width in widths)
    ]
    if layout.etp not in slices:
        raise ConfigError(
            f"etp={layout.etp} does not fit {graph.name} at {_of_stage(layout)} and ep={layout.ep}: it must divide tp "
            "or be a multiple of it, and divide the cards of a stage over ep and the experts' width "
            f"{' and '.join(map(str, widths))}; choose etp from {', '.join(map(str, slices))}"
        )


def _of_stage(layout: Layout) -> str:
    """The degrees that make up a stage, as they are given."""
    named = [f"{axis}={getattr(layout, axis)}" for axis in ("dp", "cp") if getattr(layout, axis) > 1]
    return ",".join([f"tp={layout.tp}", *named])


def _check_stages(layout: Layout, graph: Graph) -> None:
    layers = len(graph.layers)
    if layout.split and sum(layout.split) != layers:
        raise ConfigError(
            f"pp={'+'.join(map(str, layout.split))} deals out {sum(layout.split)} layers and {graph.name} has "
            f"{layers}; give {layout.pp} sizes that add up to {layers}"
        )
    if layout.pp > layers:
        raise ConfigError(
            f"pp={layout.pp} leaves stages without a layer: {graph.name} has {layers} layers; "
            f"choose pp from 1 to {layers}"
        )


def check_layout(layout: Layout, graph: Graph, cluster_cards: int | None) -> None:
    """Refuse a mesh that this model or cluster cannot take, naming the legal degrees."""
    if layout.cards > MOST_CARDS:
        raise ConfigError(f"layout {layout} needs {layout.cards} cards; there are at most {MOST_CARDS}")
    _check_experts(layout, graph)
    legal = legal_tp(graph, layout.ep, layout.holders, layout.given_etp)
    if layout.tp not in legal:
        heads, kv_heads = (
            " and ".join(map(str, sorted({getattr(layer.attention, name) for layer in graph.layers})))
            for name in ("num_heads", "num_kv_heads")
        )
        follows = layout.ep == 1 and not layout.given_etp
        widths = sorted({width for layer in graph.layers for width in _widths(layer, follows)})
        raise ConfigError(
            f"tp={layout.tp} does not fit {graph.name}: it must divide {heads} attention heads, share or "
            f"replicate {kv_heads} kv heads evenly, divide the feed-forward width "
            f"{' and '.join(map(str, widths))} and be at most the vocabulary of {graph.vocab_size}; "
            f"choose tp from {', '.join(map(str, legal))}"
        )
    _check_stages(layout, graph)
    if cluster_cards is not None and layout.cards > cluster_cards:
        raise ConfigError(
            f"layout {layout} needs {layout.cards} cards and the cluster has {cluster_cards}; "
            f"choose smaller degrees, or a larger cluster"
        )


def kv_heads_of(num_kv_heads: int, tp: int, index: int) -> tuple[int, int]:
    """(first kv head, count) that a rank holds: a share of them, or one head that several ranks hold a copy of."""
    if num_kv_heads >= tp:
        count = num_kv_heads // tp
        return index * count, count
    return index * num_kv_heads // tp, 1
