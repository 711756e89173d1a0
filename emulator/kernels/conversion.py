"""Element by element moves between two operands of one shape, shared by COPY, CAST and the host transfers."""

from __future__ import annotations

import numpy as np

from ...isa.dtype import decode
from ...isa.instruction import Instruction
from ...isa.meaning import ArrayMemory
from ...isa.operands import Ref
from .binding import FLOATS, Operand, Thunk, operand
from .moves import cast
from .threads import SMALL_ELEMENTS, over_rows


def conversion(instruction: Instruction, memory: ArrayMemory, dst: Ref, src: Ref) -> Thunk:
    """dst = src: the same bits for one dtype, a compiled cast between fp32, bf16 and fp16, NumPy's for fp8."""
    target, source = operand(instruction, memory, dst), operand(instruction, memory, src)
    if target.dtype is source.dtype:
        into, values = target.view, source.view
        return lambda: np.copyto(into, values)
    if target.dtype in FLOATS and source.dtype in FLOATS:
        return _cast(target, source)
    return _rare(memory, dst, src)


def _cast(target: Operand, source: Operand) -> Thunk:
    arguments = (target.rows, target.start, source.rows, source.start, target.cols)
    rows, moved = target.count, target.count * target.cols

    def run(first: int, last: int) -> int:
        return int(cast(*arguments, first, last))

    def thunk() -> None:
        if moved < SMALL_ELEMENTS:
            cast(*arguments, 0, rows)
        else:
            over_rows(run, rows, moved)

    return thunk


def _rare(memory: ArrayMemory, dst: Ref, src: Ref) -> Thunk:
    """fp8, which no model's path converts in bulk yet: the tables of isa.dtype."""
    into, values = memory.raw(dst), memory.raw(src)
    target, source = memory.type_of(dst).dtype, memory.type_of(src).dtype

    def thunk() -> None:
        into[...] = memory.rules.stored(decode(np.ascontiguousarray(values), source), target)

    return thunk
