"""Binders of products with packed weights, and of the instructions that quantise activations."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...isa.activations import (
    GROUPED_QUANTISE,
    GROUPED_QUANTISE_STATIC,
    QUANTISE,
    QUANTISE_STATIC,
    activation_scheme,
)
from ...isa.dtype import FP32, decode
from ...isa.experts import GROUPED_MATMUL
from ...isa.formats.quantise import scale_values, scales_from_amax
from ...isa.instruction import Array, TensorType, elements
from ...isa.meaning import ArrayMemory
from ...isa.operands import Ref
from ...isa.packed import PackedOperand
from ...isa.products import (
    PACKED_GROUPED_MATMUL,
    PACKED_MATMUL,
    QUANTISED_GROUPED_MATMUL,
    QUANTISED_MATMUL,
    blocks_of,
)
from ...isa.program import Block
from ...isa.tensor import MATMUL
from . import casts, matmul
from .binding import KERNELS, Operand, Thunk, floats, integers, kernel_of, operand
from .expert_binders import rows_of
from .quantised_binders import decoding, floats_of
from .tensor_binders import column_tiles
from .threads import over_rows, over_tiles, scratch

_VALUES = "decoded"  # the weights of one product at a time, shared by all: a card keeps no decoded copy
_shared: dict[np.dtype, Array] = {}
_EXACT = 1024  # so many products of int8 add up exactly in fp32


def _decoded(memory: ArrayMemory, packed: PackedOperand, like: Ref, cols: int) -> tuple[ArrayMemory, Thunk]:
    """A memory that also holds the packed weights in the dtype of `like`, and the thunk that fills them in."""
    kind = memory.type_of(like).dtype
    shape = packed.shape_of(memory, cols)
    held = _shared.get(kind.storage)
    if held is None or held.size < elements(shape):
        held = _shared[kind.storage] = np.empty(elements(shape), kind.storage)
    values = held[: elements(shape)].reshape(shape)
    block = memory.block
    params = (*block.params, *block.locals, (_VALUES, TensorType(kind, shape)))
    wider = ArrayMemory(
        Block(block.name, params, (), (), block.extents),
        memory.group_sizes,
        memory.binding,
        {**memory.arrays, _VALUES: values},
        memory.extents,
        memory.rules,
    )
    wider.written = memory.written
    dst = operand(packed.owner, wider, Ref(_VALUES))
    if memory.rules.is_usual or kind is FP32:
        return wider, decoding(packed, memory, dst)
    wide = np.empty((dst.count, dst.cols), np.float32)
    decode_rows = decoding(packed, memory, Operand(wide, 0, dst.cols, FP32, dst.shape))

    def fill() -> None:
        decode_rows()
        values[...] = memory.rules.stored(wide, kind).reshape(shape)

    return wider, fill


@kernel_of(PACKED_MATMUL, obeys=True)
def bind_packed_matmul(i: PACKED_MATMUL, memory: ArrayMemory) -> Thunk:
    """Decode, then multiply: the very kernels of dequantise and matmul, so that the bits are theirs."""
    wider, fill = _decoded(memory, i.packed, i.a, memory.shape(i.a)[-1])
    multiply = KERNELS[MATMUL.mnemonic](MATMUL(i.dst, i.a, Ref(_VALUES), i.bias), wider)

    def thunk() -> None:
        fill()
        multiply()

    return thunk


@kernel_of(PACKED_GROUPED_MATMUL, obeys=True)
def bind_packed_grouped_matmul(i: PACKED_GROUPED_MATMUL, memory: ArrayMemory) -> Thunk:
    """As for one matrix, all experts at once."""
    wider, fill = _decoded(memory, i.packed, i.a, memory.shape(i.a)[-1])
    grouped = GROUPED_MATMUL(i.dst, i.a, Ref(_VALUES), i.bias, i.counts, i.extent, i.at)
    multiply = KERNELS[GROUPED_MATMUL.mnemonic](grouped, wider)

    def thunk() -> None:
        fill()
        multiply()

    return thunk


class _Codes:
    """Codes and scales of a product's operands as float32, a tile at a time."""

    def __init__(self, i: QUANTISED_MATMUL | QUANTISED_GROUPED_MATMUL, memory: ArrayMemory) -> None:
        self.dst = floats(i, memory, i.dst)[0]
        self.a, self.a_scales = operand(i, memory, i.a), operand(i, memory, i.a_scales)
        self.w, scales = operand(i, memory, i.codes), operand(i, memory, i.scales)
        self.element, self.k = i.form.element, memory.shape(i.a)[-1]
        self.blocks = blocks_of(i.form, i.phase, self.k)
        self.bias = np.empty(0, np.float32) if i.bias is None else floats(i, memory, i.bias)[0].rows.reshape(-1)
        if i.bias is not None and i.bias.size is not None:
            self.bias = floats(i, memory, i.bias)[0].flat
        self.n = memory.shape(i.codes)[-2]
        stack = elements(memory.shape(i.codes)[:-2])
        held = floats_of(scales.view, scales).reshape(stack, -1, scales.cols)
        row_of = i.packed.scale_rows(memory, self.n)
        self.scales = np.ascontiguousarray(held[:, row_of, :].reshape(stack * self.n, -1), np.float32)

    def run(self, rows: slice, matrix: int) -> list[Thunk]:
        """The column tiles of the product of some rows with one matrix."""
        first_row, count = matrix * self.n, rows.stop - rows.start
        return [self._tile(rows, first_row, *tile) for tile in column_tiles(count, self.k, self.n)]

    def _tile(self, rows: slice, row0: int, first: int, last: int) -> Thunk:
        def tile() -> None:
            values = decode(np.ascontiguousarray(self.a.view[rows]), self.element).astype(np.float32)
            codes = np.ascontiguousarray(self.w.view[row0 + first : row0 + last])
            weights = decode(codes, self.element).astype(np.float32)
            scales = self.scales[row0 + first : row0 + last]
            own = floats_of(self.a_scales.view, self.a_scales)
            own = own if len(own) == 1 else own[rows]
            total = scratch("total", len(values), last - first)
            total[...] = 0
            for b, (start, stop) in enumerate(self.blocks):
                part = self._sums(values[:, start:stop], weights[:, start:stop])
                column = np.ascontiguousarray(own[:, min(b, own.shape[1] - 1)])
                casts.add_scaled(total, part, column, scales, b)
            bias = self.bias[row0 : row0 + self.n] if self.bias.size else self.bias
            matmul.narrow(self.dst.rows[rows], self.dst.start + first, total, bias, first)

        return tile

    def _sums(self, a: Array, w: Array) -> Array:
        """float32 [rows, columns] sums of products; those of int8 exact in int32, then rounded."""
        if self.element.name != "int8" or a.shape[1] <= _EXACT:
            return a @ w.T
        total = np.zeros((len(a), len(w)), np.int64)
        for start in range(0, a.shape[1], _EXACT):
            total += (a[:, start : start + _EXACT] @ w[:, start : start + _EXACT].T).astype(np.int64)
        return total.astype(np.float32)


@kernel_of(QUANTISED_MATMUL)
def bind_quantised_matmul(i: QUANTISED_MATMUL, memory: ArrayMemory) -> Thunk:
    """dst = scaled sums of products of codes."""
    codes = _Codes(i, memory)
    jobs = codes.run(slice(0, codes.a.count), 0)
    return lambda: over_tiles(lambda tile: jobs[tile](), len(jobs))


@kernel_of(QUANTISED_GROUPED_MATMUL)
def bind_quantised_grouped_matmul(i: QUANTISED_GROUPED_MATMUL, memory: ArrayMemory) -> Thunk:
    """dst = scaled sums of products of codes, for every expert's rows."""
    codes, counts, number = _Codes(i, memory), integers(i, memory, i.counts), memory.shape(i.codes)[0]

    def thunk() -> None:
        rows = rows_of(i, counts, memory.number(i.at), number, codes.a.count)
        jobs: list[Callable[[], None]] = []
        stops = np.cumsum(rows)
        for expert in np.flatnonzero(rows):
            stop = int(stops[expert])
            jobs += codes.run(slice(stop - int(rows[expert]), stop), int(expert))
        over_tiles(lambda tile: jobs[tile](), len(jobs))

    return thunk


_Quantising = QUANTISE | GROUPED_QUANTISE | QUANTISE_STATIC | GROUPED_QUANTISE_STATIC


class _Quantiser:
    """Rows of one operand becoming codes, by scales found or given."""

    def __init__(
        self,
        i: QUANTISE | GROUPED_QUANTISE | QUANTISE_STATIC | GROUPED_QUANTISE_STATIC,
        memory: ArrayMemory,
        phase: int,
    ) -> None:
        self.x, self.dst = floats(i, memory, i.x)[0], operand(i, memory, i.dst)
        self.block, self.phase = i.form.cols or self.x.cols, phase
        rules = memory.rules.cast(i.form.element)
        self.truncates, self.flushes = rules.rounding == "toward_zero", rules.subnormals == "flushed"
        self.form = casts.FLOATS.get(i.form.element.name)
        if self.form is not None and rules.saturation == "saturate":
            self.form = (*self.form[:3], self.form[2], self.form[4])

    def peaks(self, rows: int, blocks: int) -> Array:
        """float32 [rows, blocks]: the largest magnitudes."""
        found = np.empty((rows, blocks), np.float32)
        arguments = (found, self.x.rows, self.x.start, self.x.cols, self.block, self.phase)
        over_rows(lambda first, last: int(casts.row_peaks(*arguments, first, last)), rows, rows * self.x.cols)
        return found

    def write(self, rows: int, steps: Array) -> None:
        """Codes of the first `rows` rows."""
        places = (self.dst.rows, self.dst.start, self.x.rows, self.x.start, self.x.cols, steps, self.block, self.phase)

        def run(first: int, last: int) -> int:
            if self.form is None:
                return int(casts.int8_rows(*places, self.truncates, first, last))
            return int(casts.float_rows(*places, self.form, self.truncates, self.flushes, first, last))

        over_rows(run, rows, 4 * rows * self.x.cols)


def _dynamic(i: QUANTISE | GROUPED_QUANTISE, memory: ArrayMemory) -> Callable[[int], None]:
    """Quantises the first rows, their scales found."""
    quantiser, scales = _Quantiser(i, memory, i.phase), operand(i, memory, i.scales)
    scheme = activation_scheme(i.form, i.amax, i.rule)

    def run(rows: int) -> None:
        found = scales_from_amax(quantiser.peaks(rows, scales.cols), scheme)
        scales.view[:rows] = found.codes
        quantiser.write(rows, scale_values(scheme, found))

    return run


@kernel_of(QUANTISE)
def bind_quantise(i: QUANTISE, memory: ArrayMemory) -> Thunk:
    """Codes and scales of every row."""
    run, rows = _dynamic(i, memory), elements(memory.shape(i.x)[:-1])
    return lambda: run(rows)


@kernel_of(GROUPED_QUANTISE)
def bind_grouped_quantise(i: GROUPED_QUANTISE, memory: ArrayMemory) -> Thunk:
    """Codes and scales of the rows that the counts say."""
    run, counts, limit = _dynamic(i, memory), integers(i, memory, i.counts), memory.shape(i.x)[0]
    return lambda: run(int(rows_of(i, counts, memory.number(i.at), i.experts, limit).sum()))


@kernel_of(QUANTISE_STATIC)
def bind_quantise_static(i: QUANTISE_STATIC, memory: ArrayMemory) -> Thunk:
    """Codes of every row by a given scale."""
    quantiser, scales = _Quantiser(i, memory, 0), operand(i, memory, i.scales)
    rows = elements(memory.shape(i.x)[:-1])
    return lambda: quantiser.write(rows, scales.view)


@kernel_of(GROUPED_QUANTISE_STATIC)
def bind_grouped_quantise_static(i: GROUPED_QUANTISE_STATIC, memory: ArrayMemory) -> Thunk:
    """Codes of the rows that the counts say, by a given scale."""
    quantiser, scales = _Quantiser(i, memory, 0), operand(i, memory, i.scales)
    counts, limit = integers(i, memory, i.counts), memory.shape(i.x)[0]
    return lambda: quantiser.write(int(rows_of(i, counts, memory.number(i.at), i.experts, limit).sum()), scales.view)
