"""Latent attention on one rank: the latents whole on every rank, the heads that are made of them cut."""

from __future__ import annotations

from typing import Any

from ...isa.dma import SCATTER
from ...isa.instruction import Instruction
from ...isa.latent import LATENT_ATTENTION
from ...isa.operands import Ref
from ...isa.partial import PARTIAL_LATENT_ATTENTION
from ...isa.program import Space
from ...isa.rows import SIGMOID_GATE
from ...isa.tensor import MATMUL
from ...models.blocks import LatentAttention, Projection
from .attention import lower_rope
from .builder import BlockBuilder, buffer
from .context import kind_of
from .indexer import lower_choice
from .spread import Attend, attend
from .stage import Stage


def lower_latent_attention(
    stage: Stage, block: BlockBuilder, attention: LatentAttention, name: str, x: Ref, out: Ref
) -> None:
    """out = this rank's part of attention(x), to be summed over the tensor-parallel group."""
    dtype, heads = stage.options.dtype, attention.num_heads // stage.layout.tp
    nope, rope = heads * attention.nope_dim, heads * attention.rope_dim
    first = _make_latents_and_queries(stage, block, attention, name, x)
    row = attention.latent_dim + attention.rope_dim
    latent, shared = (
        Ref("latents", first, attention.latent_dim),
        Ref("latents", first + row - attention.rope_dim, attention.rope_dim),
    )
    stage.norm(block, f"{name}.kv_norm", attention.kv_norm, latent, latent)
    for part in (Ref("q", nope, rope), shared):
        lower_rope(stage, block, attention.rope, part, attention.rope_dim)
    options = stage.options
    cache = buffer(f"{name}.cache", Space.KV, options.kv_dtype, "pages", options.page_tokens, row)
    held = block.param("cache", cache)
    slots = block.param("slots", stage.inputs.slots)
    block.emit(SCATTER(dst=held, src=Ref("latents", first, row), index=slots))
    chosen = lower_choice(stage, block, attention, name, x, Ref("latents", 0, first or None))
    attended = block.local("attended", dtype, "tokens", heads * attention.v_dim)
    attend(stage, block, _attend(stage, block, attention, name, chosen), held, attended)
    if attention.gate is not None:
        _gate(stage, block, attention.gate, name, x, attended)
    weight, bias = stage.weights.row_parallel(f"{name}.out", attention.out)
    w, b = stage.weight(block, "out_weight", weight), stage.optional(block, "out_bias", bias)
    block.emit(MATMUL(dst=out, a=attended, w=w, bias=b))


def _gate(stage: Stage, block: BlockBuilder, gate: Projection, name: str, x: Ref, attended: Ref) -> None:
    """What this rank's heads give, times the sigmoid of their rows of the gate."""
    weight, _ = stage.weights.fused(f"{name}.out_gate", gate, [stage.weights.share(gate.out_features[0])])
    made = block.local("out_gate", stage.options.dtype, *block.locals[attended.buffer].shape)
    block.emit(MATMUL(dst=made, a=x, w=stage.weight(block, "out_gate_weight", weight), bias=None))
    block.emit(SIGMOID_GATE(dst=attended, x=attended, gate=made))


def _attend(stage: Stage, block: BlockBuilder, attention: LatentAttention, name: str, chosen: Ref | None) -> Attend:
    """How this rank's heads attend."""
    heads = attention.num_heads // stage.layout.tp
    dims = {name: getattr(attention, name) for name in ("nope_dim", "rope_dim", "v_dim", "scale")}
    dims |= stage.options.latent.operands
    order = stage.options.latent.order
    weight = stage.weights.latent_heads(f"{name}.kv_up", attention, packs=order != "absorbed")
    w = stage.weight(block, "kv_up_weight", weight)

    def whole(queries: tuple[Ref, ...], **operands: Any) -> Instruction:
        own, turned = queries
        return LATENT_ATTENTION(q_nope=own, q_rope=turned, w=w, heads=heads, chosen=chosen, **dims, **operands)

    def part(queries: tuple[Ref, ...], **operands: Any) -> Instruction:
        return PARTIAL_LATENT_ATTENTION(q_nope=queries[0], q_rope=queries[1], w=w, heads=heads, **dims, **operands)

    cuts = (heads * attention.nope_dim, heads * attention.rope_dim)
    row = attention.latent_dim + attention.rope_dim
    return Attend(Ref("q", 0, sum(cuts)), cuts, heads, attention.v_dim, row, kind_of(attention), whole, part)


def _make_latents_and_queries(stage: Stage, block: BlockBuilder, attention: LatentAttention, name: str, x: Ref) -> int:
    """Fill `latents` and `q`, own parts of all heads before rotated ones; returns the column where key latents begin.

    Where queries come of a latent too, both latents are one product.
    """
    dtype, heads = stage.options.dtype, attention.num_heads // stage.layout.tp
    row, rank = attention.latent_dim + attention.rope_dim, 0
    made, a, queries = [attention.kv], x, attention.q
    if attention.q_norm is not None and attention.q_up is not None:
        rank = attention.q_norm.size
        made, a, queries = [attention.q, attention.kv], Ref("latents", 0, rank), attention.q_up
    weight, bias = stage.weights.stacked(f"{name}.latents", made)
    w, b = stage.weight(block, "latents_weight", weight), stage.optional(block, "latents_bias", bias)
    latents = block.local("latents", dtype, "tokens", rank + row)
    block.emit(MATMUL(dst=latents, a=x, w=w, bias=b))
    if attention.q_norm is not None:
        stage.norm(block, f"{name}.q_norm", attention.q_norm, a, a)
    q = block.local("q", dtype, "tokens", heads * (attention.nope_dim + attention.rope_dim))
    weight = stage.weights.latent_queries(f"{name}.q", queries, attention)
    block.emit(MATMUL(dst=q, a=a, w=stage.weight(block, "q_weight", weight), bias=None))
    return rank
