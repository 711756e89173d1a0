"""Binders of quantised tensors: rows decoded in scratch and rounded once into place."""

from __future__ import annotations

import numpy as np

from ...isa.formats.quantise import Packed, Scales
from ...isa.formats.scheme import SCHEMES
from ...isa.meaning import ArrayMemory
from ...isa.quantised import DEQUANTISE
from . import matmul
from .binding import Thunk, floats, kernel_of, operand
from .formats import row_decoder
from .threads import over_rows, scratch

_ROWS_AT_ONCE = 64


@kernel_of(DEQUANTISE)
def bind_dequantise(i: DEQUANTISE, memory: ArrayMemory) -> Thunk:
    """dst = codes x scales; the scales are widened at every call, so that no copy of them stays."""
    dst = floats(i, memory, i.dst)[0]
    codes, scales = operand(i, memory, i.codes), operand(i, memory, i.scales)
    stored = Scales(scales.view.reshape(scales.shape))
    packed = Packed(SCHEMES[i.scheme], dst.shape, codes.view.reshape(codes.shape), stored)
    no_bias = np.empty(0, dst.rows.dtype)

    def thunk() -> None:
        decoder = row_decoder(packed)

        def run(first: int, last: int) -> int:
            for start in range(first, last, _ROWS_AT_ONCE):
                tile = scratch("dequantised", min(_ROWS_AT_ONCE, last - start), dst.cols)
                decoder(tile, start)
                matmul.narrow(dst.rows[start : start + len(tile)], dst.start, tile, no_bias, 0)
            return -1

        over_rows(run, dst.count, dst.count * dst.cols)

    return thunk
