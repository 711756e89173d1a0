"""Instructions of the vector unit: norms, rope, gates, element-wise arithmetic, softmax, sampling, casts."""

from __future__ import annotations

from math import erf, pi, sqrt
from typing import Literal

import numpy as np

from .errors import ProgramError
from .instruction import (
    Array,
    Instruction,
    Memory,
    Shapes,
    Sizes,
    bytes_of,
    require,
    require_apart,
    require_columns,
    require_convertible,
    require_floats,
    require_rows,
    rows_cols,
)
from .operands import In, InOut, OptionalIn, Out, Ref
from .rowwise import check_map, check_norm, rms_normal, vector_work
from .work import Unit, VectorShape, Work

Activation = Literal["silu", "gelu", "gelu_tanh", "swiglu_oai"]
ERF = np.vectorize(erf, otypes=[np.float32])
OAI_LIMIT, OAI_ALPHA = 7.0, 1.702  # gpt-oss: where gate and up are clamped, and the slope of its sigmoid


class RMSNORM(Instruction, opcode=0x20, unit=Unit.VECTOR):
    """dst = x / sqrt(mean(x^2) + eps) * weight (or 1 + weight), over every run of len(weight) elements of a row.

    A weight as long as the row is a layer's norm; a shorter one norms each head.
    """

    dst: Out
    x: In
    weight: In
    eps: float
    plus_one: bool

    def check(self, t: Shapes) -> None:
        check_norm(self, t, self.dst, self.x, self.weight, self.eps)

    def work(self, s: Sizes) -> Work:
        return vector_work(s, self.x, (self.x, self.weight), (self.dst,), ops=4, passes=2)

    def execute(self, m: Memory) -> None:
        m.put(self.dst, rms_normal(m, m.get(self.x), self.weight, self.eps, self.plus_one, self.x))


class ADD_RMSNORM(Instruction, opcode=0x21, unit=Unit.VECTOR):
    """x = x + delta, rounded; dst = RMSNORM of the new x: the residual add that libraries fuse into the next norm."""

    dst: Out
    x: InOut
    delta: In
    weight: In
    eps: float
    plus_one: bool

    def check(self, t: Shapes) -> None:
        check_norm(self, t, self.dst, self.x, self.weight, self.eps)
        require(t.type_of(self.x) == t.type_of(self.delta), self, "x and delta must have one type")
        require_apart(self, self.dst, self.x, self.weight)

    def work(self, s: Sizes) -> Work:
        return vector_work(s, self.x, (self.x, self.delta, self.weight), (self.x, self.dst), ops=5, passes=2)

    def execute(self, m: Memory) -> None:
        m.put(self.x, m.get(self.x) + m.get(self.delta))
        m.put(self.dst, rms_normal(m, m.get(self.x), self.weight, self.eps, self.plus_one, self.x))


class LAYERNORM(Instruction, opcode=0x22, unit=Unit.VECTOR):
    """dst = (x - mean) / sqrt(variance + eps) * weight (+ bias), over every row, in fp32."""

    dst: Out
    x: In
    weight: In
    bias: OptionalIn
    eps: float

    def check(self, t: Shapes) -> None:
        check_norm(self, t, self.dst, self.x, self.weight, self.eps)
        x, weight = t.type_of(self.x), t.type_of(self.weight)
        require(x.shape[-1:] == weight.shape, self, f"weight is {weight} and a row of x is {x.shape[-1]}")
        if self.bias is not None:
            require(t.type_of(self.bias).shape == weight.shape, self, "bias and weight must have one shape")
            require_floats(self, t, self.bias)
            require_apart(self, self.dst, self.bias)

    def work(self, s: Sizes) -> Work:
        return vector_work(s, self.x, (self.x, self.weight, self.bias), (self.dst,), ops=6, passes=2)

    def execute(self, m: Memory) -> None:
        x = m.get(self.x)
        centred = x - x.mean(axis=-1, keepdims=True, dtype=np.float32)
        variance = np.mean(centred * centred, axis=-1, keepdims=True, dtype=np.float32)
        normal = centred / np.sqrt(variance + np.float32(self.eps)) * m.get(self.weight)
        m.put(self.dst, normal if self.bias is None else normal + m.get(self.bias))


class ROPE(Instruction, opcode=0x23, unit=Unit.VECTOR):
    """Rotate the first `rotary_dim` elements of every head of x, in place, by the angles of its token's position.

    cos and sin are [positions, rotary_dim / 2]. Interleaved layout pairs elements (2i, 2i+1); half-split pairs
    (i, i + rotary_dim / 2). Products and sums are in fp32, rounded once.
    """

    x: InOut
    cos: In
    sin: In
    positions: In
    head_dim: int
    rotary_dim: int
    interleaved: bool

    def check(self, t: Shapes) -> None:
        x, cos, positions = t.type_of(self.x), t.type_of(self.cos), t.type_of(self.positions)
        require(self.head_dim > 0, self, "head_dim must be above 0")
        row = x.shape[-1]
        require(
            len(x.shape) == 2 and isinstance(row, int) and row % self.head_dim == 0,
            self,
            f"x is {x}, must be [tokens, heads * {self.head_dim}]",
        )
        require(
            0 < self.rotary_dim <= self.head_dim and self.rotary_dim % 2 == 0,
            self,
            "rotary_dim must be even, within a head",
        )
        require(cos == t.type_of(self.sin), self, f"cos is {cos} and sin is {t.type_of(self.sin)}: must be one type")
        require(
            len(cos.shape) == 2 and cos.shape[1] == self.rotary_dim // 2,
            self,
            f"cos is {cos}, must be [positions, {self.rotary_dim // 2}]",
        )
        require_floats(self, t, self.x, self.cos)
        require(
            positions.dtype.name == "int32" and positions.shape == x.shape[:1],
            self,
            f"positions is {positions}, must be int32 [{x.shape[0]}]",
        )
        require_apart(self, self.x, self.cos, self.sin)

    def work(self, s: Sizes) -> Work:
        rows, cols = rows_cols(s.shape(self.x))
        table_bytes = 2 * rows * s.type_of(self.cos).dtype.bytes_of(self.rotary_dim // 2)
        return Work(
            Unit.VECTOR,
            ops=3 * rows * (cols // self.head_dim) * self.rotary_dim,  # four products and two sums a pair
            read_bytes=bytes_of(s, self.x, self.positions) + table_bytes,
            write_bytes=bytes_of(s, self.x),
            dtype=s.type_of(self.x).dtype,
            shape=VectorShape(rows, cols),
        )

    def execute(self, m: Memory) -> None:
        x, positions = m.get(self.x).copy(), m.get(self.positions)
        require_rows(self, positions, m.shape(self.cos)[0], "position")
        cos, sin = m.get(self.cos)[positions][:, None, :], m.get(self.sin)[positions][:, None, :]
        heads = x.reshape(len(x), x.shape[1] // self.head_dim, self.head_dim)
        half = self.rotary_dim // 2
        first, second = (
            (slice(0, self.rotary_dim, 2), slice(1, self.rotary_dim, 2))
            if self.interleaved
            else (slice(0, half), slice(half, self.rotary_dim))
        )
        a, b = heads[..., first].copy(), heads[..., second].copy()
        heads[..., first] = a * cos - b * sin
        heads[..., second] = b * cos + a * sin
        m.put(self.x, x)


def activate(gate: Array, up: Array, activation: str) -> Array:
    """activation(gate) * up in fp32: SiLU, GELU by erf or by tanh, or gpt-oss's SwiGLU with clamps.

    That one is min(gate, 7) * sigmoid(1.702 * min(gate, 7)) * (clip(up, -7, 7) + 1).
    """
    one = np.float32(1)
    if activation == "swiglu_oai":
        limit = np.float32(OAI_LIMIT)
        gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
        clamped: Array = gate / (one + np.exp(np.float32(-OAI_ALPHA) * gate)) * (up + one)
        return clamped
    if activation == "silu":
        silu: Array = gate / (one + np.exp(-gate)) * up
        return silu
    if activation == "gelu":
        error: Array = ERF(gate / np.float32(sqrt(2)))
        gelu: Array = np.float32(0.5) * gate * (one + error) * up
        return gelu
    inner = np.float32(sqrt(2 / pi)) * (gate + np.float32(0.044715) * gate * gate * gate)
    approximate: Array = np.float32(0.5) * gate * (one + np.tanh(inner)) * up
    return approximate


class GATED(Instruction, opcode=0x24, unit=Unit.VECTOR):
    """dst[t, i] = activation(x[t, i]) * x[t, n + i]: the gate and the up half of a fused projection, in fp32."""

    dst: Out
    x: In
    activation: Activation

    def check(self, t: Shapes) -> None:
        dst, x = t.type_of(self.dst), t.type_of(self.x)
        row = x.shape[-1]
        require(isinstance(row, int) and row % 2 == 0, self, f"rows of x must be two halves, x is {x}")
        require(dst.shape == (*x.shape[:-1], int(row) // 2), self, f"dst is {dst}, must be half of {x}")
        require_floats(self, t, self.dst, self.x)
        require_apart(self, self.dst, self.x)

    def work(self, s: Sizes) -> Work:
        return vector_work(s, self.dst, (self.x,), (self.dst,), ops=6, passes=1)

    def execute(self, m: Memory) -> None:
        x = m.get(self.x)
        half = x.shape[-1] // 2
        m.put(self.dst, activate(x[..., :half], x[..., half:], self.activation))


class ADD(Instruction, opcode=0x25, unit=Unit.VECTOR):
    """dst = a + b, element by element."""

    dst: Out
    a: In
    b: In

    def check(self, t: Shapes) -> None:
        check_map(self, t, self.dst, self.a, self.b)

    def work(self, s: Sizes) -> Work:
        return vector_work(s, self.dst, (self.a, self.b), (self.dst,), ops=1, passes=1)

    def execute(self, m: Memory) -> None:
        m.put(self.dst, m.get(self.a) + m.get(self.b))


class SCALE(Instruction, opcode=0x26, unit=Unit.VECTOR):
    """dst = x * factor."""

    dst: Out
    x: In
    factor: float

    def check(self, t: Shapes) -> None:
        check_map(self, t, self.dst, self.x)

    def work(self, s: Sizes) -> Work:
        return vector_work(s, self.dst, (self.x,), (self.dst,), ops=1, passes=1)

    def execute(self, m: Memory) -> None:
        m.put(self.dst, m.get(self.x) * np.float32(self.factor))


class CAST(Instruction, opcode=0x27, unit=Unit.VECTOR):
    """dst = x in dst's dtype, rounded to nearest, ties to even; both hold floats (or the same integers)."""

    dst: Out
    x: In

    def check(self, t: Shapes) -> None:
        require(t.type_of(self.dst).shape == t.type_of(self.x).shape, self, "dst and x must have one shape")
        require_convertible(self, t, self.dst, self.x)
        if self.dst != self.x:
            require_apart(self, self.dst, self.x)

    def work(self, s: Sizes) -> Work:
        return vector_work(s, self.dst, (self.x,), (self.dst,), ops=1, passes=1)

    def execute(self, m: Memory) -> None:
        m.put(self.dst, m.get(self.x))


class SOFTMAX(Instruction, opcode=0x28, unit=Unit.VECTOR):
    """dst = exp(x - max) / sum over every row, in fp32."""

    dst: Out
    x: In

    def check(self, t: Shapes) -> None:
        check_map(self, t, self.dst, self.x)
        require_columns(self, t, self.x)

    def work(self, s: Sizes) -> Work:
        return vector_work(s, self.dst, (self.x,), (self.dst,), ops=5, passes=3)

    def execute(self, m: Memory) -> None:
        x = m.get(self.x)
        weights = np.exp(x - x.max(axis=-1, keepdims=True))
        m.put(self.dst, weights / weights.sum(axis=-1, keepdims=True))


class ARGMAX(Instruction, opcode=0x29, unit=Unit.VECTOR):
    """dst[r] = index of the largest element of row r; the first of equals."""

    dst: Out
    x: In

    def check(self, t: Shapes) -> None:
        _check_pick(self, t, self.dst, self.x)

    def work(self, s: Sizes) -> Work:
        return vector_work(s, self.x, (self.x,), (self.dst,), ops=1, passes=1)

    def execute(self, m: Memory) -> None:
        m.put(self.dst, m.get(self.x).argmax(axis=-1))


class SAMPLE(Instruction, opcode=0x2A, unit=Unit.VECTOR):
    """dst[r] = a token drawn from softmax(x[r] / temperature), kept to the top_k (0: all) and then the top_p mass.

    The draw is a hash of keys[r], so it does not depend on the batch that a row stands in. Candidates are ordered by
    score, ties by index; top_p keeps the smallest prefix whose mass reaches top_p. Sums are in fp64.
    """

    dst: Out
    x: In
    keys: In
    temperature: float
    top_k: int
    top_p: float

    def check(self, t: Shapes) -> None:
        _check_pick(self, t, self.dst, self.x)
        keys, rows = t.type_of(self.keys), t.type_of(self.x).shape[:-1]
        require(
            keys.dtype.name == "int64" and keys.shape == rows,
            self,
            f"keys is {keys}, must be int64 [{', '.join(map(str, rows))}]",
        )
        require(
            self.temperature > 0 and self.top_k >= 0 and 0 < self.top_p <= 1,
            self,
            "temperature > 0, top_k >= 0, 0 < top_p <= 1",
        )

    def work(self, s: Sizes) -> Work:
        return vector_work(s, self.x, (self.x, self.keys), (self.dst,), ops=8, passes=4)

    def execute(self, m: Memory) -> None:
        rows = zip(m.get(self.x), m.get(self.keys), strict=True)
        m.put(self.dst, np.array([self._pick(x, int(key)) for x, key in rows], np.int32))

    def _pick(self, x: Array, key: int) -> int:
        order = np.lexsort((np.arange(len(x)), -x))
        if not np.isfinite(x[order[0]]) or np.isnan(x).any():
            raise ProgramError(f"sample: the largest score is {x.max()}: no distribution to draw from (in: {self})")
        scores = x[order][: self.top_k or None].astype(np.float64)
        with np.errstate(over="ignore"):  # a temperature near 0 takes all but the best to minus infinity
            mass = np.exp((scores - scores[0]) / self.temperature)
        mass /= mass.sum()
        total = np.cumsum(mass)
        keep = int(np.searchsorted(total, self.top_p)) + 1
        total = total[: min(keep, len(total))]
        return int(order[np.searchsorted(total, uniform(key) * total[-1], side="right").clip(0, len(total) - 1)])


def uniform(key: int) -> float:
    """A number in [0, 1) that is a pure function of a 64-bit key (SplitMix64, Steele et al. 2014)."""
    z = (key + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return ((z ^ (z >> 31)) >> 11) / (1 << 53)


def _check_pick(instruction: Instruction, t: Shapes, dst: Ref, x: Ref) -> None:
    picked, scores = t.type_of(dst), t.type_of(x)
    require(len(scores.shape) == 2, instruction, f"x is {scores}, must be [rows, columns]")
    require_floats(instruction, t, x)
    require_columns(instruction, t, x)
    require(
        picked.dtype.name == "int32" and picked.shape == scores.shape[:-1],
        instruction,
        f"dst is {picked}, must be int32 [{scores.shape[0]}]",
    )
