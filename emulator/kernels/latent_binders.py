"""The binder of LATENT_ATTENTION."""

from __future__ import annotations

import numpy as np

from ...isa.errors import ProgramError
from ...isa.latent import LATENT_ATTENTION
from ...isa.meaning import ArrayMemory
from ...isa.work import LatentShape
from .attention import check_attention
from .binding import Thunk, floats, integers, kernel_of, operand
from .latent import latent_attention
from .tensor_binders import attention_error
from .threads import host_threads, over_rows


@kernel_of(LATENT_ATTENTION)
def bind_latent_attention(i: LATENT_ATTENTION, memory: ArrayMemory) -> Thunk:
    """Softmax attention of each sequence's new tokens over the latents of its pages."""
    dst, own, turned, cache, w = floats(i, memory, i.dst, i.q_nope, i.q_rope, i.cache, i.w)
    pages, page_tokens = cache.shape[0], cache.shape[1]
    if i.tables.size is not None:
        raise ProgramError(f"{i.mnemonic}: tables must be a whole buffer, not columns of one (in: {i})")
    tables = operand(i, memory, i.tables).rows
    q_lens, kv_lens = integers(i, memory, i.q_lens), integers(i, memory, i.kv_lens)
    expands = np.empty(len(q_lens), np.bool_)
    places = (dst.rows, dst.start, own.rows, own.start, turned.rows, turned.start, cache.rows, cache.start, page_tokens)
    dims = (i.heads, i.nope_dim, i.rope_dim, i.v_dim, w.cols)
    arguments = (*places, w.rows, w.start, tables, q_lens, kv_lens, expands, *dims, np.float32(i.scale))
    units = len(q_lens) * i.heads

    def run(first: int, last: int) -> int:
        return int(latent_attention(*arguments, first, last))

    def thunk() -> None:
        wrong, sequence, at = check_attention(q_lens, kv_lens, tables, pages, page_tokens, own.count)
        if wrong:
            raise attention_error(i, wrong, sequence, at, q_lens, kv_lens, tables, pages, own.count)
        lengths = tuple(map(int, q_lens)), tuple(map(int, kv_lens))
        shape = LatentShape(*lengths, *dims)
        expands[:] = [shape.expands(*pair) for pair in zip(*lengths, strict=True)]
        if host_threads() > 1:
            over_rows(run, units, sum(min(shape.ops(*pair)) for pair in zip(*lengths, strict=True)) // 16)
        else:
            latent_attention(*arguments, 0, units)

    return thunk
