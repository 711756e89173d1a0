"""Instructions on quantised tensors: codes and scales of a packed weight become the floats that products multiply."""

from __future__ import annotations

from .formats.form import Form
from .instruction import (
    Instruction,
    Memory,
    Shapes,
    Sizes,
    bytes_of,
    require,
    require_apart,
    require_floats,
    rows_cols,
)
from .operands import In, OptionalIn, Out, Ref
from .packed import PackedOperand
from .work import Unit, VectorShape, Work


class DEQUANTISE(Instruction, opcode=0x61, unit=Unit.VECTOR):
    """dst = (codes - zeros) x scales / divisors, rounded to the form's product, then to dst's dtype.

    dst is [..., out, in]. The form names element, packing and block: 8-bit elements lie one a byte, codes
    [..., out, in]; nibbles two a byte, the first low, uint8 [..., out, in / 2]; words several in an int32, with an
    offset. For cards that cannot multiply packed weights.
    """

    dst: Out
    codes: In
    scales: In
    form: Form
    zeros: OptionalIn = None
    divisors: OptionalIn = None
    index: OptionalIn = None
    phase: int = 0

    @property
    def packed(self) -> PackedOperand:
        """The tensor that is decoded."""
        return PackedOperand(
            self, self.codes, self.scales, self.zeros, self.divisors, self.index, self.form, self.phase
        )

    def check(self, t: Shapes) -> None:
        dst = t.type_of(self.dst)
        require_floats(self, t, self.dst)
        require_apart(self, self.dst, *self.packed.refs)
        self.packed.check(t, whole_shape(self, t, self.dst))
        require(dst.dtype.bits > 8, self, f"dst is {dst}, must be wider than the codes")

    def work(self, s: Sizes) -> Work:
        rows, cols = rows_cols(s.shape(self.dst))
        return Work(
            Unit.VECTOR,
            ops=2 * rows * cols,  # convert, multiply
            read_bytes=self.packed.num_bytes(s),
            write_bytes=bytes_of(s, self.dst),
            dtype=s.type_of(self.dst).dtype,
            shape=VectorShape(rows, cols),
        )

    def execute(self, m: Memory) -> None:
        m.put(self.dst, self.packed.values(m, m.shape(self.dst)))


def whole_shape(instruction: Instruction, t: Shapes, ref: Ref) -> tuple[int, ...]:
    """The shape of a matrix or a stack of matrices, of which every side must be a number."""
    kind = t.type_of(ref)
    shape = tuple(side for side in kind.shape if isinstance(side, int))
    require(len(shape) == len(kind.shape) > 1, instruction, f"{ref} is {kind}, must be [..., out, in], all numbers")
    return shape
