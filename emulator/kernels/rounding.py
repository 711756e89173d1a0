"""Number rules in kernels: results rounded once by a card's own rules, and sums kept in a narrow accumulator."""

# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from ...isa.arithmetic import Arithmetic, flushed
from ...isa.dtype import FP32, DType, decode
from ...isa.formats.elements import FLOAT_FORMATS
from ...isa.instruction import Array, Instruction, TensorType
from ...isa.meaning import ArrayMemory
from ...isa.operands import Ref, Role
from ...isa.work import Unit
from .inline import kernel, value_of


@kernel
def round_float(value, mantissa, least, largest, saturates, truncates, flushes):
    """A float32 as a narrower float of so many mantissa bits holds it, whose smallest normal exponent is `least`."""
    if value != value:
        return value
    magnitude = abs(value)
    if magnitude == np.float32(np.inf):
        result = largest if saturates else magnitude
    elif magnitude == 0:
        result = magnitude
    else:
        exponent = max(math.frexp(magnitude)[1] - 1, least)
        scaled = math.ldexp(np.float64(magnitude), mantissa - exponent)
        steps = math.floor(scaled) if truncates else np.rint(scaled)
        whole = math.ldexp(steps, exponent - mantissa)
        if whole > largest:
            whole = np.float64(largest) if truncates or saturates else np.inf
        if flushes and whole < math.ldexp(1.0, least):
            whole = 0.0
        result = np.float32(whole)
    return math.copysign(np.float32(result), value)


@kernel
def narrow_sums(out, a, a0, w, w0, k, rows, row0, mantissa, least, largest, saturates, truncates, flushes):
    """out[r, j] = the products of row rows + r of a and row row0 + j of w, each sum rounded to the accumulator."""
    for r in range(out.shape[0]):
        for j in range(out.shape[1]):
            total = np.float32(0)
            for i in range(k):
                product = value_of(a[rows + r, a0 + i]) * value_of(w[row0 + j, w0 + i])
                total = np.float32(
                    round_float(total + product, mantissa, least, largest, saturates, truncates, flushes)
                )
            out[r, j] = total


def accumulator_of(rules: Arithmetic) -> tuple[Any, ...]:
    """What `narrow_sums` is told of the accumulator."""
    fmt, cast = FLOAT_FORMATS[rules.accumulator.name], rules.cast(rules.accumulator)
    ends = (cast.saturation == "saturate", cast.rounding == "toward_zero", cast.subnormals == "flushed")
    return fmt.mantissa_bits, 1 - fmt.bias, np.float32(fmt.max), *ends


def needs_rules(instruction: Instruction, memory: ArrayMemory) -> list[str]:
    """Buffers whose elements an instruction rounds, where the card does so unlike IEEE 754; moving rounds nothing."""
    if memory.rules.is_usual:
        return []
    kinds = [(ref, role, memory.type_of(ref).dtype) for ref, role in instruction.refs()]
    moves = instruction.unit in (Unit.DMA, Unit.HOST)
    if moves and len({kind.name for _, _, kind in kinds if kind.is_float}) < 2:
        return []
    return list(dict.fromkeys(ref.buffer for ref, role, kind in kinds if role is not Role.IN and _rounds(kind, memory)))


def _rounds(kind: DType, memory: ArrayMemory) -> bool:
    narrow = kind.is_float and kind.bits == 16
    return narrow or (kind is FP32 and memory.rules.subnormals == "flushed")


class Widened:
    """A memory in which some buffers are float32, to be rounded into their own type afterwards."""

    def __init__(self, memory: ArrayMemory, buffers: list[str]) -> None:
        self.memory, self.buffers = memory, buffers
        own = {name: np.empty(memory.shape(Ref(name)), np.float32) for name in buffers}
        block = memory.block
        types = {name: replace(kind, dtype=FP32) if name in own else kind for name, kind in block.types.items()}
        self.wide = ArrayMemory(
            replace(block, params=_typed(block.params, types), locals=_typed(block.locals, types)),
            memory.group_sizes,
            memory.binding,
            {**memory.arrays, **own},
            memory.extents,
            memory.rules,
        )
        self.wide.written = memory.written

    def load(self) -> None:
        """The buffers' values, of which an instruction may write a part."""
        for name in self.buffers:
            kind = self.memory.type_of(Ref(name)).dtype
            self.wide.arrays[name][...] = decode(np.ascontiguousarray(self.memory.arrays[name]), kind)

    def store(self) -> None:
        """The values rounded by the card's rules."""
        rules = self.memory.rules
        for name in self.buffers:
            values = self.wide.arrays[name]
            kind = self.memory.type_of(Ref(name)).dtype
            self.memory.arrays[name][...] = flushed(values) if kind is FP32 else rules.stored(values, kind)


def _typed(
    names: tuple[tuple[str, TensorType], ...], types: dict[str, TensorType]
) -> tuple[tuple[str, TensorType], ...]:
    return tuple((name, types[name]) for name, _ in names)


def narrow_product(rules: Arithmetic, out: Array, a: Any, w: Any, rows: int, row0: int) -> None:
    """out = rows of the operand a times rows of w from `row0` on, summed in the rules' accumulator."""
    narrow_sums(out, a.rows, a.start, w.rows, w.start, a.cols, rows, row0, *accumulator_of(rules))
