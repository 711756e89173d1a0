"""TensorStore: where a checkpoint's numbers come from, whichever file format (or none) holds them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ..isa.dtype import DType
from ..isa.formats.quantise import Packed
from ..isa.formats.scheme import QuantScheme
from ..isa.formats.window import Window
from .of_tensors import OfTensors

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


@dataclass(frozen=True)
class PackedTensor:
    """How a weight is stored packed: its scheme, and in what its product of code and scale is rounded.

    `input_scale` is the one scale of its inputs as codes, where the file holds such.
    """

    scheme: QuantScheme
    product: DType
    input_scale: float | None = None


@runtime_checkable
class HoldsPacked(Protocol):
    """A store that also gives the codes and scales of its packed weights."""

    def packed(self) -> OfTensors[PackedTensor]:
        """How every packed weight is stored, by name."""
        ...

    def read_packed(self, name: str, axis: int, start: int, stop: int) -> tuple[Packed, Window]:
        """Whole blocks that cover [start, stop) along an axis of a packed weight [..., out, in], and where they are."""
        ...
