"""PrefixedStore: the tensors of a text model in a checkpoint that holds other towers too, under its own names."""

from __future__ import annotations

from collections.abc import Iterable

from ..isa.dtype import DType
from .packs.packed_store import RawStore
from .store import Array, Shape

_BLOCKS, _LAYERS = "model.blocks.", "model.layers."  # transformers saves kimi_k25's layers by the first name
# How wrappers' files begin a text model's names, and how they begin without a wrapper.
_PREFIXES = (("language_model.", ""), ("model.language_model.", "model."))


class PrefixedStore:
    """A store whose names that begin with `prefix` begin with `own` instead; all others stay as they are."""

    def __init__(self, store: RawStore, prefix: str, own: str) -> None:
        self._store = store
        self._stored = {_own_name(name, prefix, own): name for name in store.names()}

    def names(self) -> Iterable[str]:
        """Every tensor in the files."""
        return self._stored.keys()

    def shape(self, name: str) -> Shape:
        """[rows, columns] or [elements]."""
        return self._store.shape(self._stored[name])

    def dtype(self, name: str) -> DType:
        """The element type of a weight."""
        return self._store.dtype(self._stored[name])

    def stored_dtype(self, name: str) -> DType:
        """The element type of any tensor."""
        return self._store.stored_dtype(self._stored[name])

    def where(self, name: str) -> str:
        """The file that holds it."""
        return self._store.where(self._stored[name])

    def read(self, name: str, axis: int, start: int, stop: int) -> Array:
        """The slice in storage form."""
        return self._store.read(self._stored[name], axis, start, stop)

    def read_stored(self, name: str, axis: int | None = None, part: slice = slice(None)) -> Array:
        """A tensor of any dtype, or a part of one of its axes, in storage form."""
        return self._store.read_stored(self._stored[name], axis, part)


def _own_name(name: str, prefix: str, own: str) -> str:
    if not name.startswith(prefix):
        return name
    bare = own + name.removeprefix(prefix)
    return _LAYERS + bare.removeprefix(_BLOCKS) if bare.startswith(_BLOCKS) else bare


def without_prefix(store: RawStore, embedding: str) -> RawStore:
    """The store under a text model's own names, of which `embedding` is one that every decoder has."""
    present = set(store.names())
    for prefix, own in _PREFIXES:
        if embedding not in present and prefix + embedding.removeprefix(own) in present:
            return PrefixedStore(store, prefix, own)
    return store
