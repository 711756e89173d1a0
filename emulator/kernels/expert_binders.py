"""Binders of expert layers: ROUTE, PERMUTE, GROUPED_MATMUL, GROUPED_GATED and COMBINE."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...isa.dtype import FP32
from ...isa.errors import ProgramError
from ...isa.experts import COMBINE, GROUPED_GATED, GROUPED_MATMUL, PERMUTE, ROUTE
from ...isa.instruction import Array, Instruction
from ...isa.meaning import ArrayMemory
from . import elementwise, experts, moves
from . import matmul as matmul_kernels
from .binding import Operand, Thunk, floats, integers, kernel_of, operand
from .dma_binders import rows_between
from .rounding import narrow_product
from .tensor_binders import FUSED_ROWS, column_tiles
from .threads import over_rows, over_tiles, scratch


@kernel_of(ROUTE)
def bind_route(i: ROUTE, memory: ArrayMemory) -> Thunk:
    """ids, weights, counts = the experts of every token; the extent holds the counts once it has ended."""
    weights, logits = floats(i, memory, i.weights, i.logits)
    ids, counts = operand(i, memory, i.ids), integers(i, memory, i.counts)
    bias = np.empty(0, np.float32) if i.bias is None else floats(i, memory, i.bias)[0].flat
    rules = (experts.SCORINGS[i.scoring], i.groups, i.top_groups, i.group_best, i.renormalise)
    places = (ids.rows, ids.start, weights.rows, weights.start, ids.cols, logits.rows, logits.start, logits.cols)
    arguments = (*places, bias, *rules, np.float32(i.eps), np.float32(i.scale))
    written = memory.written_array(i.extent, i.parts * logits.cols)

    def run(first: int, last: int) -> int:
        return int(experts.route(*arguments, first, last))

    def thunk() -> None:
        over_rows(run, logits.count, logits.count * logits.cols * (8 + ids.cols))
        experts.count(counts, ids.rows, ids.start, ids.cols, logits.cols, i.parts)
        written[:] = counts

    return thunk


@kernel_of(PERMUTE)
def bind_permute(i: PERMUTE, memory: ArrayMemory) -> Thunk:
    """dst = rows of x by expert; slots says where each choice went."""
    dst, x = rows_between(i, memory, i.dst, i.x)
    ids, slots = operand(i, memory, i.ids), operand(i, memory, i.slots)
    tokens = np.empty(dst.count, np.int32)
    chosen = (ids.rows, ids.start, ids.cols, memory.number(i.first), i.experts, memory.number(i.part), i.parts)

    def run(first: int, last: int) -> int:
        return int(moves.gather(dst.rows, dst.start, x.rows, x.start, dst.cols, tokens, first, last))

    def thunk() -> None:
        rows = experts.place(slots.rows, slots.start, tokens, *chosen)
        if rows < 0:
            raise ProgramError(f"permute: {-1 - rows} rows are chosen, and dst has {dst.count} (in: {i})")
        over_rows(run, rows, rows * dst.cols)

    return thunk


def rows_of(i: Instruction, counts: Array, at: int, number: int, limit: int) -> Array:
    """Rows of each expert, from memory; ProgramError where they cannot be."""
    own = counts[at : at + number]
    if len(own) != number or (own < 0).any() or int(own.sum()) > limit:
        raise ProgramError(f"{i.mnemonic}: counts {own.tolist()} of {number} experts for {limit} rows (in: {i})")
    return own


@kernel_of(GROUPED_MATMUL)
def bind_grouped_matmul(i: GROUPED_MATMUL, memory: ArrayMemory) -> Thunk:
    """dst = a @ w[e]^T (+ bias[e]) for every expert's rows: few of them fused, many by BLAS over column tiles."""
    dst, a, w = floats(i, memory, i.dst, i.a, i.w)
    counts = integers(i, memory, i.counts)
    number, n, k = memory.shape(i.w)
    bias = np.empty(0, w.rows.dtype) if i.bias is None else floats(i, memory, i.bias)[0].rows.reshape(-1)
    if i.bias is not None and i.bias.size is not None:
        raise ProgramError(f"grouped_matmul: bias must be a whole buffer, not columns of one (in: {i})")
    at = memory.number(i.at)
    few = (dst.rows, dst.start, a.rows, a.start, w.rows, w.start, n, k, bias, counts, at, number, FUSED_ROWS)

    def run(first: int, last: int) -> int:
        return int(experts.few_rows(*few, first, last))

    def narrow() -> None:
        rows = rows_of(i, counts, at, number, a.count)
        stops = np.cumsum(rows)
        for expert in np.flatnonzero(rows):
            start, row0 = int(stops[expert] - rows[expert]), int(expert) * n
            out = scratch("out", int(rows[expert]), n)
            narrow_product(memory.rules, out, a, w, start, row0)
            shift = bias[row0 : row0 + n] if bias.size else bias
            matmul_kernels.narrow(dst.rows[start : start + len(out)], dst.start, out, shift, 0)

    if memory.rules.accumulator is not FP32:
        return narrow

    def thunk() -> None:
        rows = rows_of(i, counts, at, number, a.count)
        small = rows <= FUSED_ROWS
        over_rows(run, n, int(rows[small].sum()) * n * k // 8)
        jobs: list[Callable[[], None]] = []
        starts = np.cumsum(rows) - rows
        for expert in np.flatnonzero(~small):
            part = slice(int(starts[expert]), int(starts[expert] + rows[expert]))
            jobs += _tiles(dst, a, w, bias, part, int(expert) * n, n)
        over_tiles(lambda tile: jobs[tile](), len(jobs))

    return thunk


def _tiles(dst: Operand, a: Operand, w: Operand, bias: Array, rows: slice, row0: int, n: int) -> list[Thunk]:
    """The column tiles of one expert's product; its matrix starts at row `row0` of w."""
    count = rows.stop - rows.start

    def tile(first: int, last: int) -> Thunk:
        def run() -> None:
            values, factor = a.view[rows], w.view[row0 + first : row0 + last]
            if a.dtype is not FP32:
                values = scratch("a", count, a.cols)
                matmul_kernels.widen(values, a.rows, a.start, rows.start)
            if w.dtype is not FP32:
                factor = scratch("w", last - first, w.cols)
                matmul_kernels.widen(factor, w.rows, w.start, row0 + first)
            out = scratch("out", count, last - first)
            np.matmul(values, factor.T, out=out)
            shift = bias[row0 : row0 + n] if bias.size else bias
            matmul_kernels.narrow(dst.rows[rows], dst.start + first, out, shift, first)

        return run

    return [tile(first, last) for first, last in column_tiles(count, a.cols, n)]


@kernel_of(GROUPED_GATED)
def bind_grouped_gated(i: GROUPED_GATED, memory: ArrayMemory) -> Thunk:
    """dst = activation(gate) * up over the rows that the counts say."""
    dst, x = floats(i, memory, i.dst, i.x)
    counts = integers(i, memory, i.counts)
    arguments = (dst.rows, dst.start, x.rows, x.start, dst.cols, elementwise.ACTIVATIONS[i.activation])

    def run(first: int, last: int) -> int:
        return int(elementwise.gated(*arguments, first, last))

    def thunk() -> None:
        rows = int(rows_of(i, counts, memory.number(i.at), i.experts, x.count).sum())
        over_rows(run, rows, 8 * rows * dst.cols)

    return thunk


@kernel_of(COMBINE)
def bind_combine(i: COMBINE, memory: ArrayMemory) -> Thunk:
    """dst[t] = the weighted sum of a token's rows of x."""
    dst, x = floats(i, memory, i.dst, i.x)
    slots = operand(i, memory, i.slots)
    given = (np.empty((0, 1), np.float32), 0)
    if i.weights is not None:
        weights = floats(i, memory, i.weights)[0]
        given = (weights.rows, weights.start)
    places = (dst.rows, dst.start, x.rows, x.start, dst.cols, slots.rows, slots.start, slots.cols)
    arguments = (*places, *given)

    def run(first: int, last: int) -> int:
        return int(experts.combine(*arguments, first, last))

    def thunk() -> None:
        bad = over_rows(run, dst.count, 2 * dst.count * dst.cols * slots.cols)
        if bad >= 0:
            held = slots.view[bad].tolist()
            raise ProgramError(f"combine: slots[{bad}] is {held}, must be below {x.count} (in: {i})")

    return thunk
