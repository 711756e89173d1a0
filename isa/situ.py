"""Instructions of SiTU, Kimi K3's gate: SITU_GATED, and GROUPED_SITU_GATED over the rows of experts.

situ(gate, up) = beta * tanh(gate / beta) * sigmoid(gate) * linear_beta * tanh(up / linear_beta): SwiGLU whose linear
factors level off, the gate's at beta and the up half's at linear_beta.
"""

from __future__ import annotations

import numpy as np

from .counts import total_of
from .experts import check_counts, local_counts, memory_counts
from .instruction import Array, Instruction, Memory, Shapes, Sizes, require, require_apart, require_floats
from .operands import ExtentName, In, Number, Out, Ref
from .rowwise import vector_work
from .work import Unit, VectorShape, Work

_OPS = 14  # an element's two tanh of four operations, a sigmoid of three, and what scales and joins them


def situ(gate: Array, up: Array, beta: float, linear_beta: float) -> Array:
    """SiTU of two arrays of float32."""
    one, b, linear = np.float32(1), np.float32(beta), np.float32(linear_beta)
    bounded: Array = b * np.tanh(gate / b) / (one + np.exp(-gate)) * (linear * np.tanh(up / linear))
    return bounded


def _check(instruction: Instruction, t: Shapes, dst: Ref, x: Ref, betas: tuple[float, float]) -> None:
    to, of = t.type_of(dst), t.type_of(x)
    row = of.shape[-1]
    require(isinstance(row, int) and row % 2 == 0, instruction, f"rows of x must be two halves, x is {of}")
    require(to.shape == (*of.shape[:-1], int(row) // 2), instruction, f"dst is {to}, must be half of {of}")
    require_floats(instruction, t, dst, x)
    require_apart(instruction, dst, x)
    require(min(betas) > 0, instruction, f"beta and linear_beta are {betas[0]} and {betas[1]}, must be above 0")


class SITU_GATED(Instruction, opcode=0xB8, unit=Unit.VECTOR):
    """dst[t, i] = situ(x[t, i], x[t, n + i]): the gate and the up half of a fused projection, in fp32."""

    dst: Out
    x: In
    beta: float
    linear_beta: float

    def check(self, t: Shapes) -> None:
        _check(self, t, self.dst, self.x, (self.beta, self.linear_beta))

    def work(self, s: Sizes) -> Work:
        return vector_work(s, self.dst, (self.x,), (self.dst,), ops=_OPS, passes=1)

    def execute(self, m: Memory) -> None:
        x = m.get(self.x)
        half = x.shape[-1] // 2
        m.put(self.dst, situ(x[..., :half], x[..., half:], self.beta, self.linear_beta))


class GROUPED_SITU_GATED(Instruction, opcode=0xB9, unit=Unit.VECTOR):
    """`situ_gated` over the rows of `experts` experts: counts[at] + ... of them; rows beyond are left as they are."""

    dst: Out
    x: In
    counts: In
    extent: ExtentName
    at: Number
    experts: int
    beta: float
    linear_beta: float

    def check(self, t: Shapes) -> None:
        _check(self, t, self.dst, self.x, (self.beta, self.linear_beta))
        require(len(t.type_of(self.x).shape) == 2, self, f"x is {t.type_of(self.x)}, must be [rows, columns]")
        check_counts(self, t, self.counts, self.at)
        require(self.experts > 0, self, "experts must be 1 or more")

    def work(self, s: Sizes) -> Work:
        rows = total_of(local_counts(self, s, self.extent, self.at, self.experts, s.shape(self.x)[0]))
        cols = s.shape(self.dst)[1]
        return Work(
            Unit.VECTOR,
            ops=_OPS * rows * cols,
            read_bytes=s.type_of(self.x).dtype.bytes_of(2 * rows * cols),
            write_bytes=s.type_of(self.dst).dtype.bytes_of(rows * cols),
            dtype=s.type_of(self.x).dtype,
            shape=VectorShape(rows, cols),
        )

    def execute(self, m: Memory) -> None:
        x, dst = m.get(self.x), m.get(self.dst).copy()
        counts = local_counts(self, m, self.extent, self.at, self.experts, len(x))
        memory_counts(self, m, self.counts, counts, self.at)
        rows, half = sum(counts), x.shape[1] // 2
        dst[:rows] = situ(x[:rows, :half], x[:rows, half:], self.beta, self.linear_beta)
        m.put(self.dst, dst)
