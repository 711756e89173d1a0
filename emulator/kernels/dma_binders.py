"""Binders of the dma engines and the host link: COPY, GATHER, SCATTER, EMBEDDING, HOST_LOAD and HOST_STORE."""

from __future__ import annotations

import numpy as np

from ...isa.dma import COPY, EMBEDDING, GATHER, HOST_LOAD, HOST_STORE, SCATTER
from ...isa.errors import NotYetError, ProgramError
from ...isa.instruction import Instruction
from ...isa.meaning import ArrayMemory
from ...isa.operands import Ref
from . import moves
from .binding import FLOATS, Operand, Thunk, integers, kernel_of, operand, out_of_range
from .conversion import conversion
from .threads import over_rows


@kernel_of(COPY)
def bind_copy(i: COPY, memory: ArrayMemory) -> Thunk:
    """dst = src."""
    return conversion(i, memory, i.dst, i.src)


@kernel_of(HOST_LOAD)
def bind_host_load(i: HOST_LOAD, memory: ArrayMemory) -> Thunk:
    """Device memory = host memory."""
    return conversion(i, memory, i.dst, i.src)


@kernel_of(HOST_STORE)
def bind_host_store(i: HOST_STORE, memory: ArrayMemory) -> Thunk:
    """Host memory = device memory."""
    return conversion(i, memory, i.dst, i.src)


def rows_between(instruction: Instruction, memory: ArrayMemory, dst: Ref, src: Ref) -> tuple[Operand, Operand]:
    """Two operands between which rows move; converting only among the float types that kernels know."""
    target, source = operand(instruction, memory, dst), operand(instruction, memory, src)
    if target.dtype is not source.dtype and not {target.dtype, source.dtype} <= set(FLOATS):
        raise NotYetError(
            f"{instruction.mnemonic}: no kernel converts {source.dtype} to {target.dtype} on the way; move and cast "
            f"in two instructions (in: {instruction})"
        )
    return target, source


@kernel_of(GATHER)
def bind_gather(i: GATHER, memory: ArrayMemory) -> Thunk:
    """dst[i] = src[index[i]]."""
    dst, src = rows_between(i, memory, i.dst, i.src)
    index = integers(i, memory, i.index)
    arguments = (dst.rows, dst.start, src.rows, src.start, dst.cols, index)

    def run(first: int, last: int) -> int:
        return int(moves.gather(*arguments, first, last))

    def thunk() -> None:
        bad = over_rows(run, len(index), dst.count * dst.cols)
        if bad >= 0:
            raise out_of_range(i, "index", index, bad, src.count)

    return thunk


def _scattered(i: SCATTER, memory: ArrayMemory) -> tuple[Operand, Operand, Thunk | None]:
    """Target, source, and what rounds the source to 8 bits first, by the card's rules, where the target holds such."""
    target, source = operand(i, memory, i.dst), operand(i, memory, i.src)
    kind = target.dtype
    if kind is source.dtype or kind.bits != 8 or source.dtype not in FLOATS:
        return *rows_between(i, memory, i.dst, i.src), None
    codes = np.empty((source.count, source.cols), kind.storage)

    def narrow() -> None:
        codes[...] = memory.rules.stored(memory.get(i.src).reshape(codes.shape), kind)

    return target, Operand(codes, 0, source.cols, kind, codes.shape), narrow


@kernel_of(SCATTER)
def bind_scatter(i: SCATTER, memory: ArrayMemory) -> Thunk:
    """dst[index[i]] = src[i]; nothing is written when an index is out of range."""
    dst, src, narrow = _scattered(i, memory)
    index = integers(i, memory, i.index)
    arguments = (dst.rows, dst.start, src.rows, src.start, dst.cols, index)

    def thunk() -> None:
        bad, repeated = moves.check_scatter(index, dst.count)
        if bad >= 0:
            raise out_of_range(i, "index", index, bad, dst.count)
        if repeated >= 0:
            raise ProgramError(
                f"scatter: index[{repeated}] is {index[repeated]} again, so order would matter (in: {i})"
            )
        if narrow is not None:
            narrow()
        moves.scatter(*arguments)

    return thunk


@kernel_of(EMBEDDING)
def bind_embedding(i: EMBEDDING, memory: ArrayMemory) -> Thunk:
    """dst[t] = table[ids[t] - first], zeros outside this card's part."""
    dst, table = rows_between(i, memory, i.dst, i.table)
    ids = integers(i, memory, i.ids)
    zero = dst.rows.dtype.type(0)
    arguments = (dst.rows, dst.start, table.rows, table.start, dst.cols, ids, memory.number(i.first), zero)

    def run(first: int, last: int) -> int:
        return int(moves.embedding(*arguments, first, last))

    def thunk() -> None:
        over_rows(run, dst.count, dst.count * dst.cols)

    return thunk
