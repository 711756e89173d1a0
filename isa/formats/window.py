"""Windows: which stored codes and scales stand for a run of elements, so that a shard reads no more than its own."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ..errors import ConfigError
from .elements import Array
from .quantise import Packed, Scales
from .scheme import WHOLE, QuantScheme, Shape, matrix_of

_WORD_BITS = 32


@dataclass(frozen=True)
class Window:
    """Elements [start, stop) along one axis, and where their codes and scales stand in storage along that axis."""

    start: int
    stop: int
    codes: slice
    scales: slice


def covering(scheme: QuantScheme, shape: Shape, axis: int, start: int, stop: int) -> Window:
    """The smallest run of whole blocks and whole bytes or words that covers elements [start, stop) along `axis`.

    A side that one scale spans whole is cut anywhere: every shard keeps that scale. ConfigError for an axis or a run
    outside the tensor.
    """
    matrix_of(shape)
    if not 0 <= axis < len(shape):
        raise ConfigError(f"a tensor {list(shape)} has no axis {axis}")
    if not 0 <= start <= stop <= shape[axis]:
        raise ConfigError(f"[{start}, {stop}) is not within the {shape[axis]} elements of axis {axis}")
    block, per_unit = _block_side(scheme, shape, axis), _elements_a_unit(scheme, shape, axis)
    step = math.lcm(block or 1, per_unit)
    first, last = start // step * step, min(-(-stop // step) * step, shape[axis])
    codes = slice(first // per_unit, -(-last // per_unit)) if axis == len(shape) - 1 else slice(first, last)
    scales = slice(0, 1) if block == WHOLE else slice(first // block, -(-last // block))
    return Window(first, last, codes, scales)


def cut(packed: Packed, axis: int, start: int, stop: int) -> Packed:
    """Elements [start, stop) along `axis` as a quantised tensor of their own, sharing its arrays.

    ConfigError when a block or a packed word would be cut in two, naming the multiple that is allowed.
    """
    scheme, shape = packed.scheme, packed.shape
    window = covering(scheme, shape, axis, start, stop)
    if (window.start, window.stop) != (start, stop):
        step = math.lcm(_block_side(scheme, shape, axis) or 1, _elements_a_unit(scheme, shape, axis))
        raise ConfigError(
            f"[{start}, {stop}) of axis {axis} cuts a block of {scheme.name} {list(shape)}; cut at multiples of {step}"
        )
    part = (*shape[:axis], stop - start, *shape[axis + 1 :])
    scales_axis = axis + len(packed.scales.codes.shape) - len(shape)
    zero = packed.scales.zero_points
    scales = Scales(
        _along(packed.scales.codes, scales_axis, window.scales),
        packed.scales.global_scale,
        None if zero is None else _along(zero, scales_axis, window.scales),
    )
    return replace(packed, shape=part, codes=_along(packed.codes, axis, window.codes), scales=scales)


def _block_side(scheme: QuantScheme, shape: Shape, axis: int) -> int:
    """Elements of a block along the axis; 1 on leading axes, WHOLE where one scale spans it."""
    from_end = axis - len(shape)
    return scheme.block[from_end] if from_end >= -2 else 1


def _elements_a_unit(scheme: QuantScheme, shape: Shape, axis: int) -> int:
    """Elements that share a byte or word along the axis: of codes in the last, of packed zero points in the rows."""
    from_end = axis - len(shape)
    per_word = _WORD_BITS // scheme.element.bits
    if from_end == -1:
        return {"plain": 1, "nibbles": 2, "words": per_word}[scheme.packing]
    return per_word if from_end == -2 and scheme.packing == "words" and not scheme.symmetric else 1


def _along(array: Array, axis: int, part: slice) -> Array:
    return array[(slice(None),) * axis + (part,)]
