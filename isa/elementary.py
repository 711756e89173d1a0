"""Elementary vector instructions, of which a card without a fused one composes it: products, functions, bounds."""

from __future__ import annotations

from typing import Literal

import numpy as np

from .instruction import Array, Instruction, Memory, Shapes, Sizes, require, require_apart, require_floats
from .operands import In, Out
from .rowwise import check_map, vector_work
from .vector import ERF
from .work import Unit, Work

OPERATIONS = {"exp": 4, "sigmoid": 4, "tanh": 4, "erf": 12}


class MULTIPLY(Instruction, opcode=0xA4, unit=Unit.VECTOR):
    """dst = a * b, element by element, in fp32; b is like a, or one column that a whole row shares."""

    dst: Out
    a: In
    b: In

    def check(self, t: Shapes) -> None:
        check_map(self, t, self.dst, self.a)
        a, b = t.type_of(self.a), t.type_of(self.b)
        wanted = (a.shape, (*a.shape[:-1], 1))
        require(b.shape in wanted, self, f"b is {b}, must be like {a} or one column of it")
        require_floats(self, t, self.b)
        if self.b != self.dst:
            require_apart(self, self.dst, self.b)

    def work(self, s: Sizes) -> Work:
        return vector_work(s, self.dst, (self.a, self.b), (self.dst,), ops=1, passes=1)

    def execute(self, m: Memory) -> None:
        m.put(self.dst, m.get(self.a) * m.get(self.b))


class MAP(Instruction, opcode=0xA5, unit=Unit.VECTOR):
    """dst = function(x), element by element, in fp32: e^x, 1 / (1 + e^-x), tanh, or the error function."""

    dst: Out
    x: In
    function: Literal["exp", "sigmoid", "tanh", "erf"]

    def check(self, t: Shapes) -> None:
        check_map(self, t, self.dst, self.x)

    def work(self, s: Sizes) -> Work:
        return vector_work(s, self.dst, (self.x,), (self.dst,), ops=OPERATIONS[self.function], passes=1)

    def execute(self, m: Memory) -> None:
        x, one = m.get(self.x), np.float32(1)
        if self.function == "erf":
            values: Array = ERF(x)
        elif self.function == "tanh":
            values = np.tanh(x)
        else:
            values = np.exp(x) if self.function == "exp" else one / (one + np.exp(-x))
        m.put(self.dst, values)


class CLAMP(Instruction, opcode=0xA6, unit=Unit.VECTOR):
    """dst = x, what is below `low` or above `high` replaced by that bound."""

    dst: Out
    x: In
    low: float
    high: float

    def check(self, t: Shapes) -> None:
        check_map(self, t, self.dst, self.x)
        require(self.low <= self.high, self, f"low={self.low} is above high={self.high}")

    def work(self, s: Sizes) -> Work:
        return vector_work(s, self.dst, (self.x,), (self.dst,), ops=2, passes=1)

    def execute(self, m: Memory) -> None:
        m.put(self.dst, np.clip(m.get(self.x), np.float32(self.low), np.float32(self.high)))
