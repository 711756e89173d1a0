"""gpt-oss's mxfp4: experts' `_blocks` [experts, out, groups, 16] and `_scales` [experts, out, groups].

A byte holds elements 2i (low nibble) and 2i + 1 of the input axis, a scale (e8m0) covers its 32 inputs. The file is
[experts, out, in] while the model's parameter is its transpose [experts, in, out].
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...isa.errors import ConfigError
from ...isa.formats.quantise import Packed, Scales, dequantise
from ...isa.formats.scheme import SCHEMES, QuantScheme
from ..store import Array
from .stored import Stored, take

_GROUP = 32


def gpt_oss_pack(tensors: Mapping[str, Stored], scheme: QuantScheme = SCHEMES["mxfp4"]) -> Packed:
    """The quantised experts [experts, out, in] of `blocks` (uint8) and `scales` (uint8 or e8m0).

    ConfigError when their shapes are not those of one tensor.
    """
    blocks, _ = take(tensors, "blocks", "uint8")
    scales, _ = take(tensors, "scales", "uint8", "e8m0")
    if blocks.ndim != 4 or blocks.shape[-1] != _GROUP // 2 or blocks.shape[:-1] != scales.shape:
        raise ConfigError(
            f"blocks {list(blocks.shape)} and scales {list(scales.shape)} are not "
            f"[experts, out, groups, {_GROUP // 2}] and [experts, out, groups]"
        )
    experts, out, groups, half = blocks.shape
    codes = np.ascontiguousarray(blocks).reshape(experts, out, groups * half)
    return Packed(scheme, (experts, out, groups * _GROUP), codes, Scales(np.ascontiguousarray(scales)))


def gpt_oss_weight(packed: Packed) -> Array:
    """float32 [experts, in, out], the model's own parameter, of what `gpt_oss_pack` read."""
    return np.ascontiguousarray(dequantise(packed).swapaxes(-1, -2))
