"""Fused instructions: several in one launch, what stands between them never written to device memory.

A fused instruction is declared by its parts: instructions over its operands and over buffers of its own. Its rules,
meaning and numbers are those of the parts, each result rounded to its buffer's dtype; its Work is theirs without the
bytes of the buffers between.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NamedTuple, Protocol

import numpy as np

from .arithmetic import Arithmetic
from .dtype import decode
from .experts import GROUPED_GATED, GROUPED_MATMUL, local_counts
from .instruction import (
    Array,
    Dim,
    Instruction,
    Memory,
    Shapes,
    Sizes,
    TensorType,
    bytes_of,
    require,
    require_apart,
    require_floats,
)
from .operands import ExtentName, In, Number, OptionalIn, Out, Ref, Role
from .program import column_slice
from .tensor import MATMUL
from .vector import ADD_RMSNORM, GATED, RMSNORM, Activation
from .work import FusedShape, Unit, Work

OptionalOut = Annotated[Ref | None, Role.OUT]
Gate = Literal["none", Activation]


class Parts(NamedTuple):
    """What a fused instruction is made of: its own buffers, and the instructions in their order."""

    between: dict[str, TensorType]
    instructions: tuple[Instruction, ...]


class Fused(Protocol):
    """An instruction that is several."""

    def parts(self, t: Shapes) -> Parts:
        """Its parts, for operands of these types."""


class InnerShapes:
    """The operands' types and sizes, and those of a fused instruction's own buffers."""

    def __init__(self, outer: Any, between: Mapping[str, TensorType]) -> None:
        self._outer, self._between = outer, between

    def type_of(self, ref: Ref) -> TensorType:
        """Type of an operand or a buffer of its own, its column range applied."""
        if ref.buffer not in self._between:
            found: TensorType = self._outer.type_of(ref)
            return found
        return column_slice(self._between[ref.buffer], ref)

    def shape(self, ref: Ref) -> tuple[int, ...]:
        """Dimensions, every extent a number."""
        return tuple(dim if isinstance(dim, int) else self.extent(dim)[0] for dim in self.type_of(ref).shape)

    def number(self, value: int | str) -> int:
        """An operand that is an integer, or what the scalar extent that it names is bound to."""
        return int(self._outer.number(value))

    def extent(self, name: str) -> tuple[int, ...]:
        """The values of an extent."""
        values: tuple[int, ...] = self._outer.extent(name)
        return values

    def group_size(self, group: str) -> int:
        """Ranks in a group."""
        return int(self._outer.group_size(group))

    def group_index(self, group: str) -> int:
        """This card's place in a group."""
        return int(self._outer.group_index(group))


class InnerMemory(InnerShapes):
    """Device memory, and a fused instruction's own buffers beside it."""

    def __init__(self, outer: Memory, between: Mapping[str, TensorType]) -> None:
        super().__init__(outer, between)
        self._memory = outer
        self._held = {name: np.zeros(self.shape(Ref(name)), kind.dtype.storage) for name, kind in between.items()}

    def _view(self, ref: Ref) -> Array:
        held = self._held[ref.buffer]
        return held if ref.size is None else held[..., ref.start : ref.start + ref.size]

    def get(self, ref: Ref) -> Array:
        """Values of an operand or a buffer of its own."""
        if ref.buffer not in self._held:
            return self._memory.get(ref)
        return decode(np.ascontiguousarray(self._view(ref)), self.type_of(ref).dtype)

    def put(self, ref: Ref, values: Array) -> None:
        """Round values to the dtype and store them."""
        if ref.buffer not in self._held:
            self._memory.put(ref, values)
            return
        self._view(ref)[...] = self.rules.stored(values, self.type_of(ref).dtype)

    @property
    def rules(self) -> Arithmetic:
        """How the card rounds."""
        return self._memory.rules

    def write_extent(self, name: str, values: Array) -> None:
        """Bind a vector extent that a part writes."""
        self._memory.write_extent(name, values)


def check_parts(fused: Fused, t: Shapes) -> None:
    """Raise ProgramError where a part's rules are broken."""
    parts = fused.parts(t)
    inner = InnerShapes(t, parts.between)
    for part in parts.instructions:
        part.check(inner)


def work_of_parts(fused: Fused, s: Sizes, used: int | None = None) -> Work:
    """The parts' operations, and their bytes without those of the buffers between.

    Of these buffers all rows are used, or only `used` of them.
    """
    parts = fused.parts(s)
    inner = InnerShapes(s, parts.between)
    works = tuple(part.work(inner) for part in parts.instructions)
    own = [(ref, role) for part in parts.instructions for ref, role in part.refs() if ref.buffer in parts.between]
    read, written = (
        sum(_bytes(inner, ref, used) for ref, role in own if role is not other) for other in (Role.OUT, Role.IN)
    )
    (dtype,) = {work.dtype for work in works if work.unit is Unit.TENSOR}
    return Work(
        Unit.TENSOR,
        ops=sum(work.ops for work in works),
        read_bytes=sum(work.read_bytes for work in works) - read,
        write_bytes=sum(work.write_bytes for work in works) - written,
        dtype=dtype,
        shape=FusedShape(works),
    )


def _bytes(inner: InnerShapes, ref: Ref, used: int | None) -> int:
    if used is None:
        return bytes_of(inner, ref)
    return inner.type_of(ref).dtype.bytes_of(used * inner.shape(ref)[-1])


def execute_parts(fused: Fused, m: Memory) -> None:
    """The parts' meanings, one after the other."""
    parts = fused.parts(m)
    inner = InnerMemory(m, parts.between)
    for part in parts.instructions:
        part.execute(inner)


def around(i: Any, t: Shapes, outputs: Dim, product: Callable[[Ref, Ref], Instruction]) -> Parts:
    """A norm where there is one, product(dst, a) of so many outputs, and a gate where there is one."""
    between: dict[str, TensorType] = {}
    made: list[Instruction] = []
    a, dst = i.a, i.dst
    if i.norm is not None:
        between["fused/normed"], a = t.type_of(i.a), Ref("fused/normed")
        if i.delta is not None and i.total is not None:
            made.append(ADD_RMSNORM(a, i.total, i.delta, i.norm, i.eps, i.plus_one))
        else:
            made.append(RMSNORM(a, i.a, i.norm, i.eps, i.plus_one))
    if i.activation != "none":
        wide = TensorType(t.type_of(i.dst).dtype, (*t.type_of(i.a).shape[:-1], outputs))
        between["fused/halves"], dst = wide, Ref("fused/halves")
    made.append(product(dst, a))
    if i.activation != "none":
        made.append(GATED(i.dst, dst, i.activation))
    return Parts(between, tuple(made))


def check_around(i: Any, t: Shapes) -> None:
    """Raise ProgramError where nothing stands around a product, or what does breaks its rules."""
    require(i.norm is not None or i.activation != "none", i, "nothing is fused: write a matmul")
    summed = i.delta is not None
    require(not summed or i.norm is not None, i, "delta is added before a norm, and there is none")
    require(i.total == (i.a if summed else None), i, "total must be a where there is a delta, else absent")
    require_apart(i, i.dst, i.a, i.delta, i.norm)
    check_parts(i, t)


class FUSED_MATMUL(Instruction, opcode=0xA8, unit=Unit.TENSOR):
    """A matrix product with what stands before and after it: dst = gated(rmsnorm(a (+ delta)) @ w^T (+ bias)).

    With `norm`, an RMS norm of a's rows by that weight comes first; with `delta` too, a + delta, rounded, which also
    goes to `total` (that is a itself), as in add_rmsnorm. Unless `activation` is none, dst is half as wide as the
    product, as in gated. At least one of the two is there.
    """

    dst: Out
    total: OptionalOut
    a: In
    delta: OptionalIn
    norm: OptionalIn
    w: In
    bias: OptionalIn
    eps: float
    plus_one: bool
    activation: Gate

    def parts(self, t: Shapes) -> Parts:
        """The norm where there is one, the product, the gate where there is one."""
        outputs = t.type_of(self.w).shape[0]
        return around(self, t, outputs, lambda dst, a: MATMUL(dst, a, self.w, self.bias))

    def check(self, t: Shapes) -> None:
        require_floats(self, t, *(ref for ref, _ in self.refs()))
        check_around(self, t)

    def work(self, s: Sizes) -> Work:
        return work_of_parts(self, s)

    def execute(self, m: Memory) -> None:
        execute_parts(self, m)


class FUSED_GROUPED_MATMUL(Instruction, opcode=0xAA, unit=Unit.TENSOR):
    """grouped_gated of a grouped_matmul: rows of each expert times its gate and up halves, gated, half as wide."""

    dst: Out
    a: In
    w: In
    bias: OptionalIn
    counts: In
    extent: ExtentName
    at: Number
    activation: Activation

    def _experts(self, t: Shapes) -> int:
        experts = t.type_of(self.w).shape[0]
        require(isinstance(experts, int), self, f"w is {t.type_of(self.w)}, must be [experts, n, k]")
        return int(experts)

    def parts(self, t: Shapes) -> Parts:
        """The grouped product, and the gate over the same rows."""
        wide = (*t.type_of(self.a).shape[:-1], *t.type_of(self.w).shape[1:2])
        halves, rows = Ref("fused/halves"), (self.counts, self.extent, self.at)
        made = (
            GROUPED_MATMUL(halves, self.a, self.w, self.bias, *rows),
            GROUPED_GATED(self.dst, halves, *rows, self._experts(t), self.activation),
        )
        return Parts({halves.buffer: TensorType(t.type_of(self.dst).dtype, wide)}, made)

    def check(self, t: Shapes) -> None:
        require_apart(self, self.dst, self.a)
        check_parts(self, t)

    def work(self, s: Sizes) -> Work:
        rows = local_counts(self, s, self.extent, self.at, self._experts(s), s.shape(self.a)[0])
        return work_of_parts(self, s, sum(rows))

    def execute(self, m: Memory) -> None:
        execute_parts(self, m)
