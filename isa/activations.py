"""Instructions that quantise activations: codes, and scales by blocks of a row found on the way or given beforehand."""

from __future__ import annotations

from typing import Literal

import numpy as np

from .counts import total_of
from .dtype import DTYPES, FP32, decode
from .experts import check_counts, local_counts, memory_counts
from .formats.form import Form
from .formats.quantise import Scales, quantise
from .formats.scheme import QuantScheme
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
    require_columns,
    require_floats,
    rows_cols,
)
from .operands import ExtentName, In, Number, Out, Ref
from .work import Unit, VectorShape, Work

Rule = Literal["nearest", "floor", "ceil"]
E8M0 = DTYPES["e8m0"]


def _check(i: Instruction, t: Shapes, dst: Ref, x: Ref, form: Form) -> None:
    held, source = t.type_of(dst), t.type_of(x)
    require(form.packing == "plain" and form.rows == 1, i, f"activations are not quantised as {form}")
    require(held == TensorType(form.element, source.shape), i, f"dst is {held}, must be {form.element} like {source}")
    require(isinstance(source.shape[-1], int), i, f"x is {source}: its columns must be a number")
    require_floats(i, t, x)
    require_columns(i, t, x)
    require_apart(i, dst, x)


def _check_dynamic(i: QUANTISE | GROUPED_QUANTISE, t: Shapes) -> None:
    _check(i, t, i.dst, i.x, i.form)
    *lead, cols = t.type_of(i.x).shape
    require(0 <= i.phase < max(i.form.cols, 1), i, f"phase={i.phase} must be below {i.form.cols}")
    scale = E8M0 if i.rule != "nearest" else FP32
    wanted = TensorType(scale, (*lead, i.form.column_blocks(int(cols), i.phase)))
    held = t.type_of(i.scales)
    require(held == wanted, i, f"scales is {held}, must be {wanted} for {i.form} by rule {i.rule}")
    require(i.amax > 0, i, f"amax={i.amax} must be above 0")
    require_apart(i, i.scales, i.x, i.dst)


def activation_scheme(form: Form, amax: float, rule: Rule) -> QuantScheme:
    """The scheme of activations in a form whose blocks' largest magnitude becomes `amax`."""
    return QuantScheme(f"{form}", form.element, FP32 if rule == "nearest" else E8M0, (1, form.cols), amax, rule)


def _work(s: Sizes, rows: int, cols: int, x: Ref, writes: int, passes: int) -> Work:
    kind = s.type_of(x).dtype
    return Work(
        Unit.VECTOR,
        ops=(2 + 2 * (passes - 1)) * rows * cols,  # divide and convert; magnitude and maximum
        read_bytes=kind.bytes_of(rows * cols),
        write_bytes=writes,
        dtype=kind,
        shape=VectorShape(rows, cols, passes),
    )


def _quantised(i: QUANTISE | GROUPED_QUANTISE, m: Memory, x: Array) -> tuple[Array, Array]:
    """Codes and scales of rows, in storage form."""
    scheme = activation_scheme(i.form, i.amax, i.rule)
    filled = np.concatenate([np.zeros((*x.shape[:-1], i.phase), np.float32), x], axis=-1)
    packed = quantise(np.ascontiguousarray(filled).reshape(-1, filled.shape[-1]), scheme, m.rules.cast(i.form.element))
    return packed.codes[:, i.phase :].reshape(x.shape), packed.scales.codes.reshape(*x.shape[:-1], -1)


class QUANTISE(Instruction, opcode=0xC4, unit=Unit.VECTOR):
    """dst = x / scales, each element rounded once; scales of the blocks of every row from their largest magnitudes.

    A block's scale brings its largest magnitude to `amax`: fp32 (rule nearest), or the power of two that OCP's floor or
    DeepGEMM's ceiling gives, as e8m0. The form's columns are those of a block (0: the row), the first without its first
    `phase`.
    """

    dst: Out
    scales: Out
    x: In
    form: Form
    amax: float
    rule: Rule
    phase: int = 0

    def check(self, t: Shapes) -> None:
        _check_dynamic(self, t)

    def work(self, s: Sizes) -> Work:
        rows, cols = rows_cols(s.shape(self.x))
        return _work(s, rows, cols, self.x, bytes_of(s, self.dst, self.scales), 2)

    def execute(self, m: Memory) -> None:
        codes, scales = _quantised(self, m, m.get(self.x))
        values = decode(scales, m.type_of(self.scales).dtype)
        m.put(self.dst, decode(codes, self.form.element))
        m.put(self.scales, values)


class GROUPED_QUANTISE(Instruction, opcode=0xC5, unit=Unit.VECTOR):
    """`quantise` over the rows of `experts` experts: counts[at] + ... of them; rows beyond are left as they are."""

    dst: Out
    scales: Out
    x: In
    form: Form
    amax: float
    rule: Rule
    counts: In
    extent: ExtentName
    at: Number
    experts: int
    phase: int = 0

    def check(self, t: Shapes) -> None:
        _check_dynamic(self, t)
        check_counts(self, t, self.counts, self.at)
        require(self.experts > 0, self, "experts must be 1 or more")

    def work(self, s: Sizes) -> Work:
        rows, cols = self._rows(s), s.shape(self.x)[1]
        scale_bytes = s.type_of(self.scales).dtype.bytes_of(s.shape(self.scales)[1])
        return _work(s, rows, cols, self.x, rows * (self.form.element.bytes_of(cols) + scale_bytes), 2)

    def _rows(self, s: Sizes) -> int:
        return total_of(local_counts(self, s, self.extent, self.at, self.experts, s.shape(self.x)[0]))

    def execute(self, m: Memory) -> None:
        own = local_counts(self, m, self.extent, self.at, self.experts, m.shape(self.x)[0])
        memory_counts(self, m, self.counts, own, self.at)
        rows, kind = sum(own), m.type_of(self.scales).dtype
        codes, scales = _quantised(self, m, m.get(self.x)[:rows])
        held, values = m.get(self.dst).copy(), m.get(self.scales).copy()
        held[:rows], values[:rows] = decode(codes, self.form.element), decode(scales, kind)
        m.put(self.dst, held)
        m.put(self.scales, values)


class QUANTISE_STATIC(Instruction, opcode=0xC6, unit=Unit.VECTOR):
    """dst = x / scales, each element rounded once and kept within its type: one fp32 scale for all, given."""

    dst: Out
    x: In
    scales: In
    form: Form

    def check(self, t: Shapes) -> None:
        _check_static(self, t)

    def work(self, s: Sizes) -> Work:
        rows, cols = rows_cols(s.shape(self.x))
        return _work(s, rows, cols, self.x, bytes_of(s, self.dst), 1)

    def execute(self, m: Memory) -> None:
        m.put(self.dst, _given(self, m, m.get(self.x)))


class GROUPED_QUANTISE_STATIC(Instruction, opcode=0xC7, unit=Unit.VECTOR):
    """`quantise_static` over the rows of `experts` experts: rows beyond are left as they are."""

    dst: Out
    x: In
    scales: In
    form: Form
    counts: In
    extent: ExtentName
    at: Number
    experts: int

    def check(self, t: Shapes) -> None:
        _check_static(self, t)
        check_counts(self, t, self.counts, self.at)
        require(self.experts > 0, self, "experts must be 1 or more")

    def work(self, s: Sizes) -> Work:
        own = local_counts(self, s, self.extent, self.at, self.experts, s.shape(self.x)[0])
        rows, cols = total_of(own), s.shape(self.x)[1]
        return _work(s, rows, cols, self.x, rows * self.form.element.bytes_of(cols), 1)

    def execute(self, m: Memory) -> None:
        own = local_counts(self, m, self.extent, self.at, self.experts, m.shape(self.x)[0])
        memory_counts(self, m, self.counts, own, self.at)
        held = m.get(self.dst).copy()
        held[: sum(own)] = _given(self, m, m.get(self.x)[: sum(own)])
        m.put(self.dst, held)


def _check_static(i: QUANTISE_STATIC | GROUPED_QUANTISE_STATIC, t: Shapes) -> None:
    _check(i, t, i.dst, i.x, i.form)
    require(i.form.cols == 0, i, f"one scale for all is a row's, and {i.form} has blocks")
    held = t.type_of(i.scales)
    require(held == TensorType(FP32, (1, 1)), i, f"scales is {held}, must be fp32[1, 1]")
    require_apart(i, i.dst, i.scales)


def _given(i: QUANTISE_STATIC | GROUPED_QUANTISE_STATIC, m: Memory, x: Array) -> Array:
    """Values of the codes of rows under the given scale."""
    scheme = QuantScheme("given", i.form.element, FP32, (0, 0), 1.0)
    rows = np.ascontiguousarray(x).reshape(-1, x.shape[-1])
    codes = quantise(rows, scheme, m.rules.cast(i.form.element), Scales(m.get(i.scales))).codes
    return decode(codes, i.form.element).reshape(x.shape)
