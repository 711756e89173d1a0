"""Packed weights as a rank's device memory holds them: codes, scales and the rest, put together from pieces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..isa.dtype import FP32
from ..isa.formats.packing import pack_nibbles, pack_words, unpack_nibbles, unpack_words
from ..isa.formats.quantise import Packed, Scales, quantise
from ..isa.formats.scheme import WHOLE, QuantScheme
from ..isa.formats.window import Window, covering, cut
from ..isa.instruction import Array, elements
from ..models.checkpoint import Checkpoint
from .lowering.held import Held, PackedBuffer, Piece, Stripe, stripes
from .lowering.weights import WeightBuffer


def packed_arrays(checkpoint: Checkpoint, weight: WeightBuffer) -> dict[str, Array]:
    """The arrays of a packed weight's buffers, by part, in storage form."""
    assert weight.packed is not None
    packed, matrices = weight.packed, elements(weight.shape[:-2])
    each = len(weight.pieces) // max(matrices, 1)
    made = [
        _matrix(checkpoint, weight.pieces[at : at + each], weight.shape[-2], packed)
        for at in range(0, len(weight.pieces), max(each, 1))
    ]
    arrays = {
        part: np.stack([parts[part] for parts in made]).reshape([int(side) for side in kind.shape])
        for part, kind in packed.types.items()
        if part != "index"
    }
    if packed.index is not None:
        arrays["index"] = np.array(packed.index, np.int32)
    return arrays


def _matrix(checkpoint: Checkpoint, pieces: Sequence[Piece], rows: int, packed: PackedBuffer) -> dict[str, Array]:
    """The parts of one matrix: codes of its rows, and each row of scales once, in the order of the rows."""
    held, codes = packed.held, list[Array]()
    scales, zeros = dict[Stripe, Array](), dict[Stripe, Array]()
    divisors: dict[str, np.float32] = {}
    for piece in pieces:
        part, side = _part(checkpoint, piece, rows, held), held.scheme.block[0]
        codes.append(part.codes[np.array(piece.rows(rows), np.int64) - part.first])
        for stripe in stripes([piece], held.scheme, rows)[1]:
            at = stripe.block - (part.first // side if side else 0)
            scales.setdefault(stripe, part.scales.codes[at])
            if part.scales.zero_points is not None:
                zeros.setdefault(stripe, part.scales.zero_points[at])
        if part.scales.global_scale is not None:
            divisors.setdefault(piece.tensor, part.scales.global_scale)
    parts = {"codes": np.concatenate(codes), "scales": np.stack(list(scales.values()))}
    if zeros:
        points = np.stack(list(zeros.values()))
        is_words = packed.form.packing == "words"
        parts["zeros"] = np.ascontiguousarray(pack_words(points.T, held.scheme.element.bits).T) if is_words else points
    if divisors:
        parts["divisors"] = np.array(list(divisors.values()), np.float32)
    return parts


@dataclass(frozen=True)
class Rows:
    """Codes [rows, ...] from row `first` of a tensor on, and the scales of the blocks that they touch."""

    first: int
    codes: Array
    scales: Scales


def _part(checkpoint: Checkpoint, piece: Piece, rows: int, held: Held) -> Rows:
    """Rows of which the piece's are some, or its columns of all rows."""
    axis, start, stop = (piece.axis, piece.start, piece.stop) if piece.axis is not None else (0, 0, rows)
    if piece.tensor not in checkpoint.packed:
        found, window = _quantised(checkpoint, piece, held.scheme, axis, start, stop)
    elif piece.expert is None:
        found, window = checkpoint.read_packed(piece.tensor, axis, start, stop)
    else:
        stack, _ = checkpoint.read_packed(piece.tensor, 0, piece.expert, piece.expert + 1)
        found, window = _of_stack(stack), Window(0, 0, slice(0), slice(0))
    if axis == 0:
        return Rows(window.start, found.codes, found.scales)
    return _columns(found, start - window.start, stop - window.start)


def _of_stack(stack: Packed) -> Packed:
    """The only matrix of a stack."""
    scales = stack.scales
    zeros = None if scales.zero_points is None else scales.zero_points[0]
    return Packed(stack.scheme, stack.shape[1:], stack.codes[0], Scales(scales.codes[0], scales.global_scale, zeros))


def _quantised(
    checkpoint: Checkpoint, piece: Piece, scheme: QuantScheme, axis: int, start: int, stop: int
) -> tuple[Packed, Window]:
    """A plain tensor quantised: its scales are those of the uncut tensor, whatever the layout cuts of it."""
    if piece.expert is not None:
        whole = checkpoint.load(piece.tensor, FP32, piece.expert, piece.expert + 1)[0]
        whole = np.ascontiguousarray(whole.T) if piece.transposed else whole
        return quantise(whole, scheme), Window(0, 0, slice(0), slice(0))
    shape = checkpoint.shapes[piece.tensor]
    if axis == 0 and scheme.block[0] != WHOLE and not scheme.has_global_scale:
        window = covering(scheme, shape, 0, start, stop)
        return quantise(checkpoint.load(piece.tensor, FP32, window.start, window.stop), scheme), window
    return quantise(checkpoint.load(piece.tensor, FP32), scheme), Window(0, shape[axis], slice(0), slice(0))


def _columns(packed: Packed, start: int, stop: int) -> Rows:
    """Elements [start, stop) of every row and the scales of the blocks that they touch: a block may be cut."""
    window = covering(packed.scheme, packed.shape, 1, start, stop)
    part = cut(packed, 1, window.start, window.stop)
    codes = _recut(part.codes, part.scheme, start - window.start, stop - window.start, part.shape[1])
    return Rows(0, codes, part.scales)


def _recut(codes: Array, scheme: QuantScheme, start: int, stop: int, count: int) -> Array:
    """Codes [start, stop) of rows of `count`, packed anew where they do not begin a byte or a word."""
    if scheme.packing == "plain":
        return codes[:, start:stop]
    if scheme.packing == "nibbles":
        return codes if (start, stop) == (0, count) else pack_nibbles(unpack_nibbles(codes, count)[:, start:stop])
    bits = scheme.element.bits
    return codes if (start, stop) == (0, count) else pack_words(unpack_words(codes, bits, count)[:, start:stop], bits)
