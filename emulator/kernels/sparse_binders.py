"""The binder of SELECT_KEYS."""

from __future__ import annotations

import numpy as np

from ...isa.errors import ProgramError
from ...isa.meaning import ArrayMemory
from ...isa.sparse import SELECT_KEYS
from .attention import check_attention
from .binding import Thunk, floats, integers, kernel_of, operand
from .sparse import select_keys
from .tensor_binders import attention_error
from .threads import over_rows


@kernel_of(SELECT_KEYS)
def bind_select_keys(i: SELECT_KEYS, memory: ArrayMemory) -> Thunk:
    """The positions of the best keys for each new token of each sequence."""
    dst = operand(i, memory, i.dst)
    q, weights, cache = floats(i, memory, i.q, i.weights, i.cache)
    pages, page_tokens = cache.shape[0], cache.shape[1]
    if i.tables.size is not None:
        raise ProgramError(f"{i.mnemonic}: tables must be a whole buffer, not columns of one (in: {i})")
    tables = operand(i, memory, i.tables).rows
    q_lens, kv_lens = integers(i, memory, i.q_lens), integers(i, memory, i.kv_lens)
    places = (dst.rows, dst.start, dst.cols, q.rows, q.start, weights.rows, weights.start, cache.rows, cache.start)
    arguments = (*places, page_tokens, tables, q_lens, kv_lens, i.heads, i.dim, np.float32(i.scale))

    def run(first: int, last: int) -> int:
        return int(select_keys(*arguments, first, last))

    def thunk() -> None:
        wrong, sequence, at = check_attention(q_lens, kv_lens, tables, pages, page_tokens, q.count)
        if wrong:
            raise attention_error(i, wrong, sequence, at, q_lens, kv_lens, tables, pages, q.count)
        pairs = int(np.dot(q_lens.astype(np.int64), kv_lens))
        over_rows(run, q.count, pairs * i.heads * i.dim // 8)

    return thunk
