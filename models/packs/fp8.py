"""DeepSeek's fp8: e4m3 weights with `weight_scale_inv` by blocks of 128 x 128, the last block of an axis partial.

V3, V3.2, K2, GLM and MiniMax store fp32 scales; V3.1 and V4 store powers of two, as fp32 or as e8m0 bytes. Despite its
name the scale multiplies: weight = code x weight_scale_inv.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ...isa.formats.quantise import Packed, Scales
from ...isa.formats.scheme import QuantScheme
from .stored import Stored, laid_out, matrix, take


def fp8_pack(tensors: Mapping[str, Stored], scheme: QuantScheme) -> Packed:
    """The quantised weight of `weight` (fp8 [out, in]) and `weight_scale_inv` ([row blocks, column blocks]).

    `scheme` gives the blocks; the scales' own dtype is the file's. ConfigError when the shapes do not fit.
    """
    codes, element = take(tensors, "weight", scheme.element.name)
    scales, dtype = take(tensors, "weight_scale_inv", "fp32", "bf16", "e8m0")
    codes = matrix(codes, "weight")
    rule = ("ceil" if scheme.scale_rule == "nearest" else scheme.scale_rule) if dtype.name == "e8m0" else "nearest"
    scheme = replace(scheme, element=element, scale=dtype, scale_rule=rule)
    return Packed(scheme, codes.shape, codes, Scales(laid_out(scales, scheme, codes.shape, "weight_scale_inv")))
