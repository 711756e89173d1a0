"""Held: which tensors lie packed in device memory, and the buffers that a weight made of them takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal

import numpy as np

from ...isa.dtype import DTYPES, FP32, INT32, DType
from ...isa.formats.form import Form, form_of
from ...isa.formats.scheme import QuantScheme
from ...isa.instruction import Array, TensorType, elements
from ...isa.program import Space
from ...models.of_tensors import OfTensors

Bucket = Literal["replicated", "sharded", "expert"]
PARTS = ("codes", "scales", "zeros", "divisors", "index")
_SPACES = {"codes": Space.WEIGHT, "index": Space.TABLE}


@dataclass(frozen=True)
class Piece:
    """Rows or columns [start, stop) of one checkpoint tensor; `axis` None takes the whole tensor.

    Of a tensor that holds all experts, it is those of entry `expert`, turned over first if it is `transposed` ([in,
    out]), and every `step`-th of them.
    """

    tensor: str
    axis: int | None = None
    start: int = 0
    stop: int = 0
    expert: int | None = None
    transposed: bool = False
    step: int = 1

    def rows(self, whole: int) -> range:
        """The rows that it takes of a tensor that has `whole` of them."""
        return range(self.start, self.stop, self.step) if self.axis == 0 else range(whole)


@dataclass(frozen=True)
class Held:
    """How a tensor lies packed: its scheme, and in what the product of code and scale is rounded."""

    scheme: QuantScheme
    product: DType = FP32


@dataclass(frozen=True)
class Holding:
    """Which tensors lie packed in device memory: those that the checkpoint holds packed (`stored`), or, with a
    `scheme`, all that multiply activations, quantised as they are loaded. `inputs` are the scales that the checkpoint
    gives for what tensors are multiplied by.
    """

    scheme: QuantScheme | None = None
    stored: OfTensors[Held] = field(default_factory=OfTensors, repr=False)
    inputs: OfTensors[float] = field(default_factory=OfTensors, repr=False)

    @property
    def is_packed(self) -> bool:
        """Whether any tensor is held packed."""
        return self.scheme is not None or bool(self.stored)

    def schemes(self) -> list[QuantScheme]:
        """The schemes that tensors are held in."""
        return [self.scheme] if self.scheme is not None else [held.scheme for held, _ in self.stored.weighed()]

    def holds_alike(self, names: Iterable[tuple[str, str]]) -> bool:
        """Whether tensors are held as others are, two by two."""
        return self.scheme is not None or all(self.stored.get(one) == self.stored.get(other) for one, other in names)

    def of(self, tensor: str, packs: bool) -> Held | None:
        """How a tensor is held; `packs` says that it is a matrix which a scheme of the job quantises."""
        if self.scheme is not None:
            return Held(self.scheme) if packs else None
        return self.stored.get(tensor)


@dataclass(frozen=True)
class PackedBuffer:
    """The device buffers of a packed weight [..., rows, cols] by part, and what the instruction that reads it is told.

    `phase` is how much of the first column block a cut took away; `index` the row of scales (or of divisors) that
    serves each row, where that follows no rule.
    """

    held: Held
    form: Form
    types: Mapping[str, TensorType]
    phase: int = 0
    index: tuple[int, ...] | None = None


def space_of(part: str) -> Space:
    """What a part is accounted as."""
    return _SPACES.get(part, Space.SCALE)


@dataclass(frozen=True)
class Stripe:
    """One row of scales: that of a block of rows of a tensor, or of one of its experts."""

    tensor: str
    expert: int | None
    block: int


def stripes(pieces: Sequence[Piece], scheme: QuantScheme, rows: int) -> tuple[Array, list[Stripe]]:
    """(row of scales of each row, rows of scales in order) of a matrix made of pieces, `rows` of a whole tensor."""
    side, places = scheme.block[0], dict[Stripe, int]()
    row_of = [np.zeros(0, np.int64)]
    for piece in pieces:
        own = np.array(piece.rows(rows), np.int64)
        blocks, inverse = np.unique(own // side if side else np.zeros_like(own), return_inverse=True)
        found = (Stripe(piece.tensor, piece.expert, int(block)) for block in blocks)
        row_of.append(np.array([places.setdefault(stripe, len(places)) for stripe in found], np.int64)[inverse])
    return np.concatenate(row_of), list(places)


def pieces_of_one(shape: tuple[int, ...], pieces: Sequence[Piece]) -> tuple[Piece, ...]:
    """Those of the first matrix of a weight [..., rows, cols] whose matrices are each made of as many."""
    matrices = elements(shape[:-2])
    return tuple(pieces[: len(pieces) // matrices]) if matrices else ()


def packed_buffer(shape: tuple[int, ...], pieces: Sequence[Piece], held: Held) -> PackedBuffer:
    """How a weight [..., rows, cols] lies, whose matrices are each made of as many pieces of tensors held alike."""
    numbers, own = dict[str, int](), pieces_of_one(shape, pieces)
    names = (str(numbers.setdefault(piece.tensor, len(numbers))) for piece in own)
    unnamed = (
        Piece(name, p.axis, p.start, p.stop, p.expert, p.transposed, p.step) for name, p in zip(names, own, strict=True)
    )
    return _packed_buffer(shape, tuple(unnamed), held)


@lru_cache(maxsize=1024)
def _packed_buffer(shape: tuple[int, ...], own: tuple[Piece, ...], held: Held) -> PackedBuffer:
    """What the layers and cards that cut a weight alike share: it depends on no tensor's name."""
    scheme = held.scheme
    form, index, scale_rows = form_of(scheme, held.product), None, shape[-2]
    if form.rows != 1:
        row_of, order = stripes(own, scheme, shape[-2])
        form, index, scale_rows = *_by_rule(form, row_of), len(order)
    divisors = 0
    if scheme.has_global_scale:
        tensors = list(dict.fromkeys(piece.tensor for piece in own))
        divisors = len(tensors)
        counts = [(tensors.index(piece.tensor), len(piece.rows(shape[-2]))) for piece in own]
        divisor_of = tuple(place for place, count in counts for _ in range(count))
        even = tuple(row * divisors // shape[-2] for row in range(shape[-2]))
        index = None if divisor_of == even else divisor_of
    cut = next((piece.start for piece in own if piece.axis == 1), 0)
    phase = cut % form.cols if form.cols else 0
    return PackedBuffer(held, form, _types(shape, held, form, phase, scale_rows, divisors, index), phase, index)


def _by_rule(form: Form, row_of: Array) -> tuple[Form, tuple[int, ...] | None]:
    """The form whose blocks of rows give each row its row of scales; where none does, that index."""
    first_run = int(np.argmax(row_of != 0)) if row_of.any() else 0
    places = np.arange(len(row_of))
    for side in dict.fromkeys((form.rows, first_run)):
        if np.array_equal(row_of, places // side if side else np.zeros_like(places)):
            return replace(form, rows=side), None
    return form, tuple(map(int, row_of))


def _types(
    shape: tuple[int, ...],
    held: Held,
    form: Form,
    phase: int,
    scale_rows: int,
    divisors: int,
    index: tuple[int, ...] | None,
) -> Mapping[str, TensorType]:
    lead, scheme, blocks = shape[:-2], held.scheme, form.column_blocks(shape[-1], phase)
    types = {
        "codes": TensorType(form.stored, form.codes_shape(shape)),
        "scales": TensorType(scheme.scale, (*lead, scale_rows, blocks)),
    }
    if not scheme.symmetric:
        words = form.packing == "words"
        rows = -(-scale_rows // form.per_unit) if words else scale_rows
        types["zeros"] = TensorType(INT32 if words else DTYPES["int8"], (*lead, rows, blocks))
    if divisors:
        types["divisors"] = TensorType(FP32, (*lead, divisors))
    if index is not None:
        types["index"] = TensorType(INT32, (len(index),))
    return types
