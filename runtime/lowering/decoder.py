"""Dense decoders: the blocks of one pipeline stage on one tensor-parallel rank, from the model's graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ...isa.dma import EMBEDDING, GATHER, HOST_LOAD, HOST_STORE, SCATTER
from ...isa.dtype import FP32, INT32, INT64, DType
from ...isa.errors import NotYetError
from ...isa.link import ALL_GATHER, ALL_REDUCE, RECV, SEND
from ...isa.operands import Ref
from ...isa.program import Buffer, Extent, Group, Program, Space
from ...isa.tensor import ATTENTION, MATMUL
from ...isa.vector import ADD, ADD_RMSNORM, ARGMAX, GATED, RMSNORM, ROPE, SAMPLE
from ...isa.work import Unit
from ...models.blocks import Attention, DecoderLayer, GatedMlp, Graph, Norm
from ..layout import Layout, kv_heads_of
from .builder import BlockBuilder, ProgramBuilder, buffer
from .weights import WeightBuffer, WeightPlan, head_name, layer_name

LOGITS_DTYPE = FP32  # as they leave the accumulator: rounding them to 16 bits would make ties of near tokens
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


@dataclass(frozen=True)
class Sampling:
    """How the next token is picked: greedy at temperature 0, else drawn by a seeded hash."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0


@dataclass(frozen=True)
class LoweringOptions:
    """What a program is lowered for, apart from model, layout and rank."""

    dtype: DType
    kv_dtype: DType
    page_tokens: int
    queue_of: Mapping[Unit, str]
    sampling: Sampling = Sampling()
    head: Literal["pick", "none"] = "pick"


@dataclass(frozen=True)
class Inputs:
    """Device buffers that the host fills each step."""

    ids: Buffer
    positions: Buffer
    slots: Buffer
    tables: Buffer
    q_lens: Buffer
    kv_lens: Buffer
    rows: Buffer
    keys: Buffer


class DecoderLowering:
    """Builds the program of one rank; the weight plan and the cache buffers are collected on the way."""

    def __init__(self, graph: Graph, layout: Layout, rank: int, options: LoweringOptions) -> None:
        self.graph, self.layout, self.options = graph, layout, options
        self.stage = layout.stage_of(rank)
        self.layers = layout.stage_layers(len(graph.layers))[self.stage]
        self.weights = WeightPlan(layout, rank, options.dtype)
        head = "" if options.head == "pick" else "-nohead"
        self.program = ProgramBuilder(f"{graph.family}-stage{self.stage}{head}", options.queue_of)
        self.index = layout.tp_index_of(rank)
        self.x = buffer("x", Space.ACTIVATION, options.dtype, "tokens", graph.hidden_size)

    @property
    def is_first(self) -> bool:
        """Whether this stage embeds."""
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        """Whether this stage computes logits."""
        return self.stage == self.layout.pp - 1

    def build(self) -> Program:
        """The whole program: inputs, embedding or receive, layers, head or send."""
        inputs = self._inputs()
        self._load_inputs(inputs)
        if self.is_first:
            self._embed(inputs)
        else:
            self._receive()
        for index in self.layers:
            self._layer(self.graph.layers[index], inputs)
        if not self.is_last:
            self._send()
        elif self.options.head == "pick":
            self._head(inputs)
        groups = (Group("tp", self.layout.tp), Group("pp", self.layout.pp))
        return self.program.build(EXTENTS, groups)

    def _inputs(self) -> Inputs:
        def device(name: str, dtype: DType, *shape: str) -> Buffer:
            return buffer(name, Space.INPUT, dtype, *shape)

        return Inputs(
            ids=device("ids", INT32, "tokens"),
            positions=device("positions", INT32, "tokens"),
            slots=device("slots", INT32, "tokens"),
            tables=device("tables", INT32, "sequences", "table_pages"),
            q_lens=device("q_lens", INT32, "sequences"),
            kv_lens=device("kv_lens", INT32, "sequences"),
            rows=device("rows", INT32, "rows"),
            keys=device("keys", INT64, "rows"),
        )

    def _needed(self, inputs: Inputs) -> list[Buffer]:
        needed = [inputs.positions, inputs.slots, inputs.tables, inputs.q_lens, inputs.kv_lens]
        if self.is_first:
            needed.insert(0, inputs.ids)
        if self.is_last and self.options.head == "pick":
            needed.append(inputs.rows)
            if self.options.sampling.temperature > 0:
                needed.append(inputs.keys)
        return needed

    def _load_inputs(self, inputs: Inputs) -> None:
        block = self.program.block("inputs")
        for device in self._needed(inputs):
            name = f"host.{device.name}"
            host = block.param(name, buffer(name, Space.HOST, device.type.dtype, *device.type.shape))
            block.emit(HOST_LOAD(dst=block.param(device.name, device), src=host))
        self.program.call(block)

    def _weight(self, block: BlockBuilder, name: str, weight: WeightBuffer) -> Ref:
        return block.param(name, buffer(weight.name, Space.WEIGHT, weight.type.dtype, *weight.type.shape))

    def _optional(self, block: BlockBuilder, name: str, weight: WeightBuffer | None) -> Ref | None:
        return None if weight is None else self._weight(block, name, weight)

    def _all_reduce(self, block: BlockBuilder, x: Ref) -> None:
        if self.layout.tp > 1:
            block.emit(ALL_REDUCE(x=x, group="tp"))

    def _embed(self, inputs: Inputs) -> None:
        graph = self.graph
        table, first = self.weights.vocabulary("embedding", graph.embedding, graph.vocab_size, graph.hidden_size)
        block = self.program.block("embed")
        x, ids = block.param("x", self.x), block.param("ids", inputs.ids)
        block.emit(EMBEDDING(dst=x, table=self._weight(block, "table", table), ids=ids, first=first))
        self._all_reduce(block, x)
        self.program.call(block)

    def _receive(self) -> None:
        block = self.program.block("receive")
        block.emit(RECV(x=block.param("x", self.x), group="pp", peer=self.stage - 1))
        self.program.call(block)

    def _send(self) -> None:
        block = self.program.block("send")
        block.emit(SEND(x=block.param("x", self.x), group="pp", peer=self.stage + 1))
        self.program.call(block)

    def _layer(self, layer: DecoderLayer, inputs: Inputs) -> None:
        """x += attention(norm(x)); x += mlp(norm(x)), the first add fused into the second norm."""
        block = self.program.block("layer")
        dtype, hidden = self.options.dtype, self.graph.hidden_size
        x = block.param("x", self.x)
        normed = block.local("normed", dtype, "tokens", hidden)
        partial = block.local("partial", dtype, "tokens", hidden)
        name = layer_name(layer)
        self._norm(block, f"{name}.input_norm", layer.input_norm, normed, x)
        self._attention(block, layer, inputs, normed, partial)
        self._all_reduce(block, partial)
        norm = layer.post_attention_norm
        weight = self._weight(block, "post_norm", self.weights.norm(f"{name}.post_norm", norm))
        block.emit(ADD_RMSNORM(dst=normed, x=x, delta=partial, weight=weight, eps=norm.eps, plus_one=norm.plus_one))
        self._mlp(block, name, layer.mlp, normed, partial)
        self._all_reduce(block, partial)
        block.emit(ADD(dst=x, a=x, b=partial))
        self.program.call(block)

    def _norm(self, block: BlockBuilder, name: str, norm: Norm, dst: Ref, x: Ref) -> None:
        if norm.kind != "rms":
            raise NotYetError(f"{name}: {norm.kind} norms are not lowered yet; rms norms are")
        weight = self._weight(block, name.rpartition(".")[2], self.weights.norm(name, norm))
        block.emit(RMSNORM(dst=dst, x=x, weight=weight, eps=norm.eps, plus_one=norm.plus_one))

    def _attention(self, block: BlockBuilder, layer: DecoderLayer, inputs: Inputs, x: Ref, out: Ref) -> None:
        attention, name, dtype = layer.attention, layer_name(layer), self.options.dtype
        dim = attention.head_dim
        heads = attention.num_heads // self.layout.tp
        _, kv_heads = kv_heads_of(attention.num_kv_heads, self.layout.tp, self.index)
        weight, bias = self.weights.fused(f"{name}.qkv", attention.qkv, self.weights.qkv_rows(attention))
        qkv = block.local("qkv", dtype, "tokens", (heads + 2 * kv_heads) * dim)
        block.emit(
            MATMUL(
                dst=qkv, a=x, w=self._weight(block, "qkv_weight", weight), bias=self._optional(block, "qkv_bias", bias)
            )
        )
        q, k = Ref("qkv", 0, heads * dim), Ref("qkv", heads * dim, kv_heads * dim)
        for part, norm, label in ((q, attention.q_norm, "q_norm"), (k, attention.k_norm, "k_norm")):
            if norm is not None:
                self._norm(block, f"{name}.{label}", norm, part, part)
        self._rope(block, attention, Ref("qkv", 0, (heads + kv_heads) * dim), inputs)
        cache = block.param("cache", self._cache(layer, kv_heads))
        slots = block.param("slots", inputs.slots)
        block.emit(SCATTER(dst=cache, src=Ref("qkv", heads * dim, 2 * kv_heads * dim), index=slots))
        attended = block.local("attended", dtype, "tokens", heads * dim)
        block.emit(
            ATTENTION(
                dst=attended,
                q=q,
                cache=cache,
                tables=block.param("tables", inputs.tables),
                q_lens=block.param("q_lens", inputs.q_lens),
                kv_lens=block.param("kv_lens", inputs.kv_lens),
                q_extent="q_lens",
                kv_extent="kv_lens",
                heads=heads,
                kv_heads=kv_heads,
                qk_dim=dim,
                v_dim=dim,
                scale=attention.scale,
                window=attention.window,
            )
        )
        weight, bias = self.weights.row_parallel(f"{name}.out", attention.out)
        w, b = self._weight(block, "out_weight", weight), self._optional(block, "out_bias", bias)
        block.emit(MATMUL(dst=out, a=attended, w=w, bias=b))

    def _rope(self, block: BlockBuilder, attention: Attention, heads: Ref, inputs: Inputs) -> None:
        rope = attention.rope
        if rope is None:
            return
        half = rope.rotary_dim // 2
        cos, sin = (
            block.param(name, buffer(name, Space.TABLE, self.options.dtype, "positions", half))
            for name in ("cos", "sin")
        )
        block.emit(
            ROPE(
                x=heads,
                cos=cos,
                sin=sin,
                positions=block.param("positions", inputs.positions),
                head_dim=attention.head_dim,
                rotary_dim=rope.rotary_dim,
                interleaved=rope.interleaved,
            )
        )

    def _cache(self, layer: DecoderLayer, kv_heads: int) -> Buffer:
        row = kv_heads * 2 * layer.attention.head_dim
        shape = ("pages", self.options.page_tokens, row)
        return buffer(f"{layer_name(layer)}.cache", Space.KV, self.options.kv_dtype, *shape)

    def _mlp(self, block: BlockBuilder, name: str, mlp: GatedMlp, x: Ref, out: Ref) -> None:
        dtype, width = self.options.dtype, mlp.intermediate_size // self.layout.tp
        gate_up = block.local("gate_up", dtype, "tokens", 2 * width)
        weight, bias = self.weights.gate_up(f"{name}.gate_up", mlp)
        w, b = self._weight(block, "gate_up_weight", weight), self._optional(block, "gate_up_bias", bias)
        block.emit(MATMUL(dst=gate_up, a=x, w=w, bias=b))
        activated = block.local("activated", dtype, "tokens", width)
        block.emit(GATED(dst=activated, x=gate_up, activation=mlp.activation))
        weight, bias = self.weights.row_parallel(f"{name}.down", mlp.down)
        w, b = self._weight(block, "down_weight", weight), self._optional(block, "down_bias", bias)
        block.emit(MATMUL(dst=out, a=activated, w=w, bias=b))

    def _head(self, inputs: Inputs) -> None:
        """Final norm and logits of the wanted rows, over the vocabulary shards, and the pick on every rank."""
        graph, dtype = self.graph, self.options.dtype
        block = self.program.block("head")
        wanted = block.local("wanted", dtype, "rows", graph.hidden_size)
        block.emit(GATHER(dst=wanted, src=block.param("x", self.x), index=block.param("rows", inputs.rows)))
        normed = block.local("normed", dtype, "rows", graph.hidden_size)
        self._norm(block, "final_norm", graph.final_norm, normed, wanted)
        head, _ = self.weights.vocabulary(
            head_name(graph, self.layout), graph.lm_head, graph.vocab_size, graph.hidden_size
        )
        shard = self._shard_logits(block, normed, head)
        logits = buffer("logits", Space.ACTIVATION, LOGITS_DTYPE, "rows", graph.vocab_size)
        whole = block.param("logits", logits)
        if shard is None:
            block.emit(MATMUL(dst=whole, a=normed, w=Ref("head"), bias=None))
        else:
            block.emit(ALL_GATHER(dst=whole, src=shard, group="tp", axis="columns"))
        self._pick(block, whole, inputs)
        self.program.call(block)

    def _shard_logits(self, block: BlockBuilder, normed: Ref, head: WeightBuffer) -> Ref | None:
        w = self._weight(block, "head", head)
        if self.layout.tp == 1:
            return None
        shard = block.local("shard", LOGITS_DTYPE, "rows", head.type.shape[0])
        block.emit(MATMUL(dst=shard, a=normed, w=w, bias=None))
        return shard

    def _pick(self, block: BlockBuilder, logits: Ref, inputs: Inputs) -> None:
        sampling = self.options.sampling
        picked = block.param("picked", buffer("picked", Space.INPUT, INT32, "rows"))
        if sampling.temperature > 0:
            keys = block.param("keys", inputs.keys)
            block.emit(SAMPLE(picked, logits, keys, sampling.temperature, sampling.top_k, sampling.top_p))
        else:
            block.emit(ARGMAX(dst=picked, x=logits))
        host = block.param("host.picked", buffer("host.picked", Space.HOST, INT32, "rows"))
        block.emit(HOST_STORE(dst=host, src=picked))
