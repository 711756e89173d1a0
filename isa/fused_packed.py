"""Fused products with packed weights: decoded on their way into the array, with a norm before them or a gate after."""

from __future__ import annotations

from .experts import GROUPED_GATED, local_counts
from .formats.form import Form
from .fused import Gate, OptionalOut, Parts, around, check_around, check_parts, execute_parts, work_of_parts
from .instruction import Dim, Instruction, Memory, Shapes, Sizes, TensorType, require, require_apart
from .operands import ExtentName, In, Number, OptionalIn, Out, Ref
from .products import PACKED_GROUPED_MATMUL, PACKED_MATMUL
from .vector import Activation
from .work import Unit, Work


def _twice(instruction: Instruction, t: Shapes, dst: Ref) -> Dim:
    """The outputs of a product whose gated half is dst."""
    columns = t.type_of(dst).shape[-1]
    require(isinstance(columns, int), instruction, f"dst is {t.type_of(dst)}: its columns must be a number")
    return 2 * int(columns)


class FUSED_PACKED_MATMUL(Instruction, opcode=0xAC, unit=Unit.TENSOR):
    """`fused_matmul` with packed weights, as packed_matmul reads them."""

    dst: Out
    total: OptionalOut
    a: In
    delta: OptionalIn
    norm: OptionalIn
    codes: In
    scales: In
    form: Form
    bias: OptionalIn
    zeros: OptionalIn
    divisors: OptionalIn
    index: OptionalIn
    phase: int
    eps: float
    plus_one: bool
    activation: Gate

    def parts(self, t: Shapes) -> Parts:
        """The norm where there is one, the product, the gate where there is one."""
        own = {name: getattr(self, name) for name in PACKED_MATMUL.operands if name in self.operands}
        outputs = _twice(self, t, self.dst) if self.activation != "none" else 0
        return around(self, t, outputs, lambda dst, a: PACKED_MATMUL(**own | {"dst": dst, "a": a}))

    def check(self, t: Shapes) -> None:
        for ref, _ in self.refs():
            t.type_of(ref)
        check_around(self, t)

    def work(self, s: Sizes) -> Work:
        return work_of_parts(self, s)

    def execute(self, m: Memory) -> None:
        execute_parts(self, m)


class FUSED_PACKED_GROUPED_MATMUL(Instruction, opcode=0xAD, unit=Unit.TENSOR):
    """`fused_grouped_matmul` with packed weights, as packed_grouped_matmul reads them."""

    dst: Out
    a: In
    codes: In
    scales: In
    form: Form
    counts: In
    extent: ExtentName
    at: Number
    bias: OptionalIn
    zeros: OptionalIn
    divisors: OptionalIn
    index: OptionalIn
    phase: int
    activation: Activation

    def _experts(self, t: Shapes) -> int:
        experts = t.type_of(self.codes).shape[0]
        require(isinstance(experts, int), self, f"codes is {t.type_of(self.codes)}, must be [experts, n, k]")
        return int(experts)

    def parts(self, t: Shapes) -> Parts:
        """The grouped product, and the gate over the same rows."""
        halves = Ref("fused/halves")
        wide = (*t.type_of(self.a).shape[:-1], _twice(self, t, self.dst))
        own = {name: getattr(self, name) for name in PACKED_GROUPED_MATMUL.operands if name in self.operands}
        rows = (self.counts, self.extent, self.at, self._experts(t))
        made = (
            PACKED_GROUPED_MATMUL(**own | {"dst": halves}),
            GROUPED_GATED(self.dst, halves, *rows, self.activation),
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
