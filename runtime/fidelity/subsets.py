"""Which rows a score is about: the subsets that are reported, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from ...isa.instruction import Array

Columns = Mapping[str, Array]

BF16 = "bf16"
LARGE_KV_BYTES = 16_000_000


@dataclass(frozen=True)
class Subset:
    """Rows of one operation: `keeps` gives a mask [rows] of a table's columns, `means` says it in words."""

    name: str
    op: str
    means: str
    keeps: Callable[[Columns], Array]


def kv_bytes(columns: Columns) -> Array:
    """Bytes of keys and values [rows] that a decode step finds in its cache, in 16 bits."""
    cached = columns["batch_size"] * columns["step"]
    return 2 * 2 * cached * columns["num_key_value_heads"] * columns["head_dim"]


def _is_bf16_gemm(columns: Columns) -> Array:
    found: Array = columns["gemm_dtype"] == BF16
    return found


def _is_large_gemm(columns: Columns) -> Array:
    sizes = [(columns[name] >= 1024) & (columns[name] <= 16384) for name in ("n", "k")]
    found: Array = _is_bf16_gemm(columns) & sizes[0] & sizes[1]
    return found


def _is_usual_attention(columns: Columns) -> Array:
    """bf16, head_dim 128, no window, 1 to 8 heads over each kv head."""
    group = columns["num_heads"] // columns["num_key_value_heads"]
    plain = (columns["attn_dtype"] == BF16) & (columns["kv_cache_dtype"] == BF16) & (columns["window_size"] == 0)
    found: Array = plain & (columns["head_dim"] == 128) & (group >= 1) & (group <= 8)
    return found


def _is_long_prefill(columns: Columns) -> Array:
    return _is_usual_attention(columns) & (columns["isl"] >= 512)


def _is_large_decode(columns: Columns) -> Array:
    return _is_usual_attention(columns) & (columns["batch_size"] <= 256) & (kv_bytes(columns) > LARGE_KV_BYTES)


def _every(columns: Columns) -> Array:
    return np.ones(len(next(iter(columns.values()))), bool)


SUBSETS = (
    Subset("gemm_all", "gemm", "bf16, the whole grid", _is_bf16_gemm),
    Subset("gemm_1k_16k", "gemm", "bf16, n and k from 1,024 to 16,384", _is_large_gemm),
    Subset(
        "prefill_hd128", "prefill", "bf16, head_dim 128, no window, group 1-8, 512 tokens or more", _is_long_prefill
    ),
    Subset("decode_hd128", "decode", "as prefill, batch up to 256, KV over 16 MB", _is_large_decode),
    Subset("all_reduce_all", "all_reduce", "every size and element type", _every),
    Subset("tpot_dense", "tpot", "servers of dense models: a static batch, others' prompts, the host's time", _every),
)
