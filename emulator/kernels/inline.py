"""What every kernel inlines: the decorator, storage elements to float32 and back, and vectorising exp, sigmoid and erf.

A kernel sees float32 as float32, bf16 as uint16 and fp16 as int16 (`binding.Operand` makes those views), so that one
generic source serves every storage and the argument types alone choose the conversion. Numba releases nothing of
float16 on CPUs; the machine's own conversion instructions do, through LLVM.
"""

# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import njit, types
from numba.extending import intrinsic

_I16, _I32, _F32, _HALF = ir.IntType(16), ir.IntType(32), ir.FloatType(), ir.HalfType()

# Sums may be reordered into SIMD lanes; every other operation keeps its IEEE meaning.
REORDER = {"reassoc", "contract", "nsz"}


def kernel(function: Callable[..., Any] | None = None, *, fastmath: set[str] | bool = False) -> Any:
    """Compile on first use with the types at hand, without the GIL, kept on disk across runs.

    Numba keeps a compiled kernel as long as its own file stands unchanged; kernels inline this file too, so its stamp
    is added to theirs.
    """

    def decorate(wrapped: Callable[..., Any]) -> Any:
        dispatcher = njit(cache=True, nogil=True, error_model="numpy", fastmath=fastmath)(wrapped)
        index: Any = getattr(getattr(dispatcher, "_cache", None), "_cache_file", None)
        if hasattr(index, "_source_stamp"):
            index._source_stamp = (index._source_stamp, _stamp())
        return dispatcher

    return decorate if function is None else decorate(function)


def _stamp() -> tuple[float, int]:
    stat = Path(__file__).stat()
    return stat.st_mtime, stat.st_size


def _emitted(function: Callable[..., Any]) -> Any:
    """A function whose LLVM code we write, for the types that it accepts."""
    return intrinsic(function)


@_emitted
def value_of(context: Any, stored: Any) -> Any:
    """float32 value of a stored element: exact for fp32, bf16 (uint16) and fp16 (int16)."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _decode(builder, stored, arguments[0])

    if stored in (types.float32, types.uint16, types.int16):
        return types.float32(stored), generate
    return None


@_emitted
def rounded(context: Any, like: Any, value: Any) -> Any:
    """A float32 rounded to the element type of the array `like`: to nearest, ties to even, NaN kept."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _encode(builder, like.dtype, arguments[1])

    if value == types.float32 and like.dtype in (types.float32, types.uint16, types.int16):
        return like.dtype(like, value), generate
    return None


@_emitted
def converted(context: Any, like: Any, stored: Any) -> Any:
    """A stored element as the element type of the array `like`: its own bits where the types are one."""
    if like.dtype == stored:
        return stored(like, stored), lambda context, builder, signature, arguments: arguments[1]
    if not {like.dtype, stored} <= {types.float32, types.uint16, types.int16}:
        return None

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _encode(builder, like.dtype, _decode(builder, stored, arguments[1]))

    return like.dtype(like, stored), generate


def _decode(builder: Any, stored: Any, element: Any) -> Any:
    if stored == types.uint16:
        return builder.bitcast(builder.shl(builder.zext(element, _I32), _I32(16)), _F32)
    if stored == types.int16:
        return builder.fpext(builder.bitcast(element, _HALF), _F32)
    return element


def _encode(builder: Any, target: Any, number: Any) -> Any:
    if target == types.uint16:
        return _round_bf16(builder, number)
    if target == types.int16:
        return builder.bitcast(builder.fptrunc(number, _HALF), _I16)
    return number


def _round_bf16(builder: Any, number: Any) -> Any:
    bits = builder.bitcast(number, _I32)
    odd = builder.and_(builder.lshr(bits, _I32(16)), _I32(1))
    nearest = builder.lshr(builder.add(builder.add(bits, _I32(0x7FFF)), odd), _I32(16))
    quiet = builder.or_(builder.and_(builder.lshr(bits, _I32(16)), _I32(0x8000)), _I32(0x7FC0))
    is_nan = builder.fcmp_unordered("uno", number, number)
    return builder.trunc(builder.select(is_nan, quiet, nearest), _I16)


@_emitted
def _times_power_of_two(context: Any, value: Any, exponent: Any) -> Any:
    """value * 2**exponent by adding to the exponent bits; the caller sees that the result is a normal number."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        shift = builder.shl(builder.fptosi(arguments[1], _I32), _I32(23))
        return builder.bitcast(builder.add(builder.bitcast(arguments[0], _I32), shift), _F32)

    return types.float32(types.float32, types.float32), generate


@_emitted
def _ordered(context: Any, value: Any) -> Any:
    """A float32 as an int32 that sorts as the float does."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        bits = builder.bitcast(arguments[0], _I32)
        return builder.xor(bits, builder.and_(builder.ashr(bits, _I32(31)), _I32(0x7FFFFFFF)))

    return types.int32(types.float32), generate


@_emitted
def _from_ordered(context: Any, key: Any) -> Any:
    """The float32 that `_ordered` made the int32 of."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        (bits,) = arguments
        return builder.bitcast(builder.xor(bits, builder.and_(builder.ashr(bits, _I32(31)), _I32(0x7FFFFFFF))), _F32)

    return types.float32(types.int32), generate


@njit(nogil=True)
def largest(run):
    """The largest float32 of a non-empty run; as integers, because LLVM vectorises no maximum of floats."""
    best = _ordered(run[0])
    for i in range(run.size):
        key = _ordered(run[i])
        best = key if key > best else best
    return _from_ordered(best)


_LOG2_E, _LN2_HIGH, _LN2_LOW = np.float32(1.44269504), np.float32(0.693359375), np.float32(-2.12194440e-4)
_E0, _E1, _E2 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3), np.float32(8.3334519073e-3)
_E3, _E4, _E5 = np.float32(4.1665795894e-2), np.float32(1.6666665459e-1), np.float32(5.0000001201e-1)
_LOWEST, _HIGHEST = np.float32(-87.33), np.float32(88.72283)
_ZERO, _ONE, _HALF_ONE, _INFINITY = np.float32(0), np.float32(1), np.float32(0.5), np.float32(np.inf)


@njit(nogil=True, error_model="numpy")
def exp(x):
    """e**x in float32 within 2 ulp, branch-free so that loops over it vectorise; results below 2**-126 are 0.

    Range reduction and polynomial of Cephes' expf (Moshier 1989).
    """
    inside = min(max(x, _LOWEST), _HIGHEST)
    power = np.floor(inside * _LOG2_E + _HALF_ONE)
    r = inside - power * _LN2_HIGH - power * _LN2_LOW
    series = ((((_E0 * r + _E1) * r + _E2) * r + _E3) * r + _E4) * r + _E5
    result = _times_power_of_two(series * (r * r) + r + _ONE, power)
    result = _ZERO if x < _LOWEST else result
    result = _INFINITY if x > _HIGHEST else result
    return x if x != x else result


@njit(nogil=True, error_model="numpy")
def erf(x):
    """Error function in float32 within 6 ulp: the rational approximation of Eigen and XLA on [-3.83, 3.83]."""
    limit = np.float32(3.832506856900711)
    y = min(max(x, -limit), limit)
    z = y * y
    top = np.float32(0.00022905065861350646)
    top = top * z + np.float32(0.0034082910107109506)
    top = top * z + np.float32(0.050955695062380861)
    top = top * z + np.float32(0.18520832239976145)
    top = top * z + np.float32(1.128379143519084)
    low = np.float32(-1.1791602954361697e-7)
    low = low * z + np.float32(0.000023547966471313185)
    low = low * z + np.float32(0.0010179625278914885)
    low = low * z + np.float32(0.014070470171167667)
    low = low * z + np.float32(0.11098505178285362)
    low = low * z + np.float32(0.49746925110067538)
    low = low * z + _ONE
    return x if x != x else y * top / low
