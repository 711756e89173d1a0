"""Binders of quantised tensors: rows decoded in scratch and rounded once into place."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...isa.dtype import DTYPES, FP16, FP32, decode
from ...isa.instruction import Array
from ...isa.meaning import ArrayMemory
from ...isa.packed import PackedOperand, unpack_zero_words
from ...isa.quantised import DEQUANTISE
from . import matmul
from .binding import Operand, Thunk, floats, kernel_of, operand
from .formats import RowDecoder, Stripes, decoder_of, through
from .threads import over_rows, scratch

_ROWS_AT_ONCE = 64
_LIKE = {"bf16": np.empty(0, np.uint16), "fp16": np.empty(0, np.int16)}


@kernel_of(DEQUANTISE)
def bind_dequantise(i: DEQUANTISE, memory: ArrayMemory) -> Thunk:
    """dst = codes x scales; the scales are widened at every call, so that no copy of them stays."""
    dst = floats(i, memory, i.dst)[0]
    return decoding(i.packed, memory, dst)


def decoding(packed: PackedOperand, memory: ArrayMemory, dst: Operand) -> Thunk:
    """A thunk that fills all of `dst` [all rows, cols] with the values of a packed tensor, rounded to dst's dtype."""
    make = _decoder(packed, memory, dst.shape)
    like = _LIKE.get(packed.form.product.name)
    no_bias = np.empty(0, dst.rows.dtype)

    def thunk() -> None:
        decoder = make()

        def run(first: int, last: int) -> int:
            for start in range(first, last, _ROWS_AT_ONCE):
                tile = scratch("dequantised", min(_ROWS_AT_ONCE, last - start), dst.cols)
                decoder(tile, start)
                if like is not None:
                    through(tile, like)
                matmul.narrow(dst.rows[start : start + len(tile)], dst.start, tile, no_bias, 0)
            return -1

        over_rows(run, dst.count, dst.count * dst.cols)

    return thunk


def _decoder(packed: PackedOperand, memory: ArrayMemory, shape: tuple[int, ...]) -> Callable[[], RowDecoder]:
    """What makes the decoder of a packed tensor [..., rows, cols] from what its buffers hold at the time."""
    form, rows = packed.form, shape[-2]
    codes, scales = (operand(packed.owner, memory, ref) for ref in (packed.codes, packed.scales))
    codes_view, scales_view = codes.view.reshape(codes.shape), scales.view.reshape(scales.shape)
    by_row = np.arange(rows, dtype=np.int32)
    zeros = None if packed.zeros is None else operand(packed.owner, memory, packed.zeros)

    def make() -> RowDecoder:
        values = floats_of(scales_view, scales)
        of_row = packed.scale_rows(memory, rows)
        if packed.divisors is not None:
            with np.errstate(over="ignore", under="ignore"):
                values = values[..., of_row, :] / packed.divisor_rows(memory, rows)[..., None]
            of_row = by_row
        points = None
        if zeros is not None:
            points = zeros.view.reshape(zeros.shape)
            if form.packing == "words":
                points = unpack_zero_words(points, form.element.bits, scales.shape[-2])
        return decoder_of(form, codes_view, Stripes(values, points, of_row, packed.phase), shape[-1])

    return make


def floats_of(view: Array, held: Operand) -> Array:
    """float32 values of an operand whose storage may be any float's."""
    if held.dtype is FP32:
        return view
    stored = view.view(np.float16) if held.dtype is FP16 else view
    return decode(np.ascontiguousarray(stored), DTYPES[held.dtype.name])
