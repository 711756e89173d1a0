"""Sparse attention: what a config says about choosing tokens, and the indexer that a layer becomes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ..isa.errors import ConfigError
from .blocks import Indexer, Norm, Projection, Rope
from .fields import Fields

KINDS = ("full", "shared")
LAYER_KIND = "indexed_attention"
KEY_EPS = 1e-6  # of the norm of index keys, whatever the model's own


@dataclass(frozen=True)
class IndexConfig:
    """Heads of `dim` elements that choose `top_k` tokens; `full` says of every layer whether it chooses for itself.

    A layer that does not takes the choice of the last one before it that does. `interleaved` is how rope turns the
    indexer's heads.
    """

    heads: int
    dim: int
    top_k: int
    full: tuple[bool, ...]
    interleaved: bool


def read_indexer(fields: Fields, layers: int, rope_dim: int, default_heads: int, interleaved: bool) -> IndexConfig:
    """The keys of deepseek_v32; all its layers choose for themselves."""
    defaults = {"index_n_heads": default_heads, "index_head_dim": 128, "index_topk": 2048}
    for key, value in defaults.items():
        fields.assume(key, value)
    heads, dim, top_k = (fields.integer(key, value) for key, value in defaults.items())
    if dim < rope_dim:
        raise ConfigError(
            f"{fields.where}: index_head_dim {dim} is below qk_rope_head_dim {rope_dim}, which rope turns of each head"
        )
    fields.neutral("layer_types", [LAYER_KIND] * layers, None)
    fields.neutral("indexer_rope_interleave", interleaved, None)
    return IndexConfig(heads, dim, top_k, (True,) * layers, interleaved)


def read_sharing(fields: Fields, index: IndexConfig) -> IndexConfig:
    """Which layers choose: indexer_types, else a pattern of F and S, else every so many as transformers 5 has it."""
    layers = len(index.full)
    kinds: Any = fields.take("indexer_types", None)
    pattern: Any = fields.take("index_topk_pattern", None, record=False)
    frequency, offset = (fields.take(key, None, record=False) for key in ("index_topk_freq", "index_skip_topk_offset"))
    if kinds is None and pattern is not None:
        kinds = [{"F": KINDS[0], "S": KINDS[1]}.get(letter, letter) for letter in pattern]
    if kinds is None:
        every = 1 if frequency is None else max(1, fields.integer("index_topk_freq", minimum=0))
        first = 2 if offset is None else fields.integer("index_skip_topk_offset", minimum=0)
        kinds = [KINDS[max(at - first + 1, 0) % every != 0] for at in range(layers)]
    for derived in ("index_topk_freq", "index_skip_topk_offset"):
        fields.resolved.pop(derived, None)  # indexer_types says it
    if not isinstance(kinds, list) or len(kinds) != layers or not set(map(str, kinds)) <= set(KINDS):
        raise fields.fault("indexer_types", f"a list of {layers} of {' and '.join(KINDS)} (num_hidden_layers)")
    if kinds[0] != KINDS[0]:
        raise fields.fault("indexer_types", "full in the first layer, which has no earlier choice to share")
    fields.resolved["indexer_types"] = list(kinds)
    return replace(index, full=tuple(kind == KINDS[0] for kind in kinds))


def build_indexer(index: IndexConfig, prefix: str, hidden: int, q_rank: int, rope: Rope) -> Indexer:
    """The indexer whose tensors stand below `prefix` (`model.layers.N.self_attn.indexer`)."""

    def projection(part: str, out: int, in_features: int) -> Projection:
        return Projection((f"{prefix}.{part}.weight",), (), (out,), in_features)

    return Indexer(
        q=projection("wq_b", index.heads * index.dim, q_rank),
        k=projection("wk", index.dim, hidden),
        k_norm=Norm("layer", index.dim, f"{prefix}.k_norm.weight", f"{prefix}.k_norm.bias", KEY_EPS),
        weights=projection("weights_proj", index.heads, hidden),
        heads=index.heads,
        dim=index.dim,
        rope=replace(rope, interleaved=index.interleaved),
    )
