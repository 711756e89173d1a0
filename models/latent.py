"""Latent attention layers: what a config says about latents and heads, and the block it becomes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..isa.errors import ConfigError
from .blocks import LatentAttention, Norm, Projection, Rope
from .fields import Fields
from .indexer import IndexConfig, build_indexer

LATENT_EPS = 1e-6  # of the norms of latents, whatever the model's own


@dataclass(frozen=True)
class LatentConfig:
    """Sizes in elements: of the two latents (`q_rank` 0: queries are made directly), and of a head's parts.

    `interleaved` says that rope turns neighbours, `bias` that what makes latents and outputs has biases, `turned` that
    there is a rope at all, `output_gate` that g_proj makes a gate of what the heads give; `index` is what chooses
    tokens where attention is sparse.
    """

    q_rank: int
    kv_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int
    interleaved: bool = True
    bias: bool = False
    turned: bool = True
    output_gate: bool = False
    index: IndexConfig | None = None

    @property
    def head_dim(self) -> int:
        """Elements of a head's query and key."""
        return self.nope_dim + self.rope_dim


def read_latent(fields: Fields, heads: int, default_q_rank: int | None = 1536, **defaults: int) -> LatentConfig:
    """The sizes under DeepSeek's keys, absent ones by the defaults; every head has a key of its own."""
    sizes = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128} | defaults
    for key, value in sizes.items():
        fields.assume(key, value)
    kv_rank, nope, rope, v = (fields.integer(key, value) for key, value in sizes.items())
    if rope % 2:
        raise ConfigError(f"{fields.where}: qk_rope_head_dim {rope} is odd; rope turns pairs, so it must be even")
    fields.assume("q_lora_rank", default_q_rank)
    q_rank = fields.integer_or_none("q_lora_rank", default_q_rank)
    fields.neutral("num_key_value_heads", heads, None)
    fields.resolved["num_key_value_heads"] = heads
    for repeated in ("head_dim", "qk_head_dim"):  # transformers derives both, whatever the file says
        fields.take(repeated, None, record=False)
    return LatentConfig(q_rank or 0, kv_rank, nope, rope, v, bias=fields.flag("attention_bias", False))


def softmax_scale(latent: LatentConfig, rope: Rope) -> float:
    """What multiplies the scores: yarn's mscale_all_dim acts here, squared, and not on cosines and sines."""
    scale: float = latent.head_dim**-0.5
    scaling = rope.scaling
    if scaling.rule == "yarn" and scaling.mscale_all_dim and scaling.factor > 1:
        scale *= (0.1 * scaling.mscale_all_dim * math.log(scaling.factor) + 1.0) ** 2
    return scale


def build_latent(
    latent: LatentConfig, prefix: str, heads: int, hidden: int, rope: Rope, layer: int = 0
) -> LatentAttention:
    """The attention of a layer, whose tensors stand below `prefix` (`model.layers.N.self_attn`)."""

    def projection(part: str, out: int, in_features: int, bias: bool = False) -> Projection:
        biases = (f"{prefix}.{part}.bias",) if bias else ()
        return Projection((f"{prefix}.{part}.weight",), biases, (out,), in_features)

    def norm(part: str, size: int) -> Norm:
        return Norm("rms", size, f"{prefix}.{part}.weight", None, LATENT_EPS)

    q_size, index = heads * latent.head_dim, latent.index
    return LatentAttention(
        q=projection("q_a_proj", latent.q_rank, hidden, latent.bias)
        if latent.q_rank
        else projection("q_proj", q_size, hidden),
        q_norm=norm("q_a_layernorm", latent.q_rank) if latent.q_rank else None,
        q_up=projection("q_b_proj", q_size, latent.q_rank) if latent.q_rank else None,
        kv=projection("kv_a_proj_with_mqa", latent.kv_rank + latent.rope_dim, hidden, latent.bias),
        kv_norm=norm("kv_a_layernorm", latent.kv_rank),
        kv_up=projection("kv_b_proj", heads * (latent.nope_dim + latent.v_dim), latent.kv_rank),
        out=projection("o_proj", hidden, heads * latent.v_dim, latent.bias),
        num_heads=heads,
        nope_dim=latent.nope_dim,
        rope_dim=latent.rope_dim,
        v_dim=latent.v_dim,
        latent_dim=latent.kv_rank,
        scale=softmax_scale(latent, rope),
        rope=rope if latent.turned else None,
        gate=projection("g_proj", heads * latent.v_dim, hidden) if latent.output_gate else None,
        top_k=index.top_k if index else 0,
        indexer=build_indexer(index, f"{prefix}.indexer", hidden, latent.q_rank, rope)
        if index and index.full[layer]
        else None,
    )
