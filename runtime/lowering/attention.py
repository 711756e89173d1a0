"""Grouped-query attention on one rank: fused projection, head norms, rope, cache write, attention, output product."""

from __future__ import annotations

from typing import Any

from ...isa.dma import SCATTER
from ...isa.dtype import FP32
from ...isa.instruction import Instruction
from ...isa.operands import Ref
from ...isa.partial import PARTIAL_ATTENTION
from ...isa.program import Buffer, Space
from ...isa.rows import RMS_SCALE, SIGMOID_GATE, SUM_SQUARES
from ...isa.scaling import POSITION_SCALE, RMS_UNIT
from ...isa.tensor import ATTENTION, MATMUL
from ...isa.vector import ROPE
from ...models.blocks import Attention, Rope
from ..layout import kv_heads_of
from .builder import BlockBuilder, buffer
from .context import kind_of
from .spread import Attend, attend
from .stage import Stage


def lower_attention(stage: Stage, block: BlockBuilder, attention: Attention, name: str, x: Ref, out: Ref) -> None:
    """out = this rank's part of attention(x), to be summed over the tensor-parallel group."""
    dtype, dim = stage.options.dtype, attention.head_dim
    heads = attention.num_heads // stage.layout.tp
    _, kv_heads = kv_heads_of(attention.num_kv_heads, stage.layout.tp, stage.tp_index)
    weight, bias = stage.weights.qkv(f"{name}.qkv", attention)
    gate_at = (heads + 2 * kv_heads) * dim
    block.local("qkv", dtype, "tokens", gate_at + (heads * dim if attention.output_gate else 0))
    w, b = stage.weight(block, "qkv_weight", weight), stage.optional(block, "qkv_bias", bias)
    block.emit(MATMUL(dst=Ref("qkv"), a=x, w=w, bias=b))
    q, k = Ref("qkv", 0, heads * dim), Ref("qkv", heads * dim, kv_heads * dim)
    _norms(stage, block, attention, name, q, k)
    lower_rope(stage, block, attention.rope, Ref("qkv", 0, (heads + kv_heads) * dim), dim)
    _scale(stage, block, attention, q, Ref("qkv", 0, (heads + kv_heads) * dim))
    reach = stage.reach(attention)
    cache = block.param("cache", _cache(stage, attention, name, kv_heads, reach.pages))
    slots = block.param("slots", reach.named(stage.inputs.slots))
    block.emit(SCATTER(dst=cache, src=Ref("qkv", heads * dim, 2 * kv_heads * dim), index=slots))
    attended = block.local("attended", dtype, "tokens", heads * dim)
    how = _attend(stage, block, attention, name, (heads, kv_heads))
    attend(stage, block, how, cache, attended)
    if attention.output_gate:
        block.emit(SIGMOID_GATE(dst=attended, x=attended, gate=Ref("qkv", gate_at, heads * dim)))
    weight, bias = stage.weights.row_parallel(f"{name}.out", attention.out)
    w, b = stage.weight(block, "out_weight", weight), stage.optional(block, "out_bias", bias)
    block.emit(MATMUL(dst=out, a=attended, w=w, bias=b))


def _attend(
    stage: Stage, block: BlockBuilder, attention: Attention, name: str, heads_and_kv: tuple[int, int]
) -> Attend:
    """How this rank's heads attend."""
    (heads, kv_heads), dim = heads_and_kv, attention.head_dim
    sinks = stage.optional(block, "sinks", stage.weights.sinks(f"{name}.sinks", attention))
    shared: dict[str, Any] = {
        "heads": heads,
        "kv_heads": kv_heads,
        "qk_dim": dim,
        "v_dim": dim,
        "scale": attention.scale,
    }

    def whole(queries: tuple[Ref, ...], **operands: Any) -> Instruction:
        limits: dict[str, Any] = {"window": attention.window, "chunk": attention.chunk, "soft_cap": attention.soft_cap}
        return ATTENTION(q=queries[0], sinks=sinks, **limits, **shared, **operands)

    def part(queries: tuple[Ref, ...], **operands: Any) -> Instruction:
        return PARTIAL_ATTENTION(q=queries[0], soft_cap=attention.soft_cap, **shared, **operands)

    return Attend(
        queries=Ref("qkv", 0, heads * dim),
        cuts=(heads * dim,),
        heads=heads,
        v_dim=dim,
        row=kv_heads * 2 * dim,
        kind=kind_of(attention),
        whole=whole,
        part=part,
        sinks=sinks,
        reach=stage.reach(attention),
    )


def _norms(stage: Stage, block: BlockBuilder, attention: Attention, name: str, q: Ref, k: Ref) -> None:
    """Norms of query and key: of each head, or of all heads together, whose mean then runs over all ranks."""
    if attention.q_norm is None or attention.k_norm is None:
        return
    both = ((q, attention.q_norm, "q_norm"), (k, attention.k_norm, "k_norm"))
    if attention.q_norm.size == attention.head_dim or stage.layout.tp == 1:
        for part, norm, label in both:
            stage.norm(block, f"{name}.{label}", norm, part, part)
        return
    squares = block.local("squares", FP32, "tokens", 2)
    for column, (part, _, _) in enumerate(both):
        block.emit(SUM_SQUARES(dst=Ref("squares", column, 1), x=part))
    stage.all_reduce(block, squares)
    rows = stage.weights.qkv_rows(attention)
    for column, (part, norm, label) in enumerate(both):
        first, stop = rows[column]
        weight = stage.weights.heads_norm(f"{name}.{label}", norm, first, stop - first)
        # a head that several ranks hold a copy of is in the sum, and in the count, as often
        block.emit(
            RMS_SCALE(
                dst=part,
                x=part,
                squares=Ref("squares", column, 1),
                weight=stage.weight(block, label, weight),
                count=(stop - first) * stage.layout.tp,
                eps=norm.eps,
            )
        )


def _scale(stage: Stage, block: BlockBuilder, attention: Attention, q: Ref, qk: Ref) -> None:
    """Heads of q and k to unit mean square, and queries by their positions, where the model does so."""
    if attention.unit_eps is not None:
        block.emit(RMS_UNIT(dst=qk, x=qk, run=attention.head_dim, eps=attention.unit_eps))
    if attention.temperature is not None:
        positions = block.param("positions", stage.inputs.positions)
        block.emit(POSITION_SCALE(q, positions, attention.temperature.step, attention.temperature.strength))


def lower_rope(stage: Stage, block: BlockBuilder, rope: Rope | None, heads: Ref, head_dim: int) -> None:
    """Rotate heads in place."""
    if rope is None:
        return
    cos, sin = stage.rope_table(block, rope)
    block.emit(
        ROPE(
            x=heads,
            cos=cos,
            sin=sin,
            positions=block.param("positions", stage.inputs.positions),
            head_dim=head_dim,
            rotary_dim=rope.rotary_dim,
            interleaved=rope.interleaved,
        )
    )


def _cache(stage: Stage, attention: Attention, name: str, kv_heads: int, pages: str) -> Buffer:
    row = kv_heads * 2 * attention.head_dim
    return buffer(f"{name}.cache", Space.KV, stage.options.kv_dtype, pages, stage.options.page_tokens, row)
