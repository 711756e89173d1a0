"""TensorStore: where a checkpoint's numbers come from, whichever file format (or none) holds them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np

from ..isa.dtype import DType

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]


class TensorStore(Protocol):
    """Named tensors, read a slice at a time."""

    def names(self) -> Iterable[str]:
        """Every tensor that is there, under its published name."""
        ...

    def shape(self, name: str) -> Shape:
        """[rows, columns] or [elements]."""
        ...

    def dtype(self, name: str) -> DType:
        """The element type in which `read` returns it."""
        ...

    def where(self, name: str) -> str:
        """The file that holds it, for errors."""
        ...

    def read(self, name: str, axis: int, start: int, stop: int) -> Array:
        """Elements [start, stop) along `axis` in storage form (bf16 as uint16), costing in proportion to the slice."""
        ...
