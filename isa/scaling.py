"""Vector instructions that scale rows: to unit mean square, by a token's position, by a routed weight, under a cap."""

from __future__ import annotations

import numpy as np

from .counts import total_of
from .experts import check_ids, local_counts
from .instruction import Instruction, Memory, Shapes, Sizes, bytes_of, known, require, require_floats, require_rows
from .operands import ExtentName, In, InOut, Number, Out
from .rowwise import check_map, vector_work
from .work import Unit, VectorShape, Work


class RMS_UNIT(Instruction, opcode=0x70, unit=Unit.VECTOR):
    """dst = x / sqrt(mean(x^2) + eps) over every run of `run` elements of a row: an RMS norm without a weight."""

    dst: Out
    x: In
    run: int
    eps: float

    def check(self, t: Shapes) -> None:
        check_map(self, t, self.dst, self.x)
        row = t.type_of(self.x).shape[-1]
        fits = isinstance(row, int) and self.run > 0 and row % self.run == 0
        require(fits, self, f"run={self.run} must divide the rows of {t.type_of(self.x)}")
        require(self.eps >= 0, self, "eps must be 0 or more")

    def work(self, s: Sizes) -> Work:
        return vector_work(s, self.x, (self.x,), (self.dst,), ops=3, passes=2)

    def execute(self, m: Memory) -> None:
        x = m.get(self.x)
        runs = x.reshape(-1, self.run)
        mean = np.mean(runs * runs, axis=1, keepdims=True, dtype=np.float32)
        m.put(self.dst, (runs / np.sqrt(mean + np.float32(self.eps))).reshape(x.shape))


class POSITION_SCALE(Instruction, opcode=0x71, unit=Unit.VECTOR):
    """x[t] *= 1 + strength * ln(1 + floor((positions[t] + 1) / step)), in place, rounded once.

    So attention over ever more keys stays as sharp (arXiv 2501.19399, as Llama 4 has it).
    """

    x: InOut
    positions: In
    step: float
    strength: float

    def check(self, t: Shapes) -> None:
        x, positions = t.type_of(self.x), t.type_of(self.positions)
        require_floats(self, t, self.x)
        require(len(x.shape) == 2, self, f"x is {x}, must be [tokens, columns]")
        require(
            positions.dtype.name == "int32" and positions.shape == x.shape[:1],
            self,
            f"positions is {positions}, must be int32 [{x.shape[0]}]",
        )
        require(self.step > 0, self, "step must be above 0")

    def work(self, s: Sizes) -> Work:
        return vector_work(s, self.x, (self.x, self.positions), (self.x,), ops=1, passes=1)

    def execute(self, m: Memory) -> None:
        steps = np.floor((m.get(self.positions).astype(np.float32) + np.float32(1)) / np.float32(self.step))
        factor = np.log1p(steps) * np.float32(self.strength) + np.float32(1)
        m.put(self.x, m.get(self.x) * factor[:, None])


class SOFT_CAP(Instruction, opcode=0x72, unit=Unit.VECTOR):
    """dst = cap * tanh(x / cap), in fp32."""

    dst: Out
    x: In
    cap: float

    def check(self, t: Shapes) -> None:
        check_map(self, t, self.dst, self.x)
        require(self.cap > 0, self, "cap must be above 0")

    def work(self, s: Sizes) -> Work:
        return vector_work(s, self.x, (self.x,), (self.dst,), ops=6, passes=1)

    def execute(self, m: Memory) -> None:
        cap = np.float32(self.cap)
        m.put(self.dst, cap * np.tanh(m.get(self.x) / cap))


class SCALE_ROUTED(Instruction, opcode=0x73, unit=Unit.VECTOR):
    """x[slots[t, j]] *= weights[t, j] for every choice whose slot is not -1: experts whose weight scales their input.

    `slots` are those that `permute` wrote, each once. The rows are those of `experts` experts from `at` on.
    """

    x: InOut
    slots: In
    weights: In
    extent: ExtentName
    at: Number
    experts: int

    def check(self, t: Shapes) -> None:
        x, slots = t.type_of(self.x), t.type_of(self.slots)
        check_ids(self, t, self.slots, self.weights)
        require(slots.dtype.name == "int32", self, f"slots is {slots}, must be int32")
        require(len(x.shape) == 2, self, f"x is {x}, must be [rows, columns]")
        require_floats(self, t, self.x, self.weights)
        require(known(self.at) >= 0 and self.experts > 0, self, "at must be 0 or more, experts 1 or more")

    def work(self, s: Sizes) -> Work:
        held, cols = s.shape(self.x)
        rows = total_of(local_counts(self, s, self.extent, self.at, self.experts, held))
        moved = s.type_of(self.x).dtype.bytes_of(rows * cols)
        return Work(
            Unit.VECTOR,
            ops=rows * cols,
            read_bytes=moved + bytes_of(s, self.slots, self.weights),
            write_bytes=moved,
            dtype=s.type_of(self.x).dtype,
            shape=VectorShape(rows, cols),
        )

    def execute(self, m: Memory) -> None:
        x, slots = m.get(self.x).copy(), m.get(self.slots)
        used = slots >= 0
        require_rows(self, slots[used], len(x), "slot")
        x[slots[used]] *= m.get(self.weights)[used][:, None]
        m.put(self.x, x)
