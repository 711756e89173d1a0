"""Sparse attention's choice on one rank: index keys into a cache of their own, and the best of them for every token.

Every rank of a tensor-parallel group makes the whole choice, as vLLM and SGLang have it: an indexer is small beside its
layer, its key is shared by all its heads, and cut heads would have to add up a score for every pair of tokens.
"""

from __future__ import annotations

from ...isa.dma import SCATTER
from ...isa.dtype import FP32
from ...isa.operands import Ref
from ...isa.program import Space
from ...isa.sparse import SELECT_KEYS
from ...isa.tensor import MATMUL
from ...models.blocks import LatentAttention, Projection
from .attention import lower_rope
from .builder import BlockBuilder, buffer
from .spread import over_context
from .stage import Stage


def lower_choice(
    stage: Stage, block: BlockBuilder, attention: LatentAttention, name: str, x: Ref, latent: Ref
) -> Ref | None:
    """The tokens that every new one attends to, int32 [tokens, top_k]; None where it attends to all it sees.

    `latent` is what the attention's own queries are made of.
    """
    if not attention.top_k:
        return None
    chosen = stage.choice(block, attention.top_k)
    indexer = attention.indexer
    if indexer is None:
        return chosen
    options = stage.options
    queries = block.local("index_q", options.dtype, "tokens", indexer.heads * indexer.dim)
    key = block.local("index_k", options.dtype, "tokens", indexer.dim)
    weights = block.local("index_weights", FP32, "tokens", indexer.heads)
    _product(stage, block, f"{name}.index_q", indexer.q, latent, queries)
    _product(stage, block, f"{name}.index_k", indexer.k, x, key)
    _product(stage, block, f"{name}.index_weights", indexer.weights, x, weights)
    stage.norm(block, f"{name}.index_k_norm", indexer.k_norm, key, key)
    for part in (queries, key):
        lower_rope(stage, block, indexer.rope, part, indexer.dim)
    cache = buffer(f"{name}.index_cache", Space.KV, options.kv_dtype, "pages", options.page_tokens, indexer.dim)
    held = block.param("index_cache", cache)
    block.emit(SCATTER(dst=held, src=key, index=block.param("slots", stage.inputs.slots)))
    block.emit(
        SELECT_KEYS(
            dst=chosen,
            q=queries,
            weights=weights,
            heads=indexer.heads,
            dim=indexer.dim,
            scale=indexer.scale,
            **over_context(stage, block, held, indexer.dim, "index_share"),
        )
    )
    return chosen


def _product(stage: Stage, block: BlockBuilder, name: str, projection: Projection, a: Ref, dst: Ref) -> None:
    """dst = the projection of a, whole on every rank."""
    weight = stage.weights.whole(name, projection.weights[0], projection.out_features[0], projection.in_features)
    block.emit(MATMUL(dst=dst, a=a, w=stage.weight(block, f"{name.rpartition('.')[2]}_weight", weight), bias=None))
