"""Binders of the tensor unit: MATMUL and ATTENTION."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ...isa.arithmetic import Arithmetic
from ...isa.dtype import FP32
from ...isa.errors import ProgramError
from ...isa.instruction import Array, Instruction
from ...isa.meaning import ArrayMemory
from ...isa.tensor import ATTENTION, MATMUL
from . import attention as attention_kernels
from . import matmul as matmul_kernels
from .binding import Operand, Thunk, floats, integers, kernel_of, operand
from .coded_cache import cache_operand
from .rounding import narrow_product
from .threads import host_threads, over_rows, over_tiles, scratch

FUSED_ROWS = 16  # up to so many rows, reading the weights' own bytes once beats a BLAS call
SMALL_PRODUCTS = 1 << 22  # below this many multiply-adds one tile is enough


@dataclass(frozen=True)
class _Product:
    """The operands of a matrix product; `bias` is empty when there is none."""

    dst: Operand
    a: Operand
    w: Operand
    bias: Array


@kernel_of(MATMUL)
def bind_matmul(instruction: MATMUL, memory: ArrayMemory) -> Thunk:
    """dst = a @ w^T (+ bias)."""
    dst, a, w = floats(instruction, memory, instruction.dst, instruction.a, instruction.w)
    bias = np.empty(0, w.rows.dtype)
    if instruction.bias is not None:
        bias = floats(instruction, memory, instruction.bias)[0].flat
    product = _Product(dst, a, w, bias)
    if memory.rules.accumulator is not FP32:
        return _narrow(product, memory.rules)
    return _few_rows(product) if a.count <= FUSED_ROWS else _many_rows(product)


def _narrow(p: _Product, rules: Arithmetic) -> Thunk:
    def thunk() -> None:
        out = scratch("out", p.a.count, p.w.count)
        narrow_product(rules, out, p.a, p.w, 0, 0)
        matmul_kernels.narrow(p.dst.rows, p.dst.start, out, p.bias, 0)

    return thunk


def _few_rows(p: _Product) -> Thunk:
    arguments = (p.dst.rows, p.dst.start, p.a.rows, p.a.start, p.w.rows, p.w.start, p.a.cols, p.bias)
    outputs, kernel = p.w.count, matmul_kernels.matmul
    products = p.a.count * p.a.cols * outputs

    def run(first: int, last: int) -> int:
        return int(kernel(*arguments, first, last))

    def small() -> None:
        kernel(*arguments, 0, outputs)

    def large() -> None:
        over_rows(run, outputs, products)

    return large if products > SMALL_PRODUCTS else small


def column_tiles(m: int, k: int, n: int) -> list[tuple[int, int]]:
    """[first, last) output columns of each tile: a function of the shape alone, never of the threads."""
    if not n:
        return []
    size = n if m * k * n < SMALL_PRODUCTS else 256 if n <= 1024 else 512
    count = -(-n // size)
    width = -(-n // (16 * count)) * 16
    return [(first, min(first + width, n)) for first in range(0, n, width)]


def _many_rows(p: _Product) -> Thunk:
    tiles = column_tiles(p.a.count, p.a.cols, p.w.count)
    jobs = [_tile(p, first, last) for first, last in tiles]

    def thunk() -> None:
        values = p.a.view
        if p.a.dtype is not FP32:
            values = scratch("a", p.a.count, p.a.cols)
            over_rows(lambda first, last: _widen(values, p.a, first, last), p.a.count, p.a.count * p.a.cols)
        over_tiles(lambda tile: jobs[tile](values), len(jobs))

    return thunk


def _widen(out: Array, a: Operand, first: int, last: int) -> int:
    matmul_kernels.widen(out[first:last], a.rows, a.start, first)
    return -1


def _tile(p: _Product, first: int, last: int) -> Callable[[Array], None]:
    """One column tile, from the rows of `a` in float32: BLAS into dst itself or into scratch that is rounded once."""
    rows, k, cols = p.a.count, p.a.cols, last - first
    weights = p.w.view[first:last].T if p.w.dtype is FP32 else None
    place = p.dst.view[:, first:last] if p.dst.dtype is FP32 else None

    def run(values: Array) -> None:
        factor = weights
        if factor is None:
            block = scratch("w", cols, k)
            matmul_kernels.widen(block, p.w.rows, p.w.start, first)
            factor = block.T
        if place is not None and not p.bias.size:
            np.matmul(values, factor, out=place)
            return
        tile = scratch("out", rows, cols)
        np.matmul(values, factor, out=tile)
        matmul_kernels.narrow(p.dst.rows, p.dst.start + first, tile, p.bias, first)

    return run


@kernel_of(ATTENTION)
def bind_attention(instruction: ATTENTION, memory: ArrayMemory) -> Thunk:
    """Softmax attention of each sequence's new tokens over its pages."""
    i = instruction
    dst, q = floats(i, memory, i.dst, i.q)
    tables = operand(i, memory, i.tables).rows
    if i.tables.size is not None:
        raise ProgramError(f"attention: tables must be a whole buffer, not columns of one (in: {i})")
    q_lens, kv_lens = integers(i, memory, i.q_lens), integers(i, memory, i.kv_lens)
    cache, decode = cache_operand(i.paged, memory, tables, kv_lens)
    pages, page_tokens = cache.shape[0], cache.shape[1]
    before = (dst.rows, dst.start, q.rows, q.start, cache.rows, cache.start, page_tokens, tables, q_lens, kv_lens)
    sinks = np.empty(0, q.rows.dtype) if i.sinks is None else floats(i, memory, i.sinks)[0].flat
    masks = (np.float32(i.scale), i.window, sinks, i.chunk, np.float32(i.soft_cap))
    arguments = (*before, i.heads, i.kv_heads, i.qk_dim, i.v_dim, *masks)
    units, dims = len(q_lens) * i.heads, i.qk_dim + i.v_dim
    check, kernel = attention_kernels.check_attention, attention_kernels.attention

    def run(first: int, last: int) -> int:
        return int(kernel(*arguments, first, last))

    def thunk() -> None:
        wrong, sequence, at = check(q_lens, kv_lens, tables, pages, page_tokens, q.count)
        if wrong:
            raise attention_error(i, wrong, sequence, at, q_lens, kv_lens, tables, pages, q.count)
        if decode is not None:
            decode()
        if host_threads() > 1:
            over_rows(run, units, int(np.dot(q_lens.astype(np.int64), kv_lens)) * i.heads * dims // 8)
        else:
            kernel(*arguments, 0, units)

    return thunk


def attention_error(
    i: Instruction,
    wrong: int,
    sequence: int,
    at: int,
    q_lens: Array,
    kv_lens: Array,
    tables: Array,
    pages: int,
    tokens: int,
) -> ProgramError:
    """What `check_attention` found wrong, in words."""
    if wrong == attention_kernels.TOKENS:
        return ProgramError(f"{i.mnemonic}: q_lens add up to {at} new tokens, q has {tokens} rows (in: {i})")
    what = f"{i.mnemonic}: sequence {sequence} has q_len {q_lens[sequence]} and kv_len {kv_lens[sequence]}"
    if wrong == attention_kernels.LENGTHS:
        return ProgramError(f"{what}; 0 <= q_len <= kv_len must hold (in: {i})")
    if wrong == attention_kernels.TABLE_SHORT:
        return ProgramError(f"{what}, more than the {tables.shape[1]} pages of its table hold (in: {i})")
    return ProgramError(
        f"{what}; tables[{sequence}, {at}] is {tables[sequence, at]}, must be 0 to {pages - 1} (in: {i})"
    )
