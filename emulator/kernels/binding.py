"""From an instruction to a thunk: operands as the arrays that kernels take, and the table of binders by mnemonic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...isa.dtype import BF16, FP16, FP32, DType
from ...isa.errors import NotYetError, ProgramError
from ...isa.instruction import Array, Instruction, elements
from ...isa.meaning import ArrayMemory
from ...isa.operands import Ref
from .rounding import Widened, needs_rules

Thunk = Callable[[], None]
Binder = Callable[[Any, ArrayMemory], Thunk]
KERNELS: dict[str, Binder] = {}
FLOATS = (FP32, BF16, FP16)


def kernel_of(instruction: type[Instruction], obeys: bool = False) -> Callable[[Binder], Binder]:
    """Register a binder as the kernel of an instruction; `obeys` says that it follows the card's number rules itself.

    The results of all others are rounded afterwards, from float32, where those rules are not IEEE 754's.

    A binder takes an instruction and a memory and returns a thunk that executes it on that memory's arrays. Views are
    bound once; lengths, tables, ids and positions are read from the arrays at every call. The instruction's own check
    runs first, so a binder may rely on shapes and dtypes that agree.
    """

    def register(binder: Binder) -> Binder:
        if instruction.mnemonic in KERNELS:
            raise AssertionError(f"{instruction.mnemonic} has two kernels")

        def checked(bound: Instruction, memory: ArrayMemory) -> Thunk:
            bound.check(memory)
            rounded = [] if obeys else needs_rules(bound, memory)
            return _by_rules(binder, bound, memory, rounded) if rounded else binder(bound, memory)

        KERNELS[instruction.mnemonic] = checked
        return checked

    return register


def _by_rules(binder: Binder, instruction: Instruction, memory: ArrayMemory, buffers: list[str]) -> Thunk:
    """The instruction over float32 in the place of what it writes, which is then rounded by the card's rules."""
    widened = Widened(memory, buffers)
    run = binder(instruction, widened.wide)

    def thunk() -> None:
        widened.load()
        run()
        widened.store()

    return thunk


@dataclass(frozen=True)
class Operand:
    """A buffer as kernels see it: `rows` is the whole buffer as [rows, width], of which `cols` from `start` on count.

    Whole buffers are C-contiguous, so kernels compile for one memory layout even where operands are column slices.
    fp16 appears as int16, bf16 as uint16 (see `inline`). `shape` is the operand's own.
    """

    rows: Array
    start: int
    cols: int
    dtype: DType
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        """Number of rows."""
        return len(self.rows)

    @property
    def view(self) -> Array:
        """The operand alone, [rows, cols]."""
        return self.rows[:, self.start : self.start + self.cols]

    @property
    def flat(self) -> Array:
        """A vector operand as one run, [cols] (or all elements of a buffer without column range)."""
        return self.rows.reshape(-1)[self.start :][: elements(self.shape)]


class _Alias:
    """Hands NumPy another array's memory as writable, which kernels never use: it only spares them a second type."""

    def __init__(self, array: Array) -> None:
        self.array = array
        self.__array_interface__ = {
            "version": 3,
            "shape": array.shape,
            "typestr": array.dtype.str,
            "data": (array.__array_interface__["data"][0], False),
        }


def operand(instruction: Instruction, memory: ArrayMemory, ref: Ref) -> Operand:
    """Bind one operand; ProgramError when its array is not what the block declares."""
    kind, array = memory.type_of(ref), memory.arrays[ref.buffer]
    whole = memory.shape(Ref(ref.buffer))
    if array.shape != whole or array.dtype != kind.dtype.storage:
        raise ProgramError(
            f"{instruction.mnemonic}: %{ref.buffer} is bound to {array.dtype}{list(array.shape)}, must be "
            f"{kind.dtype.storage}{list(whole)} (in: {instruction})"
        )
    if not array.flags.c_contiguous or not array.flags.aligned:
        raise ProgramError(
            f"{instruction.mnemonic}: %{ref.buffer} must be contiguous and aligned in memory; bind a copy of it "
            f"(in: {instruction})"
        )
    if not array.flags.writeable:
        array = np.asarray(_Alias(array))
    if kind.dtype is FP16:
        array = array.view(np.int16)
    shape = memory.shape(ref)
    width = whole[-1] if whole else 1
    start = memory.columns(ref).start or 0
    return Operand(array.reshape(elements(whole[:-1]), width), start, shape[-1] if shape else 1, kind.dtype, shape)


def floats(instruction: Instruction, memory: ArrayMemory, *refs: Ref) -> list[Operand]:
    """Bind operands that must be fp32, bf16 or fp16; NotYetError for a type that no kernel computes in yet."""
    bound = [operand(instruction, memory, ref) for ref in refs]
    for ref, one in zip(refs, bound, strict=True):
        if one.dtype not in FLOATS:
            raise NotYetError(
                f"{instruction.mnemonic}: no kernel computes on {one.dtype} (%{ref.buffer}); cast it to one of "
                f"{', '.join(map(str, FLOATS))} first (in: {instruction})"
            )
    return bound


def integers(instruction: Instruction, memory: ArrayMemory, ref: Ref) -> Array:
    """Bind a vector of int32 or int64 (lengths, positions, indices, keys) as a one-dimensional view."""
    return operand(instruction, memory, ref).flat


def out_of_range(instruction: Instruction, what: str, values: Array, at: int, limit: int) -> ProgramError:
    """The error for an index that points outside what it indexes."""
    return ProgramError(
        f"{instruction.mnemonic}: {what}[{at}] is {values[at]}, must be 0 to {limit - 1} (in: {instruction})"
    )
