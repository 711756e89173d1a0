"""Packed operands: the codes, scales and what else stands for a weight in device memory, their rules and their meaning.

Codes are laid out by a Form. Scales are [..., row blocks, column blocks]; with `phase` the first block of every row has
lost its first `phase` elements, as a cut along the inputs leaves it. `zeros` are what zero is coded as, a scale's shape
in int8, or int32 words of such along the rows where codes are words. `divisors` fp32 [..., n] divide scales, each of
an equal run of rows. `index` int32 [rows] says which row of scales (of divisors, where every row has scales of its own)
serves each row, for rows that were put together from several tensors or out of their order; all matrices of a stack
share it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .dtype import DTYPES, FP32, INT32, decode, encode
from .formats.elements import INTEGER_RANGES, decode_float, float_format
from .formats.form import Form
from .formats.packing import signed_nibbles, unpack_nibbles, unpack_words
from .instruction import Array, Instruction, Memory, Shapes, Sizes, TensorType, bytes_of, elements, require
from .operands import Ref

SCALE_DTYPES = ("fp32", "fp16", "bf16", "fp8_e4m3", "e8m0")
MAX_PHASE = 1 << 40


@dataclass(frozen=True)
class PackedOperand:
    """The operands of one instruction that stand for one packed tensor."""

    owner: Instruction
    codes: Ref
    scales: Ref
    zeros: Ref | None
    divisors: Ref | None
    index: Ref | None
    form: Form
    phase: int

    @property
    def refs(self) -> tuple[Ref | None, ...]:
        """All of them."""
        return (self.codes, self.scales, self.zeros, self.divisors, self.index)

    def check(self, t: Shapes, shape: tuple[int, ...]) -> None:
        """ProgramError unless the buffers hold a packed tensor of this shape, [..., rows, cols]."""
        form, owner = self.form, self.owner
        codes, scales = t.type_of(self.codes), t.type_of(self.scales)
        wanted = TensorType(form.stored, form.codes_shape(shape))
        require(codes == wanted, owner, f"{self.codes} is {codes}, must be {wanted} for {form}")
        require(0 <= self.phase <= MAX_PHASE, owner, f"phase={self.phase} must be 0 or more")
        require(not self.phase or self.phase < form.cols, owner, f"phase={self.phase} must be below {form.cols}")
        self._check_scales(t, shape, scales)
        rows, lead = shape[-2], shape[:-2]
        if self.zeros is not None:
            zeros = t.type_of(self.zeros)
            held = TensorType(DTYPES["int8"], scales.shape)
            if form.packing == "words":
                assert isinstance(scales.shape[-2], int)
                words = -(-scales.shape[-2] // form.per_unit)
                held = TensorType(INT32, (*lead, words, scales.shape[-1]))
            require(zeros == held, owner, f"{self.zeros} is {zeros}, must be {held}")
            require(form.element.name in INTEGER_RANGES, owner, f"{form.element} has no zero points")
        if self.divisors is not None:
            divisors = t.type_of(self.divisors)
            count = divisors.shape[-1]
            fits = divisors == TensorType(FP32, (*lead, count)) and isinstance(count, int) and count > 0
            fits = fits and (self._indexes_divisors or rows % int(count) == 0)
            require(fits, owner, f"{self.divisors} is {divisors}, must be fp32 {[*lead, 'n']}, n a divisor of {rows}")
        if self.index is not None:
            index, held = t.type_of(self.index), TensorType(INT32, (rows,))
            require(index == held, owner, f"{self.index} is {index}, must be {held}")

    def _check_scales(self, t: Shapes, shape: tuple[int, ...], scales: TensorType) -> None:
        form = self.form
        require(scales.dtype.name in SCALE_DTYPES, self.owner, f"{self.scales} is {scales}: not a scale's type")
        blocks = form.column_blocks(shape[-1], self.phase)
        stripes = scales.shape[-2] if len(scales.shape) > 1 else 0
        exact = self.index is None or self._indexes_divisors
        if exact:
            stripes = form.row_blocks(shape[-2])
        wanted = (*shape[:-2], stripes, blocks)
        fits = scales.shape == wanted and isinstance(stripes, int)
        require(fits, self.owner, f"{self.scales} is {scales}, must be {list(wanted)} for {form}")

    @property
    def _indexes_divisors(self) -> bool:
        return self.index is not None and self.form.rows == 1

    def num_bytes(self, s: Sizes) -> int:
        """Bytes of all its buffers."""
        return bytes_of(s, *self.refs)

    def bytes_of_matrices(self, s: Sizes, count: int) -> int:
        """Bytes of `count` matrices of a stack."""
        whole = bytes_of(s, *self.refs[:4])
        stack = elements(s.shape(self.codes)[:-2])
        return (whole // stack * count if stack else 0) + bytes_of(s, self.index)

    def values(self, m: Memory, shape: tuple[int, ...]) -> Array:
        """float32 [..., rows, cols]: (code - zero) x (scale / divisor), each rounded once to fp32, then the form's."""
        form = self.form
        values = element_floats(m.get(self.codes), form, shape[-1])
        row_of, cols = self.scale_rows(m, shape[-2]), np.arange(shape[-1])
        column_of = (self.phase + cols) // form.cols if form.cols else np.zeros_like(cols)
        if self.zeros is not None:
            values = values - self._zero_points(m)[..., row_of, :][..., column_of]
        scales: Array = m.get(self.scales).astype(np.float32)[..., row_of, :]
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            if self.divisors is not None:
                scales = scales / self.divisor_rows(m, shape[-2])[..., None]
            product: Array = values * scales[..., column_of]
            return product if form.product is FP32 else decode(encode(product, form.product), form.product)

    def shape_of(self, s: Sizes, cols: int) -> tuple[int, ...]:
        """[..., rows, cols]: the shape that the codes stand for."""
        return (*s.shape(self.codes)[:-1], cols)

    def codes_and_scales(self, m: Memory, shape: tuple[int, ...]) -> tuple[Array, Array]:
        """float32 values of the codes [..., rows, cols], and the scales of each row's blocks [..., rows, blocks]."""
        values = element_floats(m.get(self.codes), self.form, shape[-1])
        scales: Array = m.get(self.scales).astype(np.float32)[..., self.scale_rows(m, shape[-2]), :]
        return values, scales

    def scale_rows(self, m: Memory, rows: int) -> Array:
        """Which row of scales serves each row of a matrix; ProgramError for one that is not there."""
        if self.index is None or self._indexes_divisors:
            return np.arange(rows) // self.form.rows if self.form.rows else np.zeros(rows, np.int64)
        row_of, limit = m.get(self.index), m.shape(self.scales)[-2]
        require(bool(((row_of >= 0) & (row_of < limit)).all()), self.owner, f"{self.index} passes {limit} scales")
        return row_of

    def divisor_rows(self, m: Memory, rows: int) -> Array:
        """float32 [..., rows]: the divisor of each row's scales."""
        assert self.divisors is not None
        divisors = m.get(self.divisors)
        count = divisors.shape[-1]
        row_of = np.arange(rows) * count // rows if self.index is None else m.get(self.index)
        require(bool(((row_of >= 0) & (row_of < count)).all()), self.owner, f"{self.index} passes {count} divisors")
        found: Array = divisors[..., row_of]
        return found

    def _zero_points(self, m: Memory) -> Array:
        """float32 of the scales' shape."""
        assert self.zeros is not None
        zeros = m.get(self.zeros)
        if self.form.packing == "words":
            zeros = unpack_zero_words(zeros, self.form.element.bits, m.shape(self.scales)[-2])
        return zeros.astype(np.float32)


def unpack_zero_words(words: Array, bits: int, rows: int) -> Array:
    """int8 zero points [..., rows, blocks] of int32 words packed along the rows."""
    turned = np.ascontiguousarray(words.swapaxes(-1, -2))
    return np.ascontiguousarray(unpack_words(turned, bits, rows).swapaxes(-1, -2))


def element_floats(codes: Array, form: Form, count: int) -> Array:
    """float32 [..., count] values of codes before scaling; `codes` as `Memory.get` gives them."""
    if form.packing == "words":
        codes = unpack_words(codes, form.element.bits, count)
    elif form.packing == "nibbles":
        nibbles = unpack_nibbles(codes, count)
        if form.element.name not in INTEGER_RANGES:
            return decode_float(nibbles, float_format(form.element))
        codes = signed_nibbles(nibbles)
    return codes.astype(np.float32)
