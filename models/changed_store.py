"""ChangedStore: a checkpoint of which some tensors are other numbers, made from its own as they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import numpy as np

from ..isa.dtype import FP32, DType, decode
from ..isa.formats.quantise import Packed
from ..isa.formats.window import Window
from .checkpoint import Checkpoint
from .of_tensors import OfTensors
from .store import Array, HoldsPacked, PackedTensor, Shape, TensorStore

Change = Callable[[Array], Array]  # a whole tensor in float32 to what it is to be


class ChangedStore:
    """A store in which `changes` are applied to the tensors that they name."""

    def __init__(self, store: TensorStore, changes: Mapping[str, Change]) -> None:
        self._store, self._changes = store, changes

    def names(self) -> Iterable[str]:
        """Every tensor."""
        return self._store.names()

    def shape(self, name: str) -> Shape:
        """The shape of a tensor, which no change changes."""
        return self._store.shape(name)

    def dtype(self, name: str) -> DType:
        """float32 for what is changed."""
        return FP32 if name in self._changes else self._store.dtype(name)

    def where(self, name: str) -> str:
        """The file that holds what it was made of."""
        return self._store.where(name)

    def read(self, name: str, axis: int, start: int, stop: int) -> Array:
        """The slice, of the whole tensor changed."""
        if name not in self._changes:
            return self._store.read(name, axis, start, stop)
        stored = self._store.read(name, 0, 0, self._store.shape(name)[0])
        changed = self._changes[name](decode(np.ascontiguousarray(stored), self._store.dtype(name)))
        return np.ascontiguousarray(changed[(slice(None),) * axis + (slice(start, stop),)], np.float32)


class ChangedPackedStore(ChangedStore):
    """The same over a store that holds weights packed; those that are changed are no longer."""

    def __init__(self, store: TensorStore, packs: HoldsPacked, changes: Mapping[str, Change]) -> None:
        super().__init__(store, changes)
        self._packs = packs

    def packed(self) -> OfTensors[PackedTensor]:
        """How every packed weight is stored, by name."""
        return self._packs.packed().select(
            lambda name, kind: None if name in self._changes else kind, numbers=lambda pattern, count: range(count)
        )

    def read_packed(self, name: str, axis: int, start: int, stop: int) -> tuple[Packed, Window]:
        """Whole blocks that cover [start, stop) along an axis of a packed weight, and where they are."""
        return self._packs.read_packed(name, axis, start, stop)


def changed(checkpoint: Checkpoint, changes: Mapping[str, Change], what: str) -> Checkpoint:
    """The checkpoint with some tensors changed; `what` says in words how, for its source."""
    base = checkpoint.store
    store = ChangedPackedStore(base, base, changes) if isinstance(base, HoldsPacked) else ChangedStore(base, changes)
    return replace(checkpoint, store=store, source=f"{checkpoint.source}, {what}")
