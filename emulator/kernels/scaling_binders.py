"""Binders of the instructions that scale rows: RMS_UNIT, POSITION_SCALE, SOFT_CAP and SCALE_ROUTED."""

from __future__ import annotations

import numpy as np

from ...isa.errors import ProgramError
from ...isa.meaning import ArrayMemory
from ...isa.scaling import POSITION_SCALE, RMS_UNIT, SCALE_ROUTED, SOFT_CAP
from . import scaling
from .binding import Thunk, floats, integers, kernel_of, operand
from .threads import over_rows
from .vector_binders import rowwise


@kernel_of(RMS_UNIT)
def bind_rms_unit(i: RMS_UNIT, memory: ArrayMemory) -> Thunk:
    """dst = x / rms(x), run by run."""
    dst, x = floats(i, memory, i.dst, i.x)
    arguments = (dst.rows, dst.start, x.rows, x.start, x.cols, i.run, np.float32(i.eps))
    return rowwise(scaling.rms_unit, arguments, x.count, 3 * x.count * x.cols)


@kernel_of(POSITION_SCALE)
def bind_position_scale(i: POSITION_SCALE, memory: ArrayMemory) -> Thunk:
    """x *= a factor of its position."""
    (x,) = floats(i, memory, i.x)
    positions = integers(i, memory, i.positions)
    arguments = (x.rows, x.start, x.cols, positions, np.float32(i.step), np.float32(i.strength))
    return rowwise(scaling.position_scale, arguments, x.count, x.count * x.cols)


@kernel_of(SOFT_CAP)
def bind_soft_cap(i: SOFT_CAP, memory: ArrayMemory) -> Thunk:
    """dst = cap * tanh(x / cap)."""
    dst, x = floats(i, memory, i.dst, i.x)
    arguments = (dst.rows, dst.start, x.rows, x.start, x.cols, np.float32(i.cap))
    return rowwise(scaling.soft_cap, arguments, x.count, 16 * x.count * x.cols)


@kernel_of(SCALE_ROUTED)
def bind_scale_routed(i: SCALE_ROUTED, memory: ArrayMemory) -> Thunk:
    """Rows of x times the weight of the choice that they stand for."""
    x, weights = floats(i, memory, i.x, i.weights)
    slots = operand(i, memory, i.slots)
    arguments = (
        x.rows, x.start, x.cols, slots.rows, slots.start, slots.cols, weights.rows, weights.start
    )  # fmt: skip

    def run(first: int, last: int) -> int:
        return int(scaling.scale_routed(*arguments, first, last))

    def thunk() -> None:
        bad = over_rows(run, slots.count, slots.count * slots.cols * x.cols)
        if bad >= 0:
            held = slots.view[bad].tolist()
            raise ProgramError(f"scale_routed: slots[{bad}] is {held}, must be below {x.count} (in: {i})")

    return thunk
