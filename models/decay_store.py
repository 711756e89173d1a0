"""DecayStore: decay rates of linear attention, in whatever shape and with whatever padding a file has them."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from ..isa.dtype import DType
from .blocks import DeltaNet, Graph
from .store import Array, Shape, TensorStore


class DecayStore:
    """A store whose tensors of `shapes` have those: the file's elements in order, cut short or followed by zeros."""

    def __init__(self, store: TensorStore, shapes: dict[str, Shape]) -> None:
        self._store, self._shapes = store, shapes

    def names(self) -> Iterable[str]:
        """Every tensor that is there."""
        return self._store.names()

    def shape(self, name: str) -> Shape:
        """The graph's shape of a decay rate, the file's of any other tensor."""
        return self._shapes.get(name) or self._store.shape(name)

    def dtype(self, name: str) -> DType:
        """The element type in which `read` returns it."""
        return self._store.dtype(name)

    def where(self, name: str) -> str:
        """The file that holds it."""
        return self._store.where(name)

    def read(self, name: str, axis: int, start: int, stop: int) -> Array:
        """The slice in storage form."""
        shape = self._shapes.get(name)
        if shape is None:
            return self._store.read(name, axis, start, stop)
        held = self._store.read(name, 0, 0, self._store.shape(name)[0]).reshape(-1)
        whole = np.zeros(math.prod(shape), held.dtype)
        count = min(whole.size, held.size)
        whole[:count] = held[:count]
        return np.ascontiguousarray(whole.reshape(shape)[(slice(None),) * axis + (slice(start, stop),)])


def with_decays(store: TensorStore, graph: Graph) -> TensorStore:
    """The store; a vector of decay rates that has one for every head, in another shape than the graph's, takes that."""
    present, shapes = set(store.names()), dict[str, Shape]()
    for layer in graph.layers:
        if not isinstance(layer.attention, DeltaNet):
            continue
        name, heads = layer.attention.a_log.tensor, layer.attention.heads
        wanted = dict(layer.attention.tensors)[name]
        if name in present and store.shape(name) != wanted and _holds(store.shape(name), heads):
            shapes[name] = wanted
    return DecayStore(store, shapes) if shapes else store


def _holds(shape: Shape, heads: int) -> bool:
    """Whether a shape is that of one run of numbers, at least as many as there are heads."""
    return bool(shape) and math.prod(shape) == max(shape) >= heads
