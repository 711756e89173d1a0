"""Instructions of the dma engines: copy, row gather and scatter, embedding, and transfers with the host."""

from __future__ import annotations

import numpy as np

from .errors import ProgramError
from .instruction import (
    Instruction,
    Memory,
    Shapes,
    Sizes,
    bytes_of,
    known,
    require,
    require_apart,
    require_convertible,
    require_rows,
    rows_cols,
)
from .operands import HostIn, HostOut, In, InOut, Number, Out, Ref
from .work import MoveShape, Unit, Work


def _check_index(instruction: Instruction, t: Shapes, index: Ref, rows: Ref) -> None:
    kind, moved = t.type_of(index), t.type_of(rows)
    require(kind.dtype.name == "int32", instruction, f"{index} is {kind}, must be int32")
    require(len(moved.shape) == 2, instruction, f"{rows} is {moved}, must be [rows, columns]")
    require(kind.shape == moved.shape[:1], instruction, f"{index} is {kind}, must have one entry a row of {rows}")


def _check_rows(instruction: Instruction, t: Shapes, dst: Ref, src: Ref) -> None:
    to, of = t.type_of(dst), t.type_of(src)
    require(to.shape[-1] == of.shape[-1], instruction, f"{dst} is {to} and {src} is {of}: rows must be as long")
    require_convertible(instruction, t, dst, src)
    require_apart(instruction, dst, src)


def _move(s: Sizes, rows: Ref, source: Ref, *also_read: Ref, written: Ref) -> Work:
    """As many rows as `rows` has cross the engine, read in `source`'s dtype and written in `written`'s."""
    count, cols = rows_cols(s.shape(rows))
    row_bytes = s.type_of(source).dtype.bytes_of(cols)
    return Work(
        Unit.DMA,
        read_bytes=count * row_bytes + bytes_of(s, *also_read),
        write_bytes=count * s.type_of(written).dtype.bytes_of(cols),
        shape=MoveShape(count, row_bytes),
    )


class COPY(Instruction, opcode=0x30, unit=Unit.DMA):
    """dst = src, converting on the way where the dtypes differ."""

    dst: Out
    src: In

    def check(self, t: Shapes) -> None:
        require(t.type_of(self.dst).shape == t.type_of(self.src).shape, self, "dst and src must have one shape")
        require_convertible(self, t, self.dst, self.src)
        require_apart(self, self.dst, self.src)

    def work(self, s: Sizes) -> Work:
        return _move(s, self.src, self.src, written=self.dst)

    def execute(self, m: Memory) -> None:
        m.put(self.dst, m.get(self.src))


class GATHER(Instruction, opcode=0x31, unit=Unit.DMA):
    """dst[i] = src[index[i]], whole rows: src's are runs of its last dimension."""

    dst: Out
    src: In
    index: In

    def check(self, t: Shapes) -> None:
        _check_index(self, t, self.index, self.dst)
        require(len(t.type_of(self.src).shape) >= 2, self, f"src is {t.type_of(self.src)}, must be [rows, columns]")
        _check_rows(self, t, self.dst, self.src)

    def work(self, s: Sizes) -> Work:
        return _move(s, self.dst, self.src, self.index, written=self.dst)

    def execute(self, m: Memory) -> None:
        src, index = m.get(self.src), m.get(self.index)
        src = src.reshape(rows_cols(src.shape))
        require_rows(self, index, len(src), "row")
        m.put(self.dst, src[index])


class SCATTER(Instruction, opcode=0x32, unit=Unit.DMA):
    """dst[index[i]] = src[i] over dst's rows (its last dimension), converting; a negative index skips its row.

    This writes new keys and values into their pages. An index must not repeat.
    """

    dst: InOut
    src: In
    index: In

    def check(self, t: Shapes) -> None:
        _check_index(self, t, self.index, self.src)
        _check_rows(self, t, self.dst, self.src)

    def work(self, s: Sizes) -> Work:
        return _move(s, self.src, self.src, self.index, written=self.dst)

    def execute(self, m: Memory) -> None:
        dst, src, index = m.get(self.dst).copy(), m.get(self.src), m.get(self.index)
        keep = index >= 0
        require_rows(self, index[keep], rows_cols(dst.shape)[0], "row")
        if len(np.unique(index[keep])) != keep.sum():
            raise ProgramError(f"scatter: an index repeats, so the row would depend on the order (in: {self})")
        dst.reshape(rows_cols(dst.shape))[index[keep]] = src[keep]
        m.put(self.dst, dst)


class EMBEDDING(Instruction, opcode=0x33, unit=Unit.DMA):
    """dst[t] = table[ids[t] - first], and zeros where the id lies outside this card's part of the vocabulary."""

    dst: Out
    table: In
    ids: In
    first: Number

    def check(self, t: Shapes) -> None:
        _check_index(self, t, self.ids, self.dst)
        table = t.type_of(self.table)
        require(len(table.shape) == 2, self, f"table is {table}, must be [rows, columns]")
        _check_rows(self, t, self.dst, self.table)
        require(known(self.first) >= 0, self, "first must be 0 or more")

    def work(self, s: Sizes) -> Work:
        return _move(s, self.dst, self.table, self.ids, written=self.dst)

    def execute(self, m: Memory) -> None:
        table = m.get(self.table)
        rows = m.get(self.ids).astype(np.int64) - m.number(self.first)
        inside = (rows >= 0) & (rows < len(table))
        out = np.zeros(m.shape(self.dst), table.dtype)
        out[inside] = table[rows[inside]]
        m.put(self.dst, out)


class HOST_LOAD(Instruction, opcode=0x34, unit=Unit.HOST):
    """dst (device) = src (host memory), over the host link."""

    dst: Out
    src: HostIn

    def check(self, t: Shapes) -> None:
        require(t.type_of(self.dst) == t.type_of(self.src), self, "dst and src must have one type")

    def work(self, s: Sizes) -> Work:
        moved = bytes_of(s, self.dst)
        return Work(Unit.HOST, write_bytes=moved, shape=MoveShape(1, moved))

    def execute(self, m: Memory) -> None:
        m.put(self.dst, m.get(self.src))


class HOST_STORE(Instruction, opcode=0x35, unit=Unit.HOST):
    """dst (host memory) = src (device), over the host link."""

    dst: HostOut
    src: In

    def check(self, t: Shapes) -> None:
        require(t.type_of(self.dst) == t.type_of(self.src), self, "dst and src must have one type")

    def work(self, s: Sizes) -> Work:
        moved = bytes_of(s, self.src)
        return Work(Unit.HOST, read_bytes=moved, shape=MoveShape(1, moved))

    def execute(self, m: Memory) -> None:
        m.put(self.dst, m.get(self.src))
