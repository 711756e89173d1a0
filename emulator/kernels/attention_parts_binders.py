"""Binders of what attention is composed of: PAGED_SCORES, MASKED_SOFTMAX, PAGED_VALUES and HEADS_MATMUL."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...isa.attention_parts import HEADS_MATMUL, MASKED_SOFTMAX, PAGED_SCORES, PAGED_VALUES
from ...isa.errors import ProgramError
from ...isa.instruction import Array
from ...isa.meaning import ArrayMemory
from . import attention_parts as kernels
from .attention import check_attention
from .binding import Operand, Thunk, floats, integers, kernel_of, operand
from .tensor_binders import attention_error
from .threads import over_rows


def _over_sequences(
    i: PAGED_SCORES | PAGED_VALUES,
    memory: ArrayMemory,
    cache: Operand,
    tokens: int,
    columns: int,
    run: Callable[[Array, Array, Array, int, int], int],
) -> Thunk:
    """A thunk that checks lengths and tables, then runs heads of sequences: run(tables, both lengths, begin, end)."""
    tables = operand(i, memory, i.tables).view
    q_lens, kv_lens = integers(i, memory, i.q_lens), integers(i, memory, i.kv_lens)
    pages, page_tokens = cache.shape[0], cache.shape[1]
    units = len(q_lens) * i.heads

    def part(begin: int, end: int) -> int:
        return run(tables, q_lens, kv_lens, begin, end)

    def thunk() -> None:
        wrong, sequence, at = check_attention(q_lens, kv_lens, tables, pages, page_tokens, tokens)
        if wrong:
            raise attention_error(i, wrong, sequence, at, q_lens, kv_lens, tables, pages, tokens)
        _check_columns(i, kv_lens, columns)
        over_rows(part, units, int(np.dot(q_lens.astype(np.int64), kv_lens)) * i.heads * i.dim // 8)

    return thunk


def _check_columns(i: PAGED_SCORES | PAGED_VALUES | MASKED_SOFTMAX, kv_lens: Array, columns: int) -> None:
    longest = int(kv_lens.max(initial=0))
    if longest > columns:
        raise ProgramError(f"{i.mnemonic}: {columns} columns for {longest} cached tokens (in: {i})")


@kernel_of(PAGED_SCORES)
def bind_paged_scores(i: PAGED_SCORES, memory: ArrayMemory) -> Thunk:
    """dst = scale * queries times the keys of their sequence's pages (+ what dst holds)."""
    dst, q, cache = floats(i, memory, i.dst, i.q, i.cache)
    before = (dst.rows, i.onto is not None, q.rows, q.start, cache.rows, cache.start + i.first, cache.shape[1])
    after = (i.heads, i.heads // i.kv_heads, i.dim, np.float32(i.scale))

    def run(tables: Array, q_lens: Array, kv_lens: Array, begin: int, end: int) -> int:
        return int(kernels.paged_scores(*before, tables, q_lens, kv_lens, *after, begin, end))

    return _over_sequences(i, memory, cache, q.count, dst.cols, run)


@kernel_of(PAGED_VALUES)
def bind_paged_values(i: PAGED_VALUES, memory: ArrayMemory) -> Thunk:
    """dst = weights times the values of their sequence's pages."""
    dst, weights, cache = floats(i, memory, i.dst, i.weights, i.cache)
    before = (dst.rows, dst.start, weights.rows, cache.rows, cache.start + i.first, cache.shape[1])
    after = (i.heads, i.heads // i.kv_heads, i.dim)

    def run(tables: Array, q_lens: Array, kv_lens: Array, begin: int, end: int) -> int:
        return int(kernels.paged_values(*before, tables, q_lens, kv_lens, *after, begin, end))

    return _over_sequences(i, memory, cache, dst.count, weights.cols, run)


@kernel_of(MASKED_SOFTMAX)
def bind_masked_softmax(i: MASKED_SOFTMAX, memory: ArrayMemory) -> Thunk:
    """dst = softmax over the tokens that a row's query may see."""
    dst, x = floats(i, memory, i.dst, i.x)
    q_lens, kv_lens = integers(i, memory, i.q_lens), integers(i, memory, i.kv_lens)
    tokens, heads = x.shape[:2]
    sinks = np.empty(0, np.float32) if i.sinks is None else floats(i, memory, i.sinks)[0].flat

    chosen = np.empty((0, 0), np.int32) if i.chosen is None else operand(i, memory, i.chosen).view

    def thunk() -> None:
        if (q_lens < 0).any() or (kv_lens < q_lens).any() or int(q_lens.sum()) != tokens:
            lengths = f"q_lens {q_lens.tolist()} and kv_lens {kv_lens.tolist()}"
            raise ProgramError(f"{i.mnemonic}: {lengths} do not fit x of {tokens} rows (in: {i})")
        _check_columns(i, kv_lens, x.cols)
        new = [np.arange(length - queries, length) for queries, length in zip(q_lens, kv_lens, strict=True)]
        positions = np.concatenate(new) if new else np.empty(0, np.int64)
        arguments = (dst.rows, x.rows, positions, heads, i.window, i.chunk, sinks, chosen)

        def run(first: int, last: int) -> int:
            return int(kernels.masked_softmax(*arguments, first, last))

        bad = over_rows(run, x.count, 6 * x.count * x.cols)
        if bad >= 0:
            raise ProgramError(f"{i.mnemonic}: a chosen position of row {bad // heads} is not there (in: {i})")

    return thunk


@kernel_of(HEADS_MATMUL)
def bind_heads_matmul(i: HEADS_MATMUL, memory: ArrayMemory) -> Thunk:
    """dst = each head's columns of a times its own matrix."""
    dst, a, w = floats(i, memory, i.dst, i.a, i.w)
    n, k = dst.cols // i.heads, a.cols // i.heads
    places = (dst.rows, dst.start, a.rows, a.start, w.rows, w.start)
    arguments = (*places, i.first, w.count // i.heads, n, k, i.outputs == "rows")

    def run(first: int, last: int) -> int:
        return int(kernels.heads_matmul(*arguments, first, last))

    def thunk() -> None:
        over_rows(run, i.heads, a.count * i.heads * n * k // 8)

    return thunk
