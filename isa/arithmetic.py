"""Arithmetic: how a card rounds what its instructions write, and in what its matrix products add up.

The rules are the card's number rules. They hold for what an instruction writes; what it rounds on the way (a normed row
before its weight) goes to nearest even. Attention, and what links add, sum in fp32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from .dtype import DTYPES, FP32, DType, decode, encode
from .errors import NotYetError
from .formats.elements import FLOAT_FORMATS, CastRules, decode_float, encode_float

Array = np.ndarray[Any, np.dtype[Any]]
Saturation = Literal["saturate", "infinity", "saturate_fp8"]
ACCUMULATORS = ("fp32", "fp16", "bf16")


@dataclass(frozen=True)
class Arithmetic:
    """What matrix products add up in, and how results become their type.

    `saturation` "saturate" makes the largest number of what lies beyond it, "infinity" infinity (or NaN where a type
    has none), "saturate_fp8" the largest in types of 8 bits and fewer and infinity in wider ones. With an `accumulator`
    narrower than fp32, products are added one after the other along k, each sum rounded to it. NotYetError for
    accumulators of other types.
    """

    accumulator: DType = FP32
    rounding: Literal["nearest_even", "toward_zero"] = "nearest_even"
    saturation: Saturation = "infinity"
    subnormals: Literal["kept", "flushed"] = "kept"

    def __post_init__(self) -> None:
        if self.accumulator.name not in ACCUMULATORS:
            known = ", ".join(ACCUMULATORS)
            raise NotYetError(f"matrix products that add up in {self.accumulator} are not computed yet; known: {known}")

    def cast(self, dtype: DType) -> CastRules:
        """How a cast to a type ends."""
        saturates = self.saturation == "saturate" or (self.saturation == "saturate_fp8" and dtype.bits <= 8)
        return CastRules(self.rounding, "saturate" if saturates else "infinity", self.subnormals)

    @property
    def is_usual(self) -> bool:
        """Whether 16-bit floats round to nearest, go to infinity, and keep what is subnormal: IEEE 754's own rules."""
        return self.cast(DTYPES["fp16"]) == CastRules(saturation="infinity")

    def stored(self, values: Array, dtype: DType) -> Array:
        """Values in storage form, rounded by the rules."""
        if not dtype.is_float or (self.is_usual and dtype.bits > 8) or dtype.name == "e8m0":
            return encode(values, dtype)
        if dtype is FP32:
            return flushed(np.asarray(values, np.float32)) if self.subnormals == "flushed" else encode(values, dtype)
        codes = encode_float(np.asarray(values, np.float32), FLOAT_FORMATS[dtype.name], self.cast(dtype))
        return codes.view(dtype.storage)

    def held(self, values: Array, dtype: DType) -> Array:
        """float32 values as a type holds them."""
        return values if dtype is FP32 else decode(self.stored(values, dtype), dtype)

    def product(self, a: Array, w: Array) -> Array:
        """float32 a [m, k] @ w [n, k]^T, added up in the accumulator."""
        if self.accumulator is FP32:
            result: Array = a @ w.T
            return result
        total = np.zeros((*a.shape[:-1], len(w)), np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            for step in range(a.shape[-1]):
                total = self.rounded(total + a[..., step, None] * w[:, step], self.accumulator)
        return total

    def rounded(self, values: Array, dtype: DType) -> Array:
        """float32 values as a narrower float holds them."""
        fmt = FLOAT_FORMATS[dtype.name]
        return decode_float(encode_float(np.asarray(values, np.float32), fmt, self.cast(dtype)), fmt)


IEEE = Arithmetic()


def flushed(values: Array) -> Array:
    """float32 values, zero of their sign in the place of subnormals."""
    small = np.abs(values) < np.float32(2.0**-126)
    result: Array = np.where(small, np.copysign(np.float32(0), values), values)
    return result
