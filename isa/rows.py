"""Vector instructions whose rows carry a number: sums of squares, norms made from them, gates."""

from __future__ import annotations

import numpy as np

from .dtype import decode, encode
from .instruction import Instruction, Memory, Shapes, Sizes, require, require_apart, require_columns, require_floats
from .operands import In, Out, Ref
from .rowwise import check_map, vector_work
from .work import Unit, Work


def _check_column(instruction: Instruction, t: Shapes, column: Ref, x: Ref) -> None:
    kind, rows = t.type_of(column), t.type_of(x).shape[:-1]
    require_floats(instruction, t, column)
    require(kind.shape == (*rows, 1), instruction, f"{column} is {kind}, must be one column of {t.type_of(x)}")


class SUM_SQUARES(Instruction, opcode=0x2E, unit=Unit.VECTOR):
    """dst[r, 0] = the sum of x[r, i]^2 over a row, in fp32: a card's part of a norm whose columns many cards hold."""

    dst: Out
    x: In

    def check(self, t: Shapes) -> None:
        _check_column(self, t, self.dst, self.x)
        require_floats(self, t, self.x)
        require_columns(self, t, self.x)
        require_apart(self, self.dst, self.x)

    def work(self, s: Sizes) -> Work:
        return vector_work(s, self.x, (self.x,), (self.dst,), ops=2, passes=1)

    def execute(self, m: Memory) -> None:
        x = m.get(self.x)
        m.put(self.dst, np.asarray(np.sum(x * x, axis=-1, keepdims=True, dtype=np.float32)))


class RMS_SCALE(Instruction, opcode=0x2F, unit=Unit.VECTOR):
    """dst = x / sqrt(squares / count + eps) * weight: an RMS norm from a row's sum of squares over `count` elements.

    As in `rmsnorm`, the weight may be 1 + weight; where it is not, x / rms is rounded to x's dtype before it.
    """

    dst: Out
    x: In
    squares: In
    weight: In
    count: int
    eps: float
    plus_one: bool = False

    def check(self, t: Shapes) -> None:
        check_map(self, t, self.dst, self.x)
        _check_column(self, t, self.squares, self.x)
        weight, x = t.type_of(self.weight), t.type_of(self.x)
        require_floats(self, t, self.weight)
        require(weight.shape == x.shape[-1:], self, f"weight is {weight} and a row of x is {x.shape[-1]}")
        require_apart(self, self.dst, self.squares, self.weight)
        require(self.count > 0 and self.eps >= 0, self, "count must be above 0 and eps 0 or more")

    def work(self, s: Sizes) -> Work:
        return vector_work(s, self.x, (self.x, self.squares, self.weight), (self.dst,), ops=2, passes=1)

    def execute(self, m: Memory) -> None:
        dtype, weight = m.type_of(self.x).dtype, m.get(self.weight)
        mean = m.get(self.squares) / np.float32(self.count)
        normal = m.get(self.x) / np.sqrt(mean + np.float32(self.eps))
        if self.plus_one:  # models with 1 + w keep fp32 until the end
            m.put(self.dst, normal * (weight + np.float32(1)))
        else:
            m.put(self.dst, decode(encode(normal, dtype), dtype) * weight)


class SIGMOID_GATE(Instruction, opcode=0x60, unit=Unit.VECTOR):
    """dst = x * sigmoid(gate), in fp32; gate is like x, or one column that a whole row shares."""

    dst: Out
    x: In
    gate: In

    def check(self, t: Shapes) -> None:
        check_map(self, t, self.dst, self.x)
        if t.type_of(self.gate).shape != t.type_of(self.x).shape:
            _check_column(self, t, self.gate, self.x)
        require_floats(self, t, self.gate)
        if self.gate != self.dst:
            require_apart(self, self.dst, self.gate)

    def work(self, s: Sizes) -> Work:
        return vector_work(s, self.x, (self.x, self.gate), (self.dst,), ops=5, passes=1)

    def execute(self, m: Memory) -> None:
        one = np.float32(1)
        m.put(self.dst, m.get(self.x) * (one / (one + np.exp(-m.get(self.gate)))))
