"""Instructions of the dma engines: copy, row gather and scatter, embedding, and transfers with the host."""

from __future__ import annotations

import numpy as np

from .instruction import Instruction, Memory, Shapes, Sizes, bytes_of, require, rows_cols
from .operands import In, InOut, Out, Ref
from .work import MoveShape, Unit, Work


def _check_index(instruction: Instruction, t: Shapes, index: Ref, rows: Ref) -> None:
    kind = t.type_of(index)
    require(kind.dtype.name == "int32", instruction, f"index is {kind}, must be int32")
    require(
        kind.shape == t.type_of(rows).shape[:1],
        instruction,
        f"index is {kind}, must have one entry a row moved",
    )


def _move(s: Sizes, moved: Ref, *also_read: Ref, written: Ref) -> Work:
    """Rows of `moved` cross the engine; the far side holds as many rows in `written`'s dtype."""
    rows, cols = rows_cols(s.shape(moved))
    row_bytes = s.type_of(moved).dtype.bytes_of(cols)
    return Work(
        Unit.DMA,
        read_bytes=rows * row_bytes + bytes_of(s, *also_read),
        write_bytes=rows * s.type_of(written).dtype.bytes_of(cols),
        shape=MoveShape(rows, row_bytes),
    )


class COPY(Instruction, opcode=0x30, unit=Unit.DMA):
    """dst = src, converting on the way where the dtypes differ."""

    dst: Out
    src: In

    def check(self, t: Shapes) -> None:
        require(t.type_of(self.dst).shape == t.type_of(self.src).shape, self, "dst and src must have one shape")

    def work(self, s: Sizes) -> Work:
        return _move(s, self.src, written=self.dst)

    def execute(self, m: Memory) -> None:
        m.put(self.dst, m.get(self.src))


class GATHER(Instruction, opcode=0x31, unit=Unit.DMA):
    """dst[i] = src[index[i]], whole rows."""

    dst: Out
    src: In
    index: In

    def check(self, t: Shapes) -> None:
        _check_index(self, t, self.index, self.dst)
        require(
            t.type_of(self.dst).shape[-1] == t.type_of(self.src).shape[-1],
            self,
            "rows of dst and src must be as long",
        )

    def work(self, s: Sizes) -> Work:
        return _move(s, self.dst, self.index, written=self.dst)

    def execute(self, m: Memory) -> None:
        m.put(self.dst, m.get(self.src)[m.get(self.index)])


class SCATTER(Instruction, opcode=0x32, unit=Unit.DMA):
    """dst[index[i]] = src[i] over dst's rows (its last dimension), converting; a negative index skips its row.

    This writes new keys and values into their pages. An index must not repeat.
    """

    dst: InOut
    src: In
    index: In

    def check(self, t: Shapes) -> None:
        _check_index(self, t, self.index, self.src)
        require(
            t.type_of(self.dst).shape[-1] == t.type_of(self.src).shape[-1],
            self,
            "rows of dst and src must be as long",
        )

    def work(self, s: Sizes) -> Work:
        return _move(s, self.src, self.index, written=self.dst)

    def execute(self, m: Memory) -> None:
        dst, src, index = m.get(self.dst).copy(), m.get(self.src), m.get(self.index)
        keep = index >= 0
        dst.reshape(-1, dst.shape[-1])[index[keep]] = src[keep]
        m.put(self.dst, dst)


class EMBEDDING(Instruction, opcode=0x33, unit=Unit.DMA):
    """dst[t] = table[ids[t] - first], and zeros where the id lies outside this card's part of the vocabulary."""

    dst: Out
    table: In
    ids: In
    first: int

    def check(self, t: Shapes) -> None:
        _check_index(self, t, self.ids, self.dst)
        require(
            t.type_of(self.dst).shape[-1] == t.type_of(self.table).shape[-1],
            self,
            "rows of dst and table must be as long",
        )

    def work(self, s: Sizes) -> Work:
        return _move(s, self.dst, self.ids, written=self.dst)

    def execute(self, m: Memory) -> None:
        table = m.get(self.table)
        rows = m.get(self.ids).astype(np.int64) - self.first
        inside = (rows >= 0) & (rows < len(table))
        m.put(self.dst, np.where(inside[:, None], table[np.where(inside, rows, 0)], np.float32(0)))


class HOST_LOAD(Instruction, opcode=0x34, unit=Unit.HOST):
    """dst (device) = src (host memory), over the host link."""

    dst: Out
    src: In

    def check(self, t: Shapes) -> None:
        require(t.type_of(self.dst) == t.type_of(self.src), self, "dst and src must have one type")

    def work(self, s: Sizes) -> Work:
        moved = bytes_of(s, self.dst)
        return Work(Unit.HOST, write_bytes=moved, shape=MoveShape(1, moved))

    def execute(self, m: Memory) -> None:
        m.put(self.dst, m.get(self.src))


class HOST_STORE(Instruction, opcode=0x35, unit=Unit.HOST):
    """dst (host memory) = src (device), over the host link."""

    dst: Out
    src: In

    def check(self, t: Shapes) -> None:
        require(t.type_of(self.dst) == t.type_of(self.src), self, "dst and src must have one type")

    def work(self, s: Sizes) -> Work:
        moved = bytes_of(s, self.src)
        return Work(Unit.HOST, read_bytes=moved, shape=MoveShape(1, moved))

    def execute(self, m: Memory) -> None:
        m.put(self.dst, m.get(self.src))
