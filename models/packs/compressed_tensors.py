"""compressed-tensors: the packings of its formats, whose own library is the oracle of the tests.

pack-quantized (K2's int4), int-quantized, float-quantized and naive-quantized (int8 and fp8 as they are),
mxfp4-pack-quantized (K3), mxfp8-quantized and nvfp4-pack-quantized. The library multiplies in the scale's dtype; here
the product is float32, and rounding it once to that dtype gives the library's bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ...isa.errors import ConfigError, UnsupportedError
from ...isa.formats.packing import unpack_words
from ...isa.formats.quantise import Packed, Scales
from ...isa.formats.scheme import QuantScheme, Shape
from ..store import Array
from .stored import Stored, laid_out, matrix, take

_FLOAT_SCALES = ("fp32", "fp16", "bf16")


def words_pack(tensors: Mapping[str, Stored], scheme: QuantScheme) -> Packed:
    """pack-quantized: `weight_packed` int32 [out, words], `weight_scale`, `weight_shape`, and where the scheme is
    asymmetric `weight_zero_point`, int32 [words of rows, groups] packed along the rows.

    ConfigError when they do not fit together; UnsupportedError for weights reordered by activation.
    """
    if "weight_g_idx" in tensors:
        raise UnsupportedError(
            "weight_g_idx: weights whose columns were regrouped by activation order are not supported"
        )
    words, _ = take(tensors, "weight_packed", "int32")
    shape = _shape(tensors, words)
    scales, scheme = _scales(tensors, scheme, shape, *_FLOAT_SCALES)
    zero = None
    if not scheme.symmetric:
        zero = _zero_points(tensors, scheme, shape)
    return Packed(scheme, shape, np.ascontiguousarray(words), Scales(scales, zero_points=zero))


def plain_pack(tensors: Mapping[str, Stored], scheme: QuantScheme) -> Packed:
    """float-, int- and naive-quantized, and mxfp8: `weight` (fp8 or int8 [out, in]), `weight_scale` and, where the
    scheme is asymmetric, `weight_zero_point` (int8, a scale's shape)."""
    codes, _ = take(tensors, "weight", scheme.element.name)
    codes = matrix(codes, "weight")
    allowed = ("uint8", "e8m0") if scheme.scale.name == "e8m0" else _FLOAT_SCALES
    scales, scheme = _scales(tensors, scheme, codes.shape, *allowed)
    zero = None
    if not scheme.symmetric:
        zero = laid_out(take(tensors, "weight_zero_point", "int8")[0], scheme, codes.shape, "weight_zero_point")
    return Packed(scheme, codes.shape, codes, Scales(scales, zero_points=zero))


def mxfp4_pack(tensors: Mapping[str, Stored], scheme: QuantScheme) -> Packed:
    """mxfp4-pack-quantized: `weight_packed` uint8 [out, in / 2], the even element low, and `weight_scale` uint8 e8m0
    [out, in / 32]."""
    codes, shape = _nibbles(tensors)
    scales, scheme = _scales(tensors, scheme, shape, "uint8", "e8m0")
    return Packed(scheme, shape, codes, Scales(scales))


def nvfp4_pack(tensors: Mapping[str, Stored], scheme: QuantScheme) -> Packed:
    """nvfp4-pack-quantized: `weight_packed` as mxfp4, `weight_scale` e4m3 [out, in / 16], and `weight_global_scale`
    fp32 [1], by which the scales are divided."""
    codes, shape = _nibbles(tensors)
    scales, scheme = _scales(tensors, scheme, shape, "fp8_e4m3")
    divisor, _ = take(tensors, "weight_global_scale", "fp32")
    if divisor.size != 1:
        raise ConfigError(f"weight_global_scale has shape {list(divisor.shape)}; it is one number")
    return Packed(scheme, shape, codes, Scales(scales, np.float32(divisor.reshape(()))))


def _nibbles(tensors: Mapping[str, Stored]) -> tuple[Array, Shape]:
    packed = matrix(take(tensors, "weight_packed", "uint8")[0], "weight_packed")
    return packed, (packed.shape[0], packed.shape[1] * 2)


def _shape(tensors: Mapping[str, Stored], words: Array) -> Shape:
    """`weight_shape` [out, in]: the words alone do not say how much of the last one counts."""
    stored, _ = take(tensors, "weight_shape", "int64", "int32")
    shape = tuple(int(side) for side in stored.reshape(-1))
    if len(shape) != 2 or words.ndim != 2 or shape[0] != words.shape[0] or min(shape) < 0:
        raise ConfigError(f"weight_shape is {list(shape)} and weight_packed has shape {list(words.shape)}")
    return shape


def _scales(
    tensors: Mapping[str, Stored], scheme: QuantScheme, shape: Shape, *dtypes: str
) -> tuple[Array, QuantScheme]:
    """`weight_scale` laid out by blocks, and the scheme with the dtype that the file gives float scales."""
    scales, dtype = take(tensors, "weight_scale", *dtypes)
    if dtype.name in _FLOAT_SCALES:
        scheme = replace(scheme, scale=dtype)
    return laid_out(scales, scheme, shape, "weight_scale"), scheme


def _zero_points(tensors: Mapping[str, Stored], scheme: QuantScheme, shape: Shape) -> Array:
    rows, groups = scheme.scales_shape(shape)
    stored, dtype = take(tensors, "weight_zero_point", "int32", "int8")
    if dtype.name == "int8":  # one for the tensor is not packed
        return laid_out(stored, scheme, shape, "weight_zero_point")
    if stored.ndim != 2 or stored.shape[1] != groups:
        raise ConfigError(f"weight_zero_point has shape {list(stored.shape)}; its columns are the {groups} groups")
    return np.ascontiguousarray(unpack_words(np.ascontiguousarray(stored.T), scheme.element.bits, rows).T)
