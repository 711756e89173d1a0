"""QuantisedStore: plain weights that appear packed as a quantization plan says, for configs without files."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from ...isa.dtype import FP32, DType, decode, encode
from ...isa.formats.quantise import Packed, dequantise, quantise
from ...isa.formats.scheme import WHOLE, QuantScheme
from ...isa.formats.window import Window, covering, cut
from ..of_tensors import OfTensors
from ..store import Array, PackedTensor, Shape, TensorStore
from .packed_store import WeightUse, decoded_dtype, is_turned
from .plan import QuantPlan


class _Quantised(NamedTuple):
    """How a weight is packed, and whether it lies [out, in] where the model has [in, out]."""

    tensor: PackedTensor
    turned: bool


class QuantisedStore:
    """A store in which the weights that `plan` quantises are rounded to their scheme, and can be read packed.

    A slice is that of the whole weight quantised, whatever is asked for.
    """

    def __init__(self, store: TensorStore, plan: QuantPlan, uses: OfTensors[WeightUse]) -> None:
        self._store = store

        def quantised(name: str, use: WeightUse) -> _Quantised | None:
            group = plan.group_of(name.removesuffix(".weight"), use.kind)
            if group is None:
                return None
            dtype = decoded_dtype(group, group.weights.scale, use)
            return _Quantised(PackedTensor(group.weights, dtype), is_turned(group))

        self._quantised = uses.select(quantised, plan.telling)

    def names(self) -> Iterable[str]:
        """Every tensor."""
        return self._store.names()

    def shape(self, name: str) -> Shape:
        """The shape of a tensor."""
        return self._store.shape(name)

    def dtype(self, name: str) -> DType:
        """The element type in which `read` returns it."""
        found = self._quantised.get(name)
        return self._store.dtype(name) if found is None else found.tensor.product

    def where(self, name: str) -> str:
        """What stands in for a file."""
        return self._store.where(name)

    def packed(self) -> OfTensors[PackedTensor]:
        """How every quantised weight is stored, by name."""
        return self._quantised.select(lambda name, found: found.tensor)

    def read(self, name: str, axis: int, start: int, stop: int) -> Array:
        """The slice in storage form, rounded to its scheme where it has one."""
        found = self._quantised.get(name)
        if found is None:
            return self._store.read(name, axis, start, stop)
        turned = found.turned
        own = 3 - axis if turned and axis else axis
        packed, window = self.read_packed(name, own, start, stop)
        values = dequantise(packed)[(slice(None),) * own + (slice(start - window.start, stop - window.start),)]
        values = values.swapaxes(-1, -2) if turned else values
        dtype = found.tensor.product
        return np.ascontiguousarray(values) if dtype is FP32 else encode(values, dtype)

    def read_packed(self, name: str, axis: int, start: int, stop: int) -> tuple[Packed, Window]:
        """Whole blocks that cover [start, stop) along an axis of a quantised weight, and where they are."""
        scheme, turned = self._quantised[name].tensor.scheme, self._quantised[name].turned
        whole = self._store.shape(name)
        shape = (*whole[:-2], whole[-1], whole[-2]) if turned else whole
        window = covering(scheme, shape, axis, start, stop)
        reach = (0, shape[axis]) if _looks_around(scheme, axis - len(shape)) else (window.start, window.stop)
        stored = self._store.read(name, 3 - axis if turned and axis else axis, *reach)
        values = decode(np.ascontiguousarray(stored), self._store.dtype(name))
        packed = quantise(np.ascontiguousarray(values.swapaxes(-1, -2) if turned else values), scheme)
        return cut(packed, axis, window.start - reach[0], window.stop - reach[0]), window


def _looks_around(scheme: QuantScheme, from_end: int) -> bool:
    """Whether the scales of some elements depend on others that lie further along the axis than their blocks."""
    return scheme.has_global_scale or (from_end >= -2 and scheme.block[from_end] == WHOLE)
