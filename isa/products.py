"""Products with packed weights: decoded on their way into the array, or multiplied as codes with codes.

Activations that are codes have fp32 scales, one a block of a row as the weight's form cuts it, or one for all. Codes of
int8 are summed exactly in int32; codes of fp8 in fp32. A block's sum is multiplied by the weight's scale, then by the
activation's, and added to the blocks before it in fp32; the total is rounded once to dst.
"""

from __future__ import annotations

import numpy as np

from .counts import total_of
from .dtype import DTYPES, FP32
from .experts import check_counts, local_counts, memory_counts
from .formats.form import Form
from .instruction import (
    Array,
    Instruction,
    Memory,
    Shapes,
    Sizes,
    TensorType,
    bytes_of,
    require,
    require_apart,
    require_floats,
    rows_cols,
)
from .operands import ExtentName, In, Number, OptionalIn, Out, Ref
from .packed import PackedOperand
from .work import GroupedShape, MatmulShape, Unit, Work

CODES = ("int8", "fp8_e4m3", "fp8_e5m2")
MOST_INT8_COLUMNS = 1 << 17  # beyond it a sum of products of int8 may pass 32 bits


def _check_shapes(
    i: Instruction, t: Shapes, dst: Ref, a: Ref, bias: Ref | None, lead: tuple[int, ...]
) -> tuple[int, ...]:
    """The weight's shape [*lead, n, k], all numbers, from dst [..., n] and a [..., k]."""
    out, rows = t.type_of(dst), t.type_of(a)
    n, k = out.shape[-1], rows.shape[-1]
    require(out.shape[:-1] == rows.shape[:-1], i, f"dst is {out} and a is {rows}: their rows differ")
    require(isinstance(n, int) and isinstance(k, int), i, f"dst is {out} and a is {rows}: columns must be numbers")
    require_floats(i, t, dst, bias)
    require_apart(i, dst, a, bias)
    if bias is not None:
        held = t.type_of(bias)
        require(held.shape == (*lead, n), i, f"bias is {held}, must be {[*lead, n]}")
    return (*lead, int(n), int(k))


def _check_codes(i: Instruction, t: Shapes, a: Ref, a_scales: Ref, packed: PackedOperand, k: int) -> None:
    """Activations and weights are codes of one type, in blocks of a row that agree."""
    form, codes, scales = packed.form, t.type_of(a), t.type_of(a_scales)
    plain = form.packing == "plain" and packed.zeros is None and packed.divisors is None
    require(plain and form.element.name in CODES, i, f"weights in {form} are not multiplied as codes")
    require(codes.dtype == form.element, i, f"a is {codes} and the weights are {form.element}")
    require(form.element.name != "int8" or k <= MOST_INT8_COLUMNS, i, f"{k} products of int8 may pass int32")
    blocks = form.column_blocks(k, packed.phase)
    each = (*codes.shape[:-1], blocks)
    wanted = (TensorType(FP32, each), TensorType(FP32, (1, 1)), TensorType(DTYPES["e8m0"], each))
    require(scales in wanted, i, f"a_scales is {scales}, must be {wanted[0]} or {wanted[1]}, or powers of two")


def blocks_of(form: Form, phase: int, k: int) -> list[tuple[int, int]]:
    """[start, stop) of the columns of every block of a row."""
    if not form.cols:
        return [(0, k)]
    edges = [max(b * form.cols - phase, 0) for b in range(form.column_blocks(k, phase))]
    return list(zip(edges, [*edges[1:], k], strict=True))


def product_of_codes(a: Array, a_scales: Array, w: Array, w_scales: Array, blocks: list[tuple[int, int]]) -> Array:
    """float32 [m, n] of codes a [m, k] and w [n, k] as float32 and their scales, [m or 1, blocks or 1], [n, blocks]."""
    total = np.zeros((len(a), len(w)), np.float32)
    for b, (start, stop) in enumerate(blocks):
        exact = a[:, start:stop].astype(np.float64) @ w[:, start:stop].T.astype(np.float64)
        own = a_scales[:, min(b, a_scales.shape[1] - 1)][:, None]
        total += own * (w_scales[:, b] * exact.astype(np.float32))
    return total


class PACKED_MATMUL(Instruction, opcode=0xC0, unit=Unit.TENSOR):
    """`matmul` with packed weights, decoded as `dequantise` does into a's dtype on their way into the array."""

    dst: Out
    a: In
    codes: In
    scales: In
    form: Form
    bias: OptionalIn = None
    zeros: OptionalIn = None
    divisors: OptionalIn = None
    index: OptionalIn = None
    phase: int = 0

    @property
    def packed(self) -> PackedOperand:
        """The weights, [n, k]."""
        return PackedOperand(
            self, self.codes, self.scales, self.zeros, self.divisors, self.index, self.form, self.phase
        )

    def check(self, t: Shapes) -> None:
        require_floats(self, t, self.a)
        self.packed.check(t, _check_shapes(self, t, self.dst, self.a, self.bias, ()))

    def work(self, s: Sizes) -> Work:
        m, k = rows_cols(s.shape(self.a))
        n = s.shape(self.dst)[-1]
        return Work(
            Unit.TENSOR,
            ops=2 * m * n * k + (m * n if self.bias is not None else 0),
            read_bytes=bytes_of(s, self.a, self.bias) + self.packed.num_bytes(s),
            write_bytes=bytes_of(s, self.dst),
            dtype=s.type_of(self.a).dtype,
            shape=MatmulShape(m, n, k),
        )

    def execute(self, m: Memory) -> None:
        a = m.get(self.a)
        w = m.rules.held(self.packed.values(m, (m.shape(self.dst)[-1], a.shape[-1])), m.type_of(self.a).dtype)
        product = m.rules.product(a, w)
        m.put(self.dst, product if self.bias is None else product + m.get(self.bias))


class PACKED_GROUPED_MATMUL(Instruction, opcode=0xC1, unit=Unit.TENSOR):
    """`grouped_matmul` with packed weights [experts, n, k], decoded on their way into the array."""

    dst: Out
    a: In
    codes: In
    scales: In
    form: Form
    counts: In
    extent: ExtentName
    at: Number
    bias: OptionalIn = None
    zeros: OptionalIn = None
    divisors: OptionalIn = None
    index: OptionalIn = None
    phase: int = 0

    @property
    def packed(self) -> PackedOperand:
        """The weights, [experts, n, k]."""
        return PackedOperand(
            self, self.codes, self.scales, self.zeros, self.divisors, self.index, self.form, self.phase
        )

    def check(self, t: Shapes) -> None:
        require_floats(self, t, self.a)
        self.packed.check(t, _check_shapes(self, t, self.dst, self.a, self.bias, experts_of(self, t, self.codes)))
        check_counts(self, t, self.counts, self.at)

    def work(self, s: Sizes) -> Work:
        return _grouped_work(self, s, self.packed, s.type_of(self.a).dtype.bytes_of(s.shape(self.a)[1]), None)

    def execute(self, m: Memory) -> None:
        a, dst, shape = m.get(self.a), m.get(self.dst).copy(), self.packed.shape_of(m, m.shape(self.a)[1])
        w = m.rules.held(self.packed.values(m, shape), m.type_of(self.a).dtype)
        for expert, rows in _expert_rows(self, m, len(w)):
            product = m.rules.product(a[rows], w[expert])
            dst[rows] = product if self.bias is None else product + m.get(self.bias)[expert]
        m.put(self.dst, dst)


class QUANTISED_MATMUL(Instruction, opcode=0xC2, unit=Unit.TENSOR):
    """dst = (a x a_scales) @ (codes x scales)^T (+ bias), the codes multiplied at the card's rate for them."""

    dst: Out
    a: In
    a_scales: In
    codes: In
    scales: In
    form: Form
    bias: OptionalIn = None
    index: OptionalIn = None
    phase: int = 0

    @property
    def packed(self) -> PackedOperand:
        """The weights, [n, k]."""
        return PackedOperand(self, self.codes, self.scales, None, None, self.index, self.form, self.phase)

    def check(self, t: Shapes) -> None:
        shape = _check_shapes(self, t, self.dst, self.a, self.bias, ())
        self.packed.check(t, shape)
        _check_codes(self, t, self.a, self.a_scales, self.packed, shape[-1])

    def work(self, s: Sizes) -> Work:
        m, k = rows_cols(s.shape(self.a))
        n = s.shape(self.dst)[-1]
        scaled = 2 * m * n * len(blocks_of(self.form, self.phase, k))
        return Work(
            Unit.TENSOR,
            ops=2 * m * n * k + scaled + (m * n if self.bias is not None else 0),
            read_bytes=bytes_of(s, self.a, self.a_scales, self.bias) + self.packed.num_bytes(s),
            write_bytes=bytes_of(s, self.dst),
            dtype=self.form.element,
            shape=MatmulShape(m, n, k),
        )

    def execute(self, m: Memory) -> None:
        a, scales = m.get(self.a).astype(np.float32), m.get(self.a_scales)
        rows, k = rows_cols(a.shape)
        w, w_scales = self.packed.codes_and_scales(m, (m.shape(self.dst)[-1], k))
        blocks = blocks_of(self.form, self.phase, k)
        total = product_of_codes(a.reshape(rows, k), scales.reshape(-1, scales.shape[-1]), w, w_scales, blocks)
        total = total.reshape(m.shape(self.dst))
        m.put(self.dst, total if self.bias is None else total + m.get(self.bias))


class QUANTISED_GROUPED_MATMUL(Instruction, opcode=0xC3, unit=Unit.TENSOR):
    """`quantised_matmul` for each expert's rows, with weights [experts, n, k]; rows beyond are left as they are."""

    dst: Out
    a: In
    a_scales: In
    codes: In
    scales: In
    form: Form
    counts: In
    extent: ExtentName
    at: Number
    bias: OptionalIn = None
    index: OptionalIn = None
    phase: int = 0

    @property
    def packed(self) -> PackedOperand:
        """The weights, [experts, n, k]."""
        return PackedOperand(self, self.codes, self.scales, None, None, self.index, self.form, self.phase)

    def check(self, t: Shapes) -> None:
        shape = _check_shapes(self, t, self.dst, self.a, self.bias, experts_of(self, t, self.codes))
        self.packed.check(t, shape)
        _check_codes(self, t, self.a, self.a_scales, self.packed, shape[-1])
        check_counts(self, t, self.counts, self.at)

    def work(self, s: Sizes) -> Work:
        k = s.shape(self.a)[1]
        per_row = s.shape(self.a_scales)[0] != 1
        scale = s.type_of(self.a_scales).dtype
        row_bytes = self.form.element.bytes_of(k) + per_row * scale.bytes_of(s.shape(self.a_scales)[1])
        return _grouped_work(self, s, self.packed, row_bytes, self.form)

    def execute(self, m: Memory) -> None:
        a, scales, dst = m.get(self.a).astype(np.float32), m.get(self.a_scales), m.get(self.dst).copy()
        w, w_scales = self.packed.codes_and_scales(m, self.packed.shape_of(m, a.shape[1]))
        blocks, is_static = blocks_of(self.form, self.phase, a.shape[1]), m.shape(self.a_scales) == (1, 1)
        for expert, rows in _expert_rows(self, m, len(w)):
            own = scales if is_static else scales[rows]
            product = product_of_codes(a[rows], own, w[expert], w_scales[expert], blocks)
            dst[rows] = product if self.bias is None else product + m.get(self.bias)[expert]
        m.put(self.dst, dst)


Grouped = PACKED_GROUPED_MATMUL | QUANTISED_GROUPED_MATMUL


def experts_of(i: Instruction, t: Shapes, codes: Ref) -> tuple[int]:
    """How many matrices a stack of codes has."""
    held = t.type_of(codes)
    require(len(held.shape) == 3 and isinstance(held.shape[0], int), i, f"codes is {held}, must be [experts, n, k]")
    return (int(held.shape[0]),)


def _grouped_work(i: Grouped, s: Sizes, packed: PackedOperand, row_bytes: int, form: Form | None) -> Work:
    """Work over the rows that there are and the experts that have some; `row_bytes` are read of each row."""
    k, n = s.shape(i.a)[1], s.shape(i.dst)[1]
    experts = s.shape(i.codes)[0]
    rows = local_counts(i, s, i.extent, i.at, experts, s.shape(i.a)[0])
    total, used = total_of(rows), sum(count > 0 for count in rows)
    bias_bytes = s.type_of(i.bias).dtype.bytes_of(n) if i.bias is not None else 0
    scaled = 2 * total * n * len(blocks_of(form, i.phase, k)) if form is not None else 0
    return Work(
        Unit.TENSOR,
        ops=2 * total * n * k + scaled + (total * n if i.bias is not None else 0),
        read_bytes=total * row_bytes + packed.bytes_of_matrices(s, used) + used * bias_bytes,
        write_bytes=s.type_of(i.dst).dtype.bytes_of(total * n),
        dtype=s.type_of(i.a).dtype if form is None else form.element,
        shape=GroupedShape(rows, n, k),
    )


def _expert_rows(i: Grouped, m: Memory, experts: int) -> list[tuple[int, slice]]:
    """Each expert's rows; ProgramError where the counts in memory are not the bound ones."""
    rows = local_counts(i, m, i.extent, i.at, experts, m.shape(i.a)[0])
    memory_counts(i, m, i.counts, rows, i.at)
    stops = np.cumsum(rows).tolist()
    return [(expert, slice(stop - count, stop)) for expert, (count, stop) in enumerate(zip(rows, stops, strict=True))]
