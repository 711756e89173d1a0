"""Packed weights to float32 rows: the Numba twins of isa's dequantise for fp8, int8 and the 4-bit formats.

Every decode is arithmetic that vectorises: an 8-bit or 4-bit float is moved into the bit fields of an fp16, which the
machine converts, subnormals included, and a power of two makes up for the difference of biases.
"""

# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...isa.errors import ProgramError, UnsupportedError
from ...isa.formats.form import Form, form_of
from ...isa.formats.quantise import Packed, scale_values
from ...isa.formats.scheme import matrix_of
from .inline import kernel, rounded, value_of

Array = np.ndarray[Any, Any]

_E4M3_TO_HALF, _E2M1_TO_HALF = np.float32(2**8), np.float32(2**14)  # 2 to the difference of the biases
_NAN = np.float32(np.nan)
_E4M3, _E5M2, _E2M1, _INT8, _INT4 = range(5)
_KINDS = {"fp8_e4m3": _E4M3, "fp8_e5m2": _E5M2, "mxfp4": _E2M1, "int8": _INT8, "int4": _INT4}


@kernel
def _e4m3(out, codes, scale):
    for i in range(out.size):
        code = np.int16(codes[i])
        magnitude = code & np.int16(0x7F)
        half = np.int16(magnitude << np.int16(7)) | np.int16((code & np.int16(0x80)) << np.int16(8))
        value = value_of(np.int16(half)) * _E4M3_TO_HALF
        out[i] = (_NAN if magnitude == np.int16(0x7F) else value) * scale


@kernel
def _e5m2(out, codes, scale):
    for i in range(out.size):
        out[i] = value_of(np.int16(np.int16(codes[i]) << np.int16(8))) * scale


@kernel
def _int8(out, codes, scale, offset, flip):
    for i in range(out.size):
        out[i] = (np.float32(np.int8(codes[i] ^ flip)) - offset) * scale


@kernel
def _e2m1_value(nibble):
    bits = np.int16((nibble & np.int16(7)) << np.int16(9)) | np.int16((nibble & np.int16(8)) << np.int16(12))
    return value_of(np.int16(bits)) * _E2M1_TO_HALF


@kernel
def _e2m1(out, codes, scale):
    for i in range(out.size // 2):
        code = np.int16(codes[i])
        out[2 * i] = _e2m1_value(np.int16(code & np.int16(15))) * scale
        out[2 * i + 1] = _e2m1_value(np.int16(code >> np.int16(4))) * scale
    if out.size % 2:
        out[out.size - 1] = _e2m1_value(np.int16(np.int16(codes[out.size // 2]) & np.int16(15))) * scale


@kernel
def _int4(out, codes, scale, offset, flip):
    for i in range(out.size // 2):
        code = np.int32(codes[i] ^ flip)
        out[2 * i] = (np.float32(code & np.int32(15)) - offset) * scale
        out[2 * i + 1] = (np.float32(code >> np.int32(4)) - offset) * scale
    if out.size % 2:
        code = np.int32(codes[out.size // 2] ^ flip) & np.int32(15)
        out[out.size - 1] = (np.float32(code) - offset) * scale


@kernel
def _first_of_pair(kind, code, scale, offset, flip):
    """The element in the high half of a byte: where a block starts in the middle of one."""
    if kind == _E2M1:
        return _e2m1_value(np.int16(np.int16(code) >> np.int16(4))) * scale
    return (np.float32(np.int32(code ^ flip) >> np.int32(4)) - offset) * scale


@kernel
def _rows(kind, out, codes, scales, zero, base, flip, stripes, total, phase, block_cols, first):
    """out[r] = row first + r: codes uint8 [rows, bytes], scales (and zero points, or none) [row blocks, column blocks].

    stripes[r] is the row of scales of row r of each matrix of a stack, which has `total` of them; the first column
    block has lost its first `phase` elements.
    """
    rows = max(stripes.size, 1)
    per_byte = 2 if kind == _E2M1 or kind == _INT4 else 1
    cols = out.shape[1]
    for r in range(out.shape[0]):
        row = first + r
        stripe = row // rows * total + stripes[row % rows]
        for b in range(scales.shape[1]):
            start, stop = max(b * block_cols - phase, 0), min((b + 1) * block_cols - phase, cols)
            scale = scales[stripe, b]
            offset = base + zero[stripe, b] if zero.size > 0 else base
            if per_byte == 2 and start % 2 == 1 and start < stop:
                out[r, start] = _first_of_pair(kind, codes[row, start // 2], scale, offset, flip)
                start += 1
            if start >= stop:
                continue
            run = out[r, start:stop]
            stored = codes[row, start // per_byte : (stop + per_byte - 1) // per_byte]
            if kind == _E4M3:
                _e4m3(run, stored, scale)
            elif kind == _E5M2:
                _e5m2(run, stored, scale)
            elif kind == _E2M1:
                _e2m1(run, stored, scale)
            elif kind == _INT8:
                _int8(run, stored, scale, offset, flip)
            else:
                _int4(run, stored, scale, offset, flip)


@kernel
def through(tile, like):
    """Every element rounded to the element type of the array `like`, and back."""
    for r in range(tile.shape[0]):
        row = tile[r]
        for i in range(row.size):
            row[i] = value_of(rounded(like, row[i]))


@dataclass(frozen=True, eq=False)
class RowDecoder:
    """Rows of one packed tensor as float32, as isa's dequantise gives them to the bit (any NaN for a NaN).

    Scales are widened once, when it is made; codes are read where they lie. Threads may share it: it runs without the
    GIL and writes nothing but `out`. The rows of a stack [..., rows, cols] are counted through; `stripes` is the row
    of scales of each row of a matrix, which has `total` of them.
    """

    kind: int
    codes: Array  # uint8 [all rows, bytes]
    scales: Array  # float32 [all row blocks, column blocks]
    zero: Array  # float32 of the same shape, or [0, 0]
    base: np.float32
    flip: np.uint8
    stripes: Array  # int32 [rows]
    total: int
    phase: int
    block_cols: int
    cols: int

    def __call__(self, out: Array, first: int) -> None:
        """out[r] = row first + r, for float32 `out` [n, cols], fastest contiguous; ProgramError for others."""
        last = first + out.shape[0]
        if out.dtype != np.float32 or out.ndim != 2 or out.shape[1] != self.cols:
            raise ProgramError(f"rows of {self.cols} decode into float32 [n, {self.cols}], not {out.dtype} {out.shape}")
        if not 0 <= first <= last <= self.codes.shape[0]:
            raise ProgramError(f"rows [{first}, {last}) are not within the {self.codes.shape[0]} of the tensor")
        places = (self.stripes, self.total, self.phase, self.block_cols, first)
        _rows(self.kind, out, self.codes, self.scales, self.zero, self.base, self.flip, *places)


@dataclass(frozen=True, eq=False)
class Stripes:
    """Float32 scales, and zero points where there are any, [..., row blocks, column blocks]; the row of them that
    serves each row of a matrix, and how much of the first column block is cut away."""

    scales: Array
    zeros: Array | None
    of_row: Array
    phase: int = 0


def row_decoder(packed: Packed) -> RowDecoder:
    """The decoder of a packed tensor; UnsupportedError for 16-bit elements."""
    scheme, shape = packed.scheme, packed.shape
    if scheme.element.name not in _KINDS:
        raise UnsupportedError(f"{scheme.name}: no kernel decodes {scheme.element}; known: {', '.join(_KINDS)}")
    of_row = np.arange(matrix_of(shape)[0]) // scheme.block_of(shape)[0]
    stripes = Stripes(scale_values(scheme, packed.scales), packed.scales.zero_points, of_row)
    return decoder_of(form_of(scheme), packed.codes, stripes, shape[-1])


def decoder_of(form: Form, codes: Array, stripes: Stripes, cols: int) -> RowDecoder:
    """The decoder of codes laid out by a form; its product's rounding is the caller's."""
    four_bits, blocks = form.element.bits == 4, stripes.scales.shape[-1]
    zero = np.zeros((0, 0), np.float32)
    if stripes.zeros is not None:
        zero = stripes.zeros.reshape(-1, blocks).astype(np.float32)
    # Two's complement nibbles become code + 8, words of bytes become two's complement: the same flip of top bits.
    flipped = four_bits != (form.packing == "words")
    return RowDecoder(
        kind=_KINDS[form.element.name],
        codes=_bytes(codes),
        scales=np.ascontiguousarray(stripes.scales.reshape(-1, blocks), np.float32),
        zero=zero,
        base=np.float32(8 if four_bits else 0),
        flip=np.uint8((0x88 if four_bits else 0x80) if flipped else 0),
        stripes=np.ascontiguousarray(stripes.of_row, np.int32),
        total=stripes.scales.shape[-2] if stripes.scales.ndim > 1 else 1,
        phase=stripes.phase,
        block_cols=form.cols or max(cols, 1),
        cols=cols,
    )


def _bytes(codes: Array) -> Array:
    """Codes as uint8 [all rows, bytes of a row]; words lie low byte first on every machine that siltwin runs on."""
    codes = np.ascontiguousarray(codes)
    return codes.reshape(math.prod(codes.shape[:-1]), codes.shape[-1]).view(np.uint8)
