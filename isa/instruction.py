"""Instruction: the base class whose subclasses declare mnemonic, operands, rules, Work and meaning once."""

from __future__ import annotations

import typing
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, dataclass_transform

import numpy as np

from .arithmetic import Arithmetic
from .dtype import DType
from .errors import ProgramError
from .operands import Kind, Ref, Role, Writer, kind_of
from .work import Unit, Work

Array = np.ndarray[Any, np.dtype[Any]]
Dim = int | str
REGISTRY: dict[str, type[Instruction]] = {}
_OPCODES: dict[int, type[Instruction]] = {}


@dataclass(frozen=True)
class TensorType:
    """Element type and shape of a buffer; a dimension is a number or the name of an extent."""

    dtype: DType
    shape: tuple[Dim, ...]

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


class Shapes(Protocol):
    """Where an instruction looks up its operands' types; dimensions are integers once extents are bound."""

    def type_of(self, ref: Ref) -> TensorType:
        """Type of an operand, its column range applied."""

    def group_size(self, group: str) -> int:
        """Number of ranks in a group."""


class Sizes(Shapes, Protocol):
    """Shapes with every extent bound to a number: what Work is computed from."""

    def shape(self, ref: Ref) -> tuple[int, ...]:
        """Dimensions of an operand."""

    def number(self, value: int | str) -> int:
        """An operand that is an integer, or what the scalar extent that it names is bound to."""

    def extent(self, name: str) -> tuple[int, ...]:
        """The values of an extent (one for a scalar)."""

    def group_index(self, group: str) -> int:
        """This card's place in a group."""


class Memory(Sizes, Protocol):
    """Device memory as the NumPy meaning sees it: values in, values out, rounded to the buffer's dtype."""

    def get(self, ref: Ref) -> Array:
        """Values of an operand: float32 for float types, the integers themselves otherwise."""

    def put(self, ref: Ref, values: Array) -> None:
        """Round values to the operand's dtype and store them."""

    @property
    def rules(self) -> Arithmetic:
        """How the card rounds."""

    def write_extent(self, name: str, values: Array) -> None:
        """Bind a vector extent that the instruction writes, for what reads it after."""


@dataclass_transform(frozen_default=True)
class Instruction:
    """One macro-instruction over tensors.

    A subclass states `opcode` and `unit` in its class line and its operands as annotated fields; from these the
    encoder, decoder, assembler, disassembler, legality check and ISA page are derived. `check` states the shape and
    dtype rules, `work` the operations and bytes, `execute` the meaning in NumPy.
    """

    opcode: ClassVar[int]
    unit: ClassVar[Unit]
    mnemonic: ClassVar[str]
    operands: ClassVar[dict[str, Kind]]
    _roles: ClassVar[tuple[tuple[str, Role], ...]]

    def __init_subclass__(cls, *, opcode: int, unit: Unit) -> None:
        _check_declaration(cls, opcode, unit)
        dataclass(frozen=True)(cls)
        cls.opcode, cls.unit, cls.mnemonic = opcode, unit, cls.__name__.lower()
        hints = typing.get_type_hints(cls, include_extras=True)
        cls.operands = {name: kind_of(hints[name]) for name in cls.__dataclass_fields__}  # type: ignore[attr-defined]
        cls._roles = tuple((name, kind.role) for name, kind in cls.operands.items() if kind.role is not None)
        _OPCODES[opcode] = REGISTRY[cls.mnemonic] = cls

    @abstractmethod
    def check(self, t: Shapes) -> None:
        """Raise ProgramError where shapes or dtypes break the rules."""

    @abstractmethod
    def work(self, s: Sizes) -> Work:
        """Operations, bytes and geometry for bound extents."""

    def execute(self, m: Memory) -> None:
        """The meaning, in NumPy; instructions that cross cards mean their expansion instead."""
        raise ProgramError(
            f"{self.mnemonic} crosses cards: its meaning is its expansion into send, recv and recv_reduce"
        )

    def refs(self) -> Iterator[tuple[Ref, Role]]:
        """Every buffer operand with the way it is used."""
        for name, role in self._roles:
            ref = getattr(self, name)
            if ref is not None:
                yield ref, role

    def encode(self, writer: Writer) -> None:
        """Append opcode and operands."""
        writer.uint(self.opcode)
        for name, kind in self.operands.items():
            kind.write(writer, getattr(self, name))

    def __str__(self) -> str:
        return " ".join([self.mnemonic, *(f"{n}={k.show(getattr(self, n))}" for n, k in self.operands.items())])


def _check_declaration(cls: type[Instruction], opcode: int, unit: Unit) -> None:
    """Refuse a clash with an instruction that stands, and a declaration that leaves something unsaid."""
    name = cls.__name__
    if opcode in _OPCODES:
        raise ProgramError(f"{name}: opcode {opcode:#x} already belongs to {_OPCODES[opcode].__name__}")
    if name.lower() in REGISTRY:
        raise ProgramError(f"{name}: mnemonic {name.lower()!r} already belongs to {REGISTRY[name.lower()].__name__}")
    if opcode < 0:
        raise ProgramError(f"{name}: opcode {opcode} is negative")
    needed = ["__doc__", "check", "work", *([] if unit is Unit.LINK else ["execute"])]
    missing = [part for part in needed if not vars(cls).get(part)]
    if missing:
        raise ProgramError(f"{name}: the declaration lacks {', '.join(missing)}")


def require(condition: bool, instruction: Instruction, message: str) -> None:
    """Raise ProgramError naming the instruction unless the condition holds."""
    if not condition:
        raise ProgramError(f"{instruction.mnemonic}: {message} (in: {instruction})")


def require_floats(instruction: Instruction, t: Shapes, *refs: Ref | None) -> None:
    """Raise ProgramError unless every operand (absent ones aside) holds floats."""
    for ref in refs:
        if ref is not None:
            require(t.type_of(ref).dtype.is_float, instruction, f"{ref} is {t.type_of(ref)}, must hold floats")


def require_convertible(instruction: Instruction, t: Shapes, dst: Ref, src: Ref) -> None:
    """Raise ProgramError unless src's elements can be stored in dst: float to float, or the same dtype."""
    to, of = t.type_of(dst).dtype, t.type_of(src).dtype
    require(
        to == of or (to.is_float and of.is_float),
        instruction,
        f"{of} does not convert to {to}: both must be floats, or the same dtype",
    )


def require_apart(instruction: Instruction, dst: Ref, *others: Ref | None) -> None:
    """Raise ProgramError when dst overlaps an operand that is still read while dst is being written."""
    for other in others:
        require(not dst.overlaps(other), instruction, f"{dst} overlaps {other}, which is read while it is written")


def require_columns(instruction: Instruction, t: Shapes, ref: Ref) -> None:
    """Raise ProgramError for rows without a column: they have no maximum and no mean."""
    require(t.type_of(ref).shape[-1] != 0, instruction, f"{ref} is {t.type_of(ref)}: its rows are empty")


def require_rows(instruction: Instruction, index: Array, rows: int, what: str) -> None:
    """Raise ProgramError, at execution, for an index outside [0, rows)."""
    outside = index[(index < 0) | (index >= rows)]
    if outside.size:
        raise ProgramError(
            f"{instruction.mnemonic}: {what} {outside[0]} is outside 0 to {rows - 1} (in: {instruction})"
        )


def known(number: int | str) -> int:
    """What a check may know of a number before it is bound: itself, or the least that an extent may be."""
    return 0 if isinstance(number, str) else number


def elements(shape: tuple[int, ...]) -> int:
    """Number of elements of a shape."""
    count = 1
    for dim in shape:
        count *= dim
    return count


def rows_cols(shape: tuple[int, ...]) -> tuple[int, int]:
    """A shape as rows of its last dimension."""
    return elements(shape[:-1]), shape[-1]


def bytes_of(s: Sizes, *refs: Ref | None) -> int:
    """Bytes of operands together; absent ones count nothing."""
    return sum(s.type_of(ref).dtype.bytes_of(elements(s.shape(ref))) for ref in refs if ref is not None)


def share_of(total: int, parts: int, index: int) -> tuple[int, int]:
    """(start, size) of one share of an even split."""
    small, extra = divmod(total, parts)
    return index * small + min(index, extra), small + (index < extra)


def split_even(total: int, parts: int) -> list[tuple[int, int]]:
    """(start, size) of `parts` contiguous shares of `total`: the first `total % parts` have one more.

    Every split in siltwin follows it: vocabulary shards, all-gather parts, all-reduce chunks.
    """
    if parts < 1 or total < 0:
        raise ProgramError(f"{total} cannot be split into {parts} parts")
    return [share_of(total, parts, index) for index in range(parts)]
