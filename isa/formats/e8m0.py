"""E8M0: powers of two as scales, by OCP's floor rule, by the ceiling rule of DeepGEMM, and by the plain cast.

A code c from 0 to 254 means 2**(c - 127); 255 is NaN; there is no zero and no sign (OCP Microscaling v1.0, 5.4.1).
"""

from __future__ import annotations

import numpy as np

from ..errors import ConfigError
from .elements import Array

NAN_CODE = 255
_LARGEST_CODE = 254
_BIAS = 127
_MANTISSA = 23
_HALF_STEP, _FRACTION = np.uint32(1 << 22), np.uint32(0x7FFFFF)
_SMALLEST = np.uint32(1 << 22)  # bits of 2**-127, a float32 subnormal

_VALUES = np.append(np.ldexp(np.float32(1), np.arange(NAN_CODE) - _BIAS), np.float32(np.nan))
_VALUES.setflags(write=False)


def decode_e8m0(codes: Array) -> Array:
    """float32 values of uint8 codes, exact (2**-127 is a float32 subnormal); 255 is NaN."""
    codes = np.asarray(codes)
    if codes.dtype != np.uint8:
        raise ConfigError(f"e8m0 scales are stored as uint8, not as {codes.dtype}")
    values: Array = _VALUES[codes]
    return values


def nearest_e8m0(values: Array) -> Array:
    """Cast of positive float32 values to the nearest power of two, halfway cases up (1.5 becomes 2).

    NaN for NaN, zero, negative values and those that round above 2**127; the smallest code for what lies below it.
    Between 2**-127 and 2**-126 every value goes up, as in ml_dtypes and torch, though some are nearer to 2**-127.
    This is a cast of values that are scales already: never the scale of a block, which `floor_scale` gives.
    """
    values = _float32(values)
    bits = values.view(np.uint32)
    rounded = (bits + _HALF_STEP) >> np.uint32(_MANTISSA)
    low = (bits > _SMALLEST).astype(np.uint32)
    codes = np.where(bits <= _FRACTION, low, np.minimum(rounded, NAN_CODE))
    return np.where(values > 0, codes, NAN_CODE).astype(np.uint8)


def floor_scale(amax: Array, max_exponent: int) -> Array:
    """Codes of OCP's scale 2**(floor(log2 amax) - max_exponent) of blocks of largest magnitude `amax` (float32).

    `max_exponent` is the exponent of the element format's largest number (2 for e2m1, 8 for e4m3, 15 for e5m2). A
    block of zeros takes the smallest scale, and one with a NaN or an infinity takes NaN.
    """
    amax = _float32(amax)
    floor = np.frexp(amax)[1] - 1
    return _clamped(floor - max_exponent, amax)


def ceil_scale(amax: Array, largest: float) -> Array:
    """The smallest power of two that brings `amax` (float32) within `largest`: 2**ceil(log2(amax / largest)), as codes.

    The rule of DeepGEMM and of DeepSeek's UE8M0 checkpoints: no element saturates. The quotient is rounded to
    float32 first, as theirs is. Zeros and NaN as in `floor_scale`.
    """
    amax = _float32(amax)
    quotient = amax / np.float32(largest)
    fraction, exponent = np.frexp(quotient)
    return _clamped(np.where(fraction == 0.5, exponent - 1, exponent), amax)


def _clamped(exponent: Array, amax: Array) -> Array:
    codes = np.clip(exponent.astype(np.int64) + _BIAS, 0, _LARGEST_CODE)
    codes = np.where(amax == 0, 0, codes)
    return np.where(np.isfinite(amax), codes, NAN_CODE).astype(np.uint8)


def _float32(values: Array) -> Array:
    values = np.asarray(values)
    if values.dtype != np.float32:
        raise ConfigError(f"e8m0 scales are made of float32, not of {values.dtype}; convert the values first")
    return values
