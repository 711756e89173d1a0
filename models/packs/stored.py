"""Stored tensors: what a checkpoint holds beside a packed weight, checked before anything is decoded."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...isa.dtype import DType
from ...isa.errors import ConfigError
from ...isa.formats.scheme import QuantScheme, Shape
from ..store import Array

Stored = tuple[Array, DType]  # in storage form, as a TensorStore reads it


def take(tensors: Mapping[str, Stored], name: str, *dtypes: str) -> Stored:
    """The tensor of this local name, of one of these dtypes; ConfigError when it is missing or of another."""
    if name not in tensors:
        raise ConfigError(f"{name} is missing beside {', '.join(sorted(tensors)) or 'nothing'}")
    array, dtype = tensors[name]
    if dtype.name not in dtypes:
        raise ConfigError(f"{name} is {dtype}; this packing stores {' or '.join(dtypes)}")
    return array, dtype


def laid_out(scales: Array, scheme: QuantScheme, shape: Shape, name: str) -> Array:
    """Scales (or zero points) as [..., row blocks, column blocks], from that or from fewer axes of the same length.

    Checkpoints write a scale per tensor as [] or [1] and scales per channel as [out] or [out, 1].
    """
    expected = scheme.scales_shape(shape)
    if scales.shape == expected:
        return scales
    squeezed = tuple(side for side in expected if side != 1)
    if tuple(side for side in scales.shape if side != 1) != squeezed or scales.ndim > len(expected):
        raise ConfigError(
            f"{name} has shape {list(scales.shape)}; a weight {list(shape)} in blocks of "
            f"{list(scheme.block_of(shape))} has {list(expected)}"
        )
    return scales.reshape(expected)


def matrix(array: Array, name: str) -> Array:
    """The array, which must have two axes; ConfigError otherwise."""
    if array.ndim != 2:
        raise ConfigError(f"{name} has shape {list(array.shape)}; a packed weight has rows and columns")
    return np.ascontiguousarray(array)
