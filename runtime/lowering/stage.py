"""Stage: what the lowerings of all blocks share - the rank's place, its inputs, and the program under construction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ...isa.dtype import INT32, INT64, DType
from ...isa.link import ALL_REDUCE
from ...isa.operands import Ref
from ...isa.program import Buffer, Extent, Space
from ...isa.quantised import DEQUANTISE
from ...isa.registry import INSTRUCTIONS
from ...isa.vector import LAYERNORM, RMSNORM
from ...isa.work import Unit
from ...models.blocks import Attention, DeltaNet, Graph, LatentAttention, Norm, Rope
from ...models.graph import rope_tables, table_of
from ..layout import Layout
from .builder import BlockBuilder, ProgramBuilder, buffer
from .context import Mode
from .held import Holding, PackedBuffer, space_of
from .latent_order import LatentOrder
from .passes.cache import CodedCache
from .passes.offload import Offload
from .passes.packed import Activations
from .passes.window import DEFAULT_FUSIONS
from .reach import KvPages, Reach, limited_reaches, reach_of
from .templates import Renaming, Template, Weights
from .weights import WeightBuffer, WeightPlan

EXTENTS = (
    Extent("tokens"),  # new tokens of the step, all sequences together
    Extent("sequences"),
    Extent("rows"),  # positions whose logits are computed
    Extent("pages"),  # KV pages that the tables may name
    Extent("table_pages"),  # columns of the block tables
    Extent("positions"),  # rows of the rope tables
    Extent("q_lens", is_vector=True),
    Extent("kv_lens", is_vector=True),
)


def table_names(index: int) -> tuple[str, str]:
    """The buffers of a rope's cosines and sines; `index` is its place in `rope_tables`."""
    return ("cos", "sin") if not index else (f"cos.{index}", f"sin.{index}")


SHARE = "share"  # rows of the residual stream that a rank holds of its tokens, with sequence parallelism
STATES = "states"  # rows of the state buffers: sequences that are held at once


def routed_extent(top_k: int) -> str:
    """The name of the extent that is tokens * top_k."""
    return f"tokens.x{top_k}"


@dataclass(frozen=True)
class Sampling:
    """How the next token is picked: greedy at temperature 0, else drawn by a seeded hash."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0


@dataclass(frozen=True)
class LoweringOptions:
    """What a program is lowered for, apart from model, layout and rank.

    `native` are the mnemonics that the card executes itself, `fuse` the fusions that are made of them; `mode` says how
    attention reaches a context that is spread over shares. `kv_pages` ideal gives layers that look back only so far
    pages of their own, which hold no more. `placements` says
    which expert stands in each slot of a layer, by the layer's name, where some stand in several.
    """

    dtype: DType
    kv_dtype: DType
    page_tokens: int
    queue_of: Mapping[Unit, str]
    sampling: Sampling = Sampling()
    head: Literal["pick", "none"] = "pick"
    holding: Holding = Holding()
    native: frozenset[str] = frozenset(INSTRUCTIONS)
    fuse: tuple[str, ...] = DEFAULT_FUSIONS
    activations: Activations | None = None
    mode: Mode = "whole"
    sequence_parallel: bool = False
    placements: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    kv_pages: KvPages = "unified"
    cache: CodedCache | None = None
    latent: LatentOrder = LatentOrder()
    offload: Offload = Offload()
    overlap: bool = False

    @property
    def most_copies(self) -> int:
        """The most slots that one expert of any layer has."""
        return max(max(Counter(placement).values()) for placement in self.placements.values())


@dataclass(frozen=True)
class Inputs:
    """Device buffers that the host fills each step."""

    ids: Buffer = buffer("ids", Space.INPUT, INT32, "tokens")
    positions: Buffer = buffer("positions", Space.INPUT, INT32, "tokens")
    slots: Buffer = buffer("slots", Space.INPUT, INT32, "tokens")
    tables: Buffer = buffer("tables", Space.INPUT, INT32, "sequences", "table_pages")
    q_lens: Buffer = buffer("q_lens", Space.INPUT, INT32, "sequences")
    kv_lens: Buffer = buffer("kv_lens", Space.INPUT, INT32, "sequences")
    rows: Buffer = buffer("rows", Space.INPUT, INT32, "rows")
    keys: Buffer = buffer("keys", Space.INPUT, INT64, "rows")
    states: Buffer = buffer("states", Space.INPUT, INT32, "sequences")


class Stage:
    """One pipeline stage on one tensor-parallel rank; `weights` and `program` are collected while it is lowered.

    `templates` are the layers lowered so far by kind; `repeats` those that are one of them renamed, after how many
    weights.
    """

    def __init__(self, graph: Graph, layout: Layout, rank: int, options: LoweringOptions) -> None:
        self.graph, self.layout, self.options = graph, layout, options
        self.rank, self.number = rank, layout.stage_of(rank)
        self.tp_index = layout.tp_index_of(rank)
        self.layers = layout.stage_layers(len(graph.layers))[self.number]
        self.weights = WeightPlan(layout, rank, options.dtype, options.holding, options.placements)
        head = "" if options.head == "pick" else "-nohead"
        mode = "" if options.mode == "whole" else f"-{options.mode}"
        self.templates: dict[Hashable, list[Template]] = {}
        self.repeats: list[tuple[int, Template, Renaming]] = []
        self.program = ProgramBuilder(f"{graph.family}-stage{self.number}{mode}{head}", options.queue_of)
        self.inputs = Inputs()
        self._tables = {rope: table_names(index) for index, rope in enumerate(rope_tables(graph))}
        self.is_shared = options.sequence_parallel and layout.tp > 1
        self.stream = self.program.scalar(SHARE) if self.is_shared else "tokens"
        self.x = buffer("x", Space.ACTIVATION, options.dtype, self.stream, graph.hidden_size)
        self.groups = {axis: len(layout.groups(rank)[axis]) for axis in ("tp", "pp")}
        self.shares_choice = any(
            isinstance(layer.attention, LatentAttention) and layer.attention.takes_choice for layer in graph.layers
        )

    @property
    def held(self) -> Weights:
        """All weights that have been collected."""
        return Weights(tuple(self.weights.buffers.values()), tuple(self.repeats))

    @property
    def is_first(self) -> bool:
        """Whether this stage embeds."""
        return self.number == 0

    @property
    def is_last(self) -> bool:
        """Whether this stage computes logits."""
        return self.number == self.layout.pp - 1

    @property
    def has_states(self) -> bool:
        """Whether some layer of this stage keeps a state of fixed size for each sequence."""
        return any(isinstance(self.graph.layers[index].attention, DeltaNet) for index in self.layers)

    @property
    def limited_reaches(self) -> tuple[Reach, ...]:
        """The reaches of this stage's layers that have pages of their own."""
        return limited_reaches((self.graph.layers[index] for index in self.layers), self.options.kv_pages)

    def reach(self, attention: Attention) -> Reach:
        """The reach of a layer's cache, whose pages are then counted by an extent of the program."""
        reach = reach_of(attention, self.options.kv_pages)
        if not reach.is_whole:
            self.program.scalar(reach.pages)
        return reach

    def rope_table(self, block: BlockBuilder, rope: Rope) -> tuple[Ref, Ref]:
        """Cosines and sines of a rope as parameters of a block, which all ropes' blocks call alike."""
        cos, sin = (
            block.param(name, buffer(table, Space.TABLE, self.options.dtype, "positions", rope.rotary_dim // 2))
            for name, table in zip(("cos", "sin"), self._tables[table_of(rope)], strict=True)
        )
        return cos, sin

    def group(self, axis: str) -> str:
        """The name of the rank's group along an axis, which the program then declares."""
        self.groups[axis] = len(self.layout.groups(self.rank)[axis])
        return axis

    def choice(self, block: BlockBuilder, top_k: int) -> Ref:
        """The chosen tokens of every new one: a buffer that later layers read, or a local where none does."""
        if not self.shares_choice:
            return block.local("chosen", INT32, "tokens", top_k)
        return block.param("chosen", buffer("chosen", Space.ACTIVATION, INT32, "tokens", top_k))

    def own(self, number: int | str) -> int | str:
        """A number of this rank: the same on all, or the extent that says it, which the program then declares."""
        return self.program.scalar(number) if isinstance(number, str) else number

    def routed_rows(self, top_k: int) -> str:
        """The extent that counts a step's choices of experts: tokens times `top_k`."""
        return self.program.scalar(routed_extent(top_k))

    def weight(self, block: BlockBuilder, name: str, weight: WeightBuffer) -> Ref:
        """A weight as a parameter of a block; a quantised one is dequantised into a local of it."""
        if weight.packed is not None:
            dst = block.local(f"{name}_values", weight.type.dtype, *weight.shape)
            block.emit(DEQUANTISE(dst=dst, **self.packed(block, name, weight, weight.packed)))
            return dst
        return block.param(name, buffer(weight.name, Space.WEIGHT, weight.type.dtype, *weight.type.shape))

    def packed(self, block: BlockBuilder, name: str, weight: WeightBuffer, packed: PackedBuffer) -> dict[str, Any]:
        """The operands by which an instruction reads a packed weight."""
        parts = {
            part: block.param(f"{name}_{part}", Buffer(f"{weight.name}.{part}", kind, space_of(part)))
            for part, kind in packed.types.items()
        }
        return {**parts, "form": packed.form, "phase": packed.phase}

    def optional(self, block: BlockBuilder, name: str, weight: WeightBuffer | None) -> Ref | None:
        """A weight that may be absent."""
        return None if weight is None else self.weight(block, name, weight)

    def all_reduce(self, block: BlockBuilder, x: Ref) -> None:
        """Sum partial results over the tensor-parallel group."""
        if self.layout.tp > 1:
            block.emit(ALL_REDUCE(x=x, group="tp"))

    def norm(self, block: BlockBuilder, name: str, norm: Norm, dst: Ref, x: Ref) -> None:
        """dst = norm(x); `name` is that of the weight's buffer, its last word that of the parameter."""
        label = name.rpartition(".")[2]
        weight = self.weight(block, label, self.weights.norm(name, norm))
        if norm.kind == "layer":
            assert norm.bias is not None, "layer norms of the known families have biases"
            bias = self.weight(block, f"{label}_bias", self.weights.whole(f"{name}.bias", norm.bias, norm.size))
            block.emit(LAYERNORM(dst=dst, x=x, weight=weight, bias=bias, eps=norm.eps))
            return
        block.emit(RMSNORM(dst=dst, x=x, weight=weight, eps=norm.eps, plus_one=norm.plus_one))
