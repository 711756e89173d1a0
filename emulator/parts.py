"""Sizes of the parts of a big message, kept as one array."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, overload

import numpy as np

from .digest import digest_of

Ints = np.ndarray[Any, np.dtype[Any]]


class Parts(Sequence[int]):
    """Bytes of every part, from an int64 array that nobody writes to any more; of an all-to-all row after row.

    Equal where the sizes are, found by their digest; unlike a tuple of the same sizes.
    """

    def __init__(self, sizes: Ints) -> None:
        self.sizes = np.ascontiguousarray(sizes, np.int64).reshape(-1)

    @cached_property
    def _key(self) -> bytes:
        return digest_of(self.sizes)

    def __len__(self) -> int:
        return len(self.sizes)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[int, ...]: ...
    def __getitem__(self, index: int | slice) -> int | tuple[int, ...]:
        if isinstance(index, slice):
            return tuple(self.sizes[index].tolist())
        return int(self.sizes[index])

    def __iter__(self) -> Iterator[int]:
        return iter(self.sizes.tolist())

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Parts) and len(self) == len(other) and self._key == other._key)

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        return f"Parts({self.sizes.tolist()})"


def total_of(parts: Sequence[int]) -> int:
    """All bytes of a message."""
    return int(parts.sizes.sum()) if isinstance(parts, Parts) else sum(parts)


def sizes_of(parts: Sequence[int]) -> Ints:
    """The sizes as an array."""
    return parts.sizes if isinstance(parts, Parts) else np.array(parts, np.int64)
