"""Binders of elementary vector instructions: MULTIPLY, MAP and CLAMP."""

from __future__ import annotations

import numpy as np

from ...isa.elementary import CLAMP, MAP, MULTIPLY, OPERATIONS
from ...isa.meaning import ArrayMemory
from . import elementary
from .binding import Thunk, floats, kernel_of
from .vector_binders import rowwise


@kernel_of(MULTIPLY)
def bind_multiply(i: MULTIPLY, memory: ArrayMemory) -> Thunk:
    """dst = a * b."""
    dst, a, b = floats(i, memory, i.dst, i.a, i.b)
    arguments = (dst.rows, dst.start, a.rows, a.start, b.rows, b.start, dst.cols, b.cols == 1)
    return rowwise(elementary.multiply, arguments, dst.count, dst.count * dst.cols)


@kernel_of(MAP)
def bind_map(i: MAP, memory: ArrayMemory) -> Thunk:
    """dst = function(x)."""
    dst, x = floats(i, memory, i.dst, i.x)
    arguments = (dst.rows, dst.start, x.rows, x.start, dst.cols, elementary.FUNCTIONS[i.function])
    return rowwise(elementary.mapped, arguments, dst.count, OPERATIONS[i.function] * dst.count * dst.cols)


@kernel_of(CLAMP)
def bind_clamp(i: CLAMP, memory: ArrayMemory) -> Thunk:
    """dst = x within its bounds."""
    dst, x = floats(i, memory, i.dst, i.x)
    arguments = (dst.rows, dst.start, x.rows, x.start, dst.cols, np.float32(i.low), np.float32(i.high))
    return rowwise(elementary.clamp, arguments, dst.count, 2 * dst.count * dst.cols)
