"""Caches of 8-bit codes: the pages that a batch reads, decoded beside each other before attention looks at them."""

from __future__ import annotations

import numpy as np

from ...isa.cache import PagedCache
from ...isa.dtype import FP32, decode
from ...isa.instruction import Array
from ...isa.meaning import ArrayMemory
from .binding import FLOATS, Operand, Thunk, operand

_shared: dict[str, Array] = {}


def cache_operand(
    cache: PagedCache, memory: ArrayMemory, tables: Array, kv_lens: Array
) -> tuple[Operand, Thunk | None]:
    """The cache as kernels read it, floats [pages, page_tokens, row], and what fills it in where it holds codes.

    Decoded rows stand in memory that all instructions share: they are good until the next one decodes its own.
    """
    held = operand(cache.owner, memory, cache.cache)
    if held.dtype in FLOATS:
        return held, None
    pages, page_tokens = held.shape[:2]
    row, codes = cache.row(memory), held.view.reshape(held.shape)
    count = pages * page_tokens * row
    room = _shared.get("cache")
    if room is None or room.size < count:
        room = _shared["cache"] = np.empty(count, np.float32)
    wide = room[:count].reshape(pages, page_tokens, row)
    scales, rest = (None if ref is None else operand(cache.owner, memory, ref) for ref in (cache.scales, cache.rest))
    values = _table(held)

    def fill() -> None:
        for table, length in zip(tables, kv_lens, strict=True):
            own = table[: -(-int(length) // page_tokens)]
            decoded = values[codes[own].view(np.uint8)]
            if scales is not None:
                decoded *= scales.view.reshape(scales.shape)[own].repeat(cache.group, axis=-1)[..., : codes.shape[2]]
            wide[own, :, : codes.shape[2]] = decoded
            if rest is not None:
                kept = rest.view.reshape(rest.shape)[own]
                stored = kept.view(np.float16) if rest.dtype.name == "fp16" else kept
                wide[own, :, codes.shape[2] :] = decode(np.ascontiguousarray(stored), rest.dtype)

    return Operand(wide.reshape(-1, row), 0, row, FP32, wide.shape), fill


def _table(held: Operand) -> Array:
    """float32 value of every byte."""
    every = np.arange(256, dtype=np.uint8)
    return decode(every.view(held.dtype.storage), held.dtype).astype(np.float32)
