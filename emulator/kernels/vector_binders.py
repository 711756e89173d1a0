"""Binders of the vector unit: norms, rope, gates, element-wise arithmetic, softmax, choices, casts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...isa.errors import ProgramError
from ...isa.instruction import Array, Instruction
from ...isa.meaning import ArrayMemory
from ...isa.operands import Ref
from ...isa.rows import RMS_SCALE, SIGMOID_GATE, SUM_SQUARES
from ...isa.vector import ADD, ADD_RMSNORM, ARGMAX, CAST, GATED, LAYERNORM, RMSNORM, ROPE, SAMPLE, SCALE, SOFTMAX
from . import elementwise, norms, softmax
from .binding import Thunk, floats, integers, kernel_of, out_of_range
from .conversion import conversion
from .threads import SMALL_ELEMENTS, over_rows


def rowwise(kernel: Callable[..., Any], arguments: tuple[Any, ...], rows: int, operations: int) -> Thunk:
    """A thunk over kernel(*arguments, first, last) for a kernel that never stops early."""

    def run(first: int, last: int) -> int:
        return int(kernel(*arguments, first, last))

    def small() -> None:
        kernel(*arguments, 0, rows)

    def large() -> None:
        over_rows(run, rows, operations)

    return large if operations >= SMALL_ELEMENTS else small


def _run(instruction: Instruction, memory: ArrayMemory, ref: Ref) -> Array:
    """A norm's weight or bias as one run of elements."""
    return floats(instruction, memory, ref)[0].flat


@kernel_of(RMSNORM)
def bind_rmsnorm(i: RMSNORM, memory: ArrayMemory) -> Thunk:
    """dst = x / rms(x) * weight."""
    dst, x = floats(i, memory, i.dst, i.x)
    weight = _run(i, memory, i.weight)
    arguments = (dst.rows, dst.start, x.rows, x.start, x.cols, weight, np.float32(i.eps), i.plus_one)
    return rowwise(norms.rmsnorm, arguments, x.count, 4 * x.count * x.cols)


@kernel_of(ADD_RMSNORM)
def bind_add_rmsnorm(i: ADD_RMSNORM, memory: ArrayMemory) -> Thunk:
    """x += delta; dst = x / rms(x) * weight."""
    dst, x, delta = floats(i, memory, i.dst, i.x, i.delta)
    weight = _run(i, memory, i.weight)
    places = (dst.rows, dst.start, x.rows, x.start, delta.rows, delta.start)
    arguments = (*places, x.cols, weight, np.float32(i.eps), i.plus_one)
    return rowwise(norms.add_rmsnorm, arguments, x.count, 5 * x.count * x.cols)


@kernel_of(LAYERNORM)
def bind_layernorm(i: LAYERNORM, memory: ArrayMemory) -> Thunk:
    """dst = (x - mean) / deviation * weight (+ bias)."""
    dst, x = floats(i, memory, i.dst, i.x)
    weight = _run(i, memory, i.weight)
    bias = np.empty(0, weight.dtype) if i.bias is None else _run(i, memory, i.bias)
    arguments = (dst.rows, dst.start, x.rows, x.start, weight, bias, np.float32(i.eps))
    return rowwise(norms.layernorm, arguments, x.count, 6 * x.count * x.cols)


@kernel_of(ROPE)
def bind_rope(i: ROPE, memory: ArrayMemory) -> Thunk:
    """Rotate the heads of x by its positions' angles."""
    x, cos, sin = floats(i, memory, i.x, i.cos, i.sin)
    positions = integers(i, memory, i.positions)
    tables = (cos.rows, cos.start, sin.rows, sin.start, positions)
    arguments = (x.rows, x.start, x.cols, *tables, i.head_dim, i.rotary_dim // 2, i.interleaved)
    rows, kernel = x.count, elementwise.rope
    operations = 2 * x.count * x.cols

    def run(first: int, last: int) -> int:
        return int(kernel(*arguments, first, last))

    def thunk() -> None:
        bad = kernel(*arguments, 0, rows) if operations < SMALL_ELEMENTS else over_rows(run, rows, operations)
        if bad >= 0:
            raise out_of_range(i, "positions", positions, bad, cos.count)

    return thunk


@kernel_of(GATED)
def bind_gated(i: GATED, memory: ArrayMemory) -> Thunk:
    """dst = activation(gate) * up."""
    dst, x = floats(i, memory, i.dst, i.x)
    activation = elementwise.ACTIVATIONS[i.activation]
    arguments = (dst.rows, dst.start, x.rows, x.start, dst.cols, activation)
    return rowwise(elementwise.gated, arguments, dst.count, 8 * dst.count * dst.cols)


@kernel_of(SIGMOID_GATE)
def bind_sigmoid_gate(i: SIGMOID_GATE, memory: ArrayMemory) -> Thunk:
    """dst = x * sigmoid(gate)."""
    dst, x, gate = floats(i, memory, i.dst, i.x, i.gate)
    arguments = (dst.rows, dst.start, x.rows, x.start, gate.rows, gate.start, dst.cols, gate.cols == 1)
    return rowwise(elementwise.sigmoid_gate, arguments, dst.count, 8 * dst.count * dst.cols)


@kernel_of(SUM_SQUARES)
def bind_sum_squares(i: SUM_SQUARES, memory: ArrayMemory) -> Thunk:
    """dst = the sum of a row's squares."""
    dst, x = floats(i, memory, i.dst, i.x)
    arguments = (dst.rows, dst.start, x.rows, x.start, x.cols)
    return rowwise(norms.sum_squares, arguments, x.count, 2 * x.count * x.cols)


@kernel_of(RMS_SCALE)
def bind_rms_scale(i: RMS_SCALE, memory: ArrayMemory) -> Thunk:
    """dst = x / sqrt(squares / count + eps) * weight."""
    dst, x, squares = floats(i, memory, i.dst, i.x, i.squares)
    places = (dst.rows, dst.start, x.rows, x.start, squares.rows, squares.start, x.cols)
    arguments = (*places, _run(i, memory, i.weight), np.float32(i.count), np.float32(i.eps), i.plus_one)
    return rowwise(norms.rms_scale, arguments, x.count, 2 * x.count * x.cols)


@kernel_of(ADD)
def bind_add(i: ADD, memory: ArrayMemory) -> Thunk:
    """dst = a + b."""
    dst, a, b = floats(i, memory, i.dst, i.a, i.b)
    arguments = (dst.rows, dst.start, a.rows, a.start, b.rows, b.start, dst.cols)
    return rowwise(elementwise.add, arguments, dst.count, dst.count * dst.cols)


@kernel_of(SCALE)
def bind_scale(i: SCALE, memory: ArrayMemory) -> Thunk:
    """dst = x * factor."""
    dst, x = floats(i, memory, i.dst, i.x)
    arguments = (dst.rows, dst.start, x.rows, x.start, dst.cols, np.float32(i.factor))
    return rowwise(elementwise.scale, arguments, dst.count, dst.count * dst.cols)


@kernel_of(CAST)
def bind_cast(i: CAST, memory: ArrayMemory) -> Thunk:
    """dst = x in dst's dtype."""
    return conversion(i, memory, i.dst, i.x)


@kernel_of(SOFTMAX)
def bind_softmax(i: SOFTMAX, memory: ArrayMemory) -> Thunk:
    """dst = exp(x - max) / sum."""
    dst, x = floats(i, memory, i.dst, i.x)
    arguments = (dst.rows, dst.start, x.rows, x.start, dst.cols)
    return rowwise(softmax.softmax, arguments, dst.count, 6 * dst.count * dst.cols)


@kernel_of(ARGMAX)
def bind_argmax(i: ARGMAX, memory: ArrayMemory) -> Thunk:
    """dst = index of the largest."""
    (x,) = floats(i, memory, i.x)
    arguments = (integers(i, memory, i.dst), x.rows, x.start, x.cols)
    return rowwise(softmax.argmax, arguments, x.count, x.count * x.cols)


@kernel_of(SAMPLE)
def bind_sample(i: SAMPLE, memory: ArrayMemory) -> Thunk:
    """dst = a seeded draw."""
    (x,) = floats(i, memory, i.x)
    chosen, draws = integers(i, memory, i.dst), integers(i, memory, i.keys)
    keys, values = np.empty(x.cols, np.uint64), np.empty(x.cols, np.float32)

    def thunk() -> None:
        for row in range(x.count):
            strange = softmax.sort_keys(keys, values, x.rows, x.start, row)
            if strange or not np.isfinite(values.max()):
                raise ProgramError(
                    f"sample: the largest score is {values.max()}: no distribution to draw from (in: {i})"
                )
            chosen[row] = softmax.sample(keys, values, int(draws[row]), i.temperature, i.top_k, i.top_p)

    return thunk
