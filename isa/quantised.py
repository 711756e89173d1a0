"""Instructions on quantised tensors: codes and scales of a packed weight become the floats that products multiply."""

from __future__ import annotations

from typing import Literal, cast, get_args

import numpy as np

from .dtype import DTYPES
from .errors import ProgramError
from .formats.blocks import spread
from .formats.elements import INTEGER_RANGES, decode_float, float_format
from .formats.packing import signed_nibbles, unpack_nibbles
from .formats.scheme import SCHEMES, QuantScheme
from .instruction import (
    Instruction,
    Memory,
    Shapes,
    Sizes,
    TensorType,
    bytes_of,
    require,
    require_apart,
    require_floats,
    rows_cols,
)
from .operands import In, Out
from .work import Unit, VectorShape, Work

WeightScheme = Literal["int8_channel", "int8_g128", "int4_g32", "int4_g128", "fp8_e4m3_channel", "mxfp8_e4m3", "mxfp4"]


def held_scheme(name: str) -> WeightScheme:
    """The name of a scheme that weights in device memory may have; ProgramError for any other."""
    if name not in get_args(WeightScheme):
        raise ProgramError(f"weights in device memory are not {name}; known: {', '.join(get_args(WeightScheme))}")
    return cast(WeightScheme, name)


class DEQUANTISE(Instruction, opcode=0x61, unit=Unit.VECTOR):
    """dst = codes x scales, each product in fp32 and rounded once: for cards that cannot multiply packed weights.

    dst is [..., out, in]. `scheme` names element, block and scale: 8-bit elements lie one a byte, codes [..., out, in];
    4-bit ones two a byte, the first in the low half, codes uint8 [..., out, in / 2]. scales are [..., out, blocks of
    in], the last of which may be partial.
    """

    dst: Out
    codes: In
    scales: In
    scheme: WeightScheme

    def check(self, t: Shapes) -> None:
        dst = t.type_of(self.dst)
        require_floats(self, t, self.dst)
        require_apart(self, self.dst, self.codes, self.scales)
        shape = tuple(side for side in dst.shape if isinstance(side, int))
        require(len(shape) == len(dst.shape) > 1, self, f"dst is {dst}, must be [..., out, in], all numbers")
        for ref, wanted in zip((self.codes, self.scales), packed_types(SCHEMES[self.scheme], shape), strict=True):
            require(t.type_of(ref) == wanted, self, f"{ref} is {t.type_of(ref)}, must be {wanted} for {self.scheme}")

    def work(self, s: Sizes) -> Work:
        rows, cols = rows_cols(s.shape(self.dst))
        return Work(
            Unit.VECTOR,
            ops=2 * rows * cols,  # convert, multiply
            read_bytes=bytes_of(s, self.codes, self.scales),
            write_bytes=bytes_of(s, self.dst),
            dtype=s.type_of(self.dst).dtype,
            shape=VectorShape(rows, cols),
        )

    def execute(self, m: Memory) -> None:
        scheme, shape = SCHEMES[self.scheme], m.shape(self.dst)
        values = m.get(self.codes)
        if scheme.packing == "nibbles":
            nibbles = unpack_nibbles(values, shape[-1])
            is_integer = scheme.element.name in INTEGER_RANGES
            values = signed_nibbles(nibbles) if is_integer else decode_float(nibbles, float_format(scheme.element))
        m.put(self.dst, values.astype(np.float32) * spread(m.get(self.scales), scheme, shape))


def packed_types(scheme: QuantScheme, shape: tuple[int, ...]) -> tuple[TensorType, TensorType]:
    """The buffers that hold a tensor of this shape quantised: codes, and scales.

    ProgramError for schemes that two buffers do not hold.
    """
    if scheme.has_global_scale or not scheme.symmetric or scheme.packing == "words":
        raise ProgramError(f"{scheme.name}: weights in device memory are codes and block scales alone")
    element = DTYPES["uint8"] if scheme.packing == "nibbles" else scheme.element
    return TensorType(element, scheme.codes_shape(shape)), TensorType(scheme.scale, scheme.scales_shape(shape))
