"""Elements: small floats and integers as codes, worked out from their bit fields, with the card's rules at the ends."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np

from ..dtype import DType
from ..errors import ConfigError

Array = np.ndarray[Any, Any]

_F32_MANTISSA, _F32_BIAS = 23, 127
_F32_MAGNITUDE = np.uint32(0x7FFFFFFF)
_F32_INFINITY = np.uint32(0x7F800000)


@dataclass(frozen=True)
class CastRules:
    """How a cast ends: the three of a card's number rules that touch it, by the same names and values.

    `saturation` "saturate" sends what lies beyond the largest finite value, infinity included, to that value;
    "infinity" sends it to infinity, or to NaN where the format has no infinity, or to the largest value where it has
    neither (OCP 8-bit Floating Point v1.0, 4.1; OCP Microscaling v1.0, 5.3.3). A finite value rounded toward zero
    never passes the largest. `subnormals` "flushed" turns subnormal results into zero of their sign.
    """

    rounding: Literal["nearest_even", "toward_zero"] = "nearest_even"
    saturation: Literal["saturate", "infinity"] = "saturate"
    subnormals: Literal["kept", "flushed"] = "kept"

    def __post_init__(self) -> None:
        allowed = {
            "rounding": ("nearest_even", "toward_zero"),
            "saturation": ("saturate", "infinity"),
            "subnormals": ("kept", "flushed"),
        }
        for name, values in allowed.items():
            if getattr(self, name) not in values:
                raise ConfigError(f"{name}={getattr(self, name)!r} is not a cast rule; choose {' or '.join(values)}")


SATURATE = CastRules()
IEEE = CastRules(saturation="infinity")


@dataclass(frozen=True)
class FloatFormat:
    """A binary float of sign, exponent and mantissa; `largest`, `infinity` and `nan` are codes without the sign."""

    name: str
    exponent_bits: int
    mantissa_bits: int
    bias: int
    largest: int
    infinity: int | None
    nan: int | None

    @property
    def bits(self) -> int:
        """Bits of one code, the sign included."""
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def code_dtype(self) -> np.dtype[Any]:
        """The unsigned NumPy type that holds one code."""
        return np.dtype(np.uint8 if self.bits <= 8 else np.uint16)

    @property
    def max(self) -> float:
        """The largest finite value."""
        return float(_values_of(self)[self.largest])

    @property
    def max_exponent(self) -> int:
        """floor(log2(max)): the e_max of OCP Microscaling's scale rule."""
        return (self.largest >> self.mantissa_bits) - self.bias


FLOAT_FORMATS: dict[str, FloatFormat] = {
    "fp16": FloatFormat("fp16", 5, 10, 15, 0x7BFF, 0x7C00, 0x7E00),
    "bf16": FloatFormat("bf16", 8, 7, 127, 0x7F7F, 0x7F80, 0x7FC0),
    "fp8_e4m3": FloatFormat("fp8_e4m3", 4, 3, 7, 0x7E, None, 0x7F),
    "fp8_e5m2": FloatFormat("fp8_e5m2", 5, 2, 15, 0x7B, 0x7C, 0x7E),
    "mxfp4": FloatFormat("mxfp4", 2, 1, 1, 0x7, None, None),
}
INTEGER_RANGES: dict[str, tuple[int, int]] = {"int8": (-128, 127), "int4": (-8, 7)}


def float_format(dtype: DType) -> FloatFormat:
    """The bit fields of a small float; ConfigError for a dtype that is none."""
    if dtype.name not in FLOAT_FORMATS:
        raise ConfigError(f"{dtype.name} is not a small float; known: {', '.join(FLOAT_FORMATS)}")
    return FLOAT_FORMATS[dtype.name]


def decode_float(codes: Array, fmt: FloatFormat) -> Array:
    """float32 values of codes (unsigned integers, any shape), all exact; ConfigError for a code out of range."""
    codes = np.asarray(codes)
    if codes.dtype.kind not in "iu" or (codes.size and (codes.min() < 0 or codes.max() >= 1 << fmt.bits)):
        raise ConfigError(f"codes of {fmt.name} are integers from 0 to {(1 << fmt.bits) - 1}, not these {codes.dtype}")
    values: Array = _values_of(fmt)[codes]
    return values


def encode_float(values: Array, fmt: FloatFormat, rules: CastRules = SATURATE) -> Array:
    """Codes of float32 values (any shape), rounded once by the card's rules; a NaN keeps its sign and no payload.

    ConfigError for a NaN where the format has none (e2m1), and for values that are not float32: a wider float would
    be rounded twice.
    """
    bits = _float32(values).view(np.uint32)
    magnitude = bits & _F32_MAGNITUDE
    finite = magnitude < _F32_INFINITY
    code = _rounded_code(np.where(finite, magnitude, np.uint32(0)), fmt, rules)
    beyond = np.int32(_beyond(fmt, rules))
    code = np.where(code > fmt.largest, np.int32(fmt.largest) if rules.rounding == "toward_zero" else beyond, code)
    if rules.subnormals == "flushed":
        code = np.where(code < 1 << fmt.mantissa_bits, np.int32(0), code)
    if not finite.all():
        code = np.where(magnitude == _F32_INFINITY, beyond, code)
        code = _with_nan(code, magnitude > _F32_INFINITY, fmt)
    sign = (bits >> np.uint32(31)) << np.uint32(fmt.bits - 1)
    signed: Array = (code | sign.view(np.int32)).astype(fmt.code_dtype)
    return signed


def _with_nan(code: Array, is_nan: Array, fmt: FloatFormat) -> Array:
    if not is_nan.any():
        return code
    if fmt.nan is None:
        raise ConfigError(f"{fmt.name} has no NaN, and {int(is_nan.sum())} of {is_nan.size} values are NaN")
    return np.where(is_nan, np.int32(fmt.nan), code)


def round_integer(values: Array, low: int, high: int, rules: CastRules = SATURATE) -> Array:
    """int8 codes of float32 values, rounded by the rules and clamped to [low, high]; a NaN becomes 0.

    Integers have no infinity, so both saturation policies clamp.
    """
    rounded = np.trunc(values) if rules.rounding == "toward_zero" else np.rint(values)
    codes: Array = np.clip(np.nan_to_num(rounded, nan=0.0, posinf=high, neginf=low), low, high)
    return codes.astype(np.int8)


def _float32(values: Array) -> Array:
    values = np.asarray(values)
    if values.dtype != np.float32:
        raise ConfigError(f"small floats are encoded from float32, not from {values.dtype}; convert the values first")
    return values


def _rounded_code(magnitude: Array, fmt: FloatFormat, rules: CastRules) -> Array:
    """int32 codes without sign of finite float32 magnitudes (their bits), as if the exponent had no upper end."""
    smallest = np.uint32((1 - fmt.bias + _F32_BIAS) << _F32_MANTISSA)  # the smallest normal number of the format
    binade = np.maximum(magnitude & _F32_INFINITY, smallest)
    # Exact: a quotient by a power of two loses bits only where it rounds to nothing anyway.
    steps = magnitude.view(np.float32) / binade.view(np.float32) * np.float32(1 << fmt.mantissa_bits)
    steps = np.floor(steps) if rules.rounding == "toward_zero" else np.rint(steps)
    below = (binade - smallest) >> np.uint32(_F32_MANTISSA - fmt.mantissa_bits)
    # A mantissa that rounds up to 2.0 carries into the exponent field by itself.
    code: Array = below.view(np.int32) + steps.astype(np.int32)
    return code


def _beyond(fmt: FloatFormat, rules: CastRules) -> int:
    if rules.saturation == "saturate":
        return fmt.largest
    codes = (fmt.infinity, fmt.nan, fmt.largest)
    return next(code for code in codes if code is not None)


@cache
def _values_of(fmt: FloatFormat) -> Array:
    """float32 value of every code."""
    codes = np.arange(1 << fmt.bits, dtype=np.int64)
    magnitude = codes & ((1 << (fmt.bits - 1)) - 1)
    field, fraction = magnitude >> fmt.mantissa_bits, magnitude & ((1 << fmt.mantissa_bits) - 1)
    significand = fraction + np.where(field > 0, 1 << fmt.mantissa_bits, 0)
    values = np.ldexp(significand.astype(np.float64), np.maximum(field, 1) - fmt.bias - fmt.mantissa_bits)
    if fmt.infinity is not None:
        values = np.where(magnitude == fmt.infinity, np.inf, values)
    not_numbers = magnitude > fmt.largest if fmt.infinity is None else magnitude > fmt.infinity
    values = np.where(not_numbers, np.nan, values)
    table = np.where(codes >> (fmt.bits - 1) == 1, -values, values).astype(np.float32)
    table.setflags(write=False)
    return table
