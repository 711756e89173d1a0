"""Quantise and dequantise: float32 tensors to codes and scales in their stored form, and back; the meaning of both.

A block that holds a NaN or an infinity gets a NaN scale and decodes to NaN throughout: no format hides a fault. Only
scales that are given (calibrated) can: then a NaN becomes the format's NaN, or 0 as an integer.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ..errors import ConfigError
from .blocks import block_reduce, spread
from .e8m0 import ceil_scale, decode_e8m0, floor_scale
from .elements import (
    FLOAT_FORMATS,
    INTEGER_RANGES,
    SATURATE,
    Array,
    CastRules,
    decode_float,
    encode_float,
    round_integer,
)
from .packing import pack_nibbles, pack_words, signed_nibbles, unpack_nibbles, unpack_words
from .scheme import QuantScheme, Shape

_SCALE_MAX = 448.0  # largest e4m3: where nvfp4's global scale puts the largest block scale


@dataclass(frozen=True, eq=False)
class Scales:
    """The scales of a tensor as stored: `codes` [..., row blocks, column blocks] in the scheme's scale dtype (fp32 and
    fp16 as themselves, bf16 as uint16, e4m3 and e8m0 as uint8); `global_scale` divides them all; `zero_points` (int8,
    one a block) are what zero is coded as."""

    codes: Array
    global_scale: np.float32 | None = None
    zero_points: Array | None = None


@dataclass(frozen=True, eq=False)
class Packed:
    """A quantised tensor as it lies in memory: codes in the scheme's packing, scales, and the shape it stands for.

    ConfigError when codes or scales do not have the shape and storage that the scheme gives them.
    """

    scheme: QuantScheme
    shape: Shape
    codes: Array = field(repr=False)
    scales: Scales = field(repr=False)

    def __post_init__(self) -> None:
        scheme = self.scheme
        stored = {"plain": scheme.element.storage, "nibbles": np.dtype(np.uint8), "words": np.dtype(np.int32)}
        expected = [
            ("codes", self.codes, scheme.codes_shape(self.shape), stored[scheme.packing]),
            ("scales", self.scales.codes, scheme.scales_shape(self.shape), scheme.scale.storage),
        ]
        if self.scales.zero_points is not None:
            zero = ("zero points", self.scales.zero_points, scheme.scales_shape(self.shape), np.dtype(np.int8))
            expected.append(zero)
        for what, array, shape, dtype in expected:
            if array.shape != shape or array.dtype != dtype:
                raise ConfigError(
                    f"{what} of {scheme.name} {list(self.shape)} are {dtype} {list(shape)}, "
                    f"not {array.dtype} {list(array.shape)}"
                )
        if scheme.has_global_scale != (self.scales.global_scale is not None):
            raise ConfigError(f"{scheme.name} has {'one' if scheme.has_global_scale else 'no'} global scale")
        if scheme.symmetric != (self.scales.zero_points is None):
            raise ConfigError(f"{scheme.name} has {'no' if scheme.symmetric else 'its'} zero points")

    @property
    def nbytes(self) -> int:
        """Bytes in memory, scales and zero points included."""
        return self.scheme.bytes_of(self.shape)


def quantise(values: Array, scheme: QuantScheme, rules: CastRules = SATURATE, scales: Scales | None = None) -> Packed:
    """float32 `values` [..., rows, cols] in `scheme`; each is divided by its block's stored scale and rounded once.

    `scales` may be given (calibrated, or another tensor's); else they follow from the blocks' largest magnitudes.
    `rules` are the card's, for the elements; scales are rounded to nearest and saturate. Raises ConfigError for values
    that are not float32, and for a NaN with given scales in e2m1, which has none.
    """
    values = np.asarray(values)
    if values.dtype != np.float32:
        raise ConfigError(f"{scheme.name} quantises float32, not {values.dtype}; convert the values first")
    scales = scales or scales_of(values, scheme)
    step = spread(scale_values(scheme, scales), scheme, values.shape)
    with np.errstate(over="ignore", invalid="ignore", under="ignore", divide="ignore"):
        scaled = values / np.where(step == 0, np.float32(np.inf), step)  # a zero scale means a zero block
        scaled = np.where(np.isnan(step), np.float32(0), scaled)
    if scales.zero_points is not None:
        scaled = scaled + spread(scales.zero_points, scheme, values.shape).astype(np.float32)
    return Packed(scheme, values.shape, _pack(_encode(scaled, scheme, rules), scheme), scales)


def dequantise(packed: Packed) -> Array:
    """float32 [..., rows, cols]: (code - zero point) x scale, one float32 rounding for the product."""
    scheme, scales = packed.scheme, packed.scales
    values = element_values(packed)
    if scales.zero_points is not None:
        values = values - spread(scales.zero_points, scheme, packed.shape).astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        product: Array = values * spread(scale_values(scheme, scales), scheme, packed.shape)
    return product


def scales_of(values: Array, scheme: QuantScheme) -> Scales:
    """The scales that the blocks of float32 `values` ask for."""
    if not scheme.symmetric:
        low, high = block_reduce(values, scheme, np.minimum), block_reduce(values, scheme, np.maximum)
        return _asymmetric(low, high, scheme)
    return scales_from_amax(block_reduce(np.abs(values), scheme, np.maximum), scheme)


def scales_from_amax(amax: Array, scheme: QuantScheme) -> Scales:
    """Scales of a symmetric scheme for blocks of largest magnitude `amax`: float32 [..., row blocks, column blocks]."""
    if not scheme.symmetric:
        raise ConfigError(f"{scheme.name} is asymmetric: its scales need the blocks' smallest and largest values")
    if scheme.scale_rule == "floor":
        return Scales(floor_scale(amax, FLOAT_FORMATS[scheme.element.name].max_exponent))
    if scheme.scale_rule == "ceil":
        return Scales(ceil_scale(amax, scheme.amax_code))
    wanted = amax / np.float32(scheme.amax_code)
    if not scheme.has_global_scale:
        return Scales(_encode_scale(wanted, scheme))
    largest = np.max(amax, initial=0, where=np.isfinite(amax))
    with np.errstate(over="ignore"):
        quotient = np.float32(scheme.amax_code * _SCALE_MAX) / largest if largest > 0 else np.float32(1)
    global_scale = np.minimum(quotient, np.finfo(np.float32).max).astype(np.float32)
    with np.errstate(over="ignore"):
        return Scales(_encode_scale(global_scale * wanted, scheme), global_scale)


def scale_values(scheme: QuantScheme, scales: Scales) -> Array:
    """float32 value of every block's scale, the global scale divided out."""
    if scheme.scale.name == "e8m0":
        values = decode_e8m0(scales.codes)
    elif scheme.scale.name in FLOAT_FORMATS:
        fmt = FLOAT_FORMATS[scheme.scale.name]
        values = decode_float(scales.codes.view(fmt.code_dtype), fmt)
    else:
        values = scales.codes
    if scales.global_scale is not None:
        with np.errstate(over="ignore", under="ignore"):
            values = values / scales.global_scale
    return values


def element_values(packed: Packed) -> Array:
    """float32 value of every element's code before scaling, in the tensor's shape."""
    scheme, count = packed.scheme, packed.shape[-1]
    codes = packed.codes
    if scheme.packing == "words":
        codes = unpack_words(codes, scheme.element.bits, count)
    elif scheme.packing == "nibbles":
        codes = unpack_nibbles(codes, count)
        codes = signed_nibbles(codes) if scheme.element.name in INTEGER_RANGES else codes
    if scheme.element.name in INTEGER_RANGES:
        return codes.astype(np.float32)
    fmt = FLOAT_FORMATS[scheme.element.name]
    return decode_float(codes.view(fmt.code_dtype), fmt)


def _encode(scaled: Array, scheme: QuantScheme, rules: CastRules) -> Array:
    name = scheme.element.name
    if name in INTEGER_RANGES:
        return round_integer(scaled, *INTEGER_RANGES[name], rules)
    return encode_float(scaled, FLOAT_FORMATS[name], rules).view(scheme.element.storage)


def _pack(codes: Array, scheme: QuantScheme) -> Array:
    if scheme.packing == "nibbles":
        return pack_nibbles(codes)
    return pack_words(codes, scheme.element.bits) if scheme.packing == "words" else codes


def _encode_scale(wanted: Array, scheme: QuantScheme) -> Array:
    """Scales in storage form: to nearest, the largest finite for what is beyond it, NaN for what is not finite."""
    wanted = np.where(np.isfinite(wanted), wanted, np.float32(np.nan)).astype(np.float32)
    if scheme.scale.name == "fp32":
        return wanted
    return encode_float(wanted, FLOAT_FORMATS[scheme.scale.name]).view(scheme.scale.storage)


def _asymmetric(low: Array, high: Array, scheme: QuantScheme) -> Scales:
    """Scale and zero point that map [low, high], which holds 0, onto the integers' whole range."""
    least, most = INTEGER_RANGES[scheme.element.name]
    codes = _encode_scale((high - low) / np.float32(most - least), scheme)
    step = scale_values(scheme, Scales(codes))
    with np.errstate(divide="ignore", invalid="ignore"):
        zero = least - low / np.where(step == 0, np.float32(np.inf), step)
    return Scales(codes, zero_points=round_integer(zero, least, most))
