"""A plan carried out on real arrays, bit for bit as its transfers say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from types import EllipsisType
from typing import Any

import numpy as np

from ...isa.dtype import DType
from ...isa.errors import ProgramError, UnsupportedError
from .plan import SIGNAL, Plan, Transfer

Array = np.ndarray[Any, Any]
Index = slice | EllipsisType
Part = Index | tuple[Index, ...]
AddInto = Callable[[Array, Array], object]
Transfers = tuple[tuple[int, int, int, bool], ...]  # (source, target, part, reduces)


def even_parts(count: int, parts: int) -> tuple[slice, ...]:
    """`count` elements cut into `parts` runs, the first count mod parts of them one longer; late ones may be empty."""
    if parts < 1 or count < 0:
        raise ProgramError(f"{count} elements cannot be cut into {parts} parts")
    base, longer = divmod(count, parts)
    starts = [base * part + min(part, longer) for part in range(parts + 1)]
    return tuple(slice(start, end) for start, end in zip(starts, starts[1:], strict=False))


def execute(
    plan: Plan,
    buffers: Sequence[Array],
    dtype: DType,
    parts: Sequence[Part],
    reduce: AddInto | None = None,
) -> None:
    """Run the steps in place on one storage array a member, all of one shape; `parts` are their disjoint basic indices.

    A part may be `slice(a, b)` of a flat buffer or of rows, or `(..., slice(a, b))` of columns; a plan without parts
    (a barrier) moves nothing. What a part must hold at first, and holds at last, is the collective's meaning: an
    all-gather starts with member i's contribution in part i of its own buffer; a reduce-scatter leaves partial sums in
    the parts that a member does not own.

    At every reducing transfer the target adds the arriving partial sum to its own element, in float32, and rounds to
    `dtype` (nearest, ties to even), in the order that the plan gives: at each hop, as a recv-reduce does. Integers wrap
    around. `reduce(dst, src)` may do that addition instead, on storage arrays of one shape, giving the same bits.

    ProgramError for buffers or parts that do not fit the plan, UnsupportedError for adding packed sub-byte elements.
    """
    _check(plan, buffers, dtype, parts)
    order, reduces = _order(plan)
    if not order or not parts:
        return
    if reduces and dtype.bits % 8:
        raise UnsupportedError(f"{plan.name}: {dtype} packs several elements in a byte, which cannot be added in place")
    add = reduce
    if add is None:
        add, buffers = _add_into, [buffer.view(dtype.value) for buffer in buffers]
    pieces = [[buffer[part] for part in parts] for buffer in buffers]
    with np.errstate(over="ignore", invalid="ignore"):  # a sum that overflows is an infinity here as on a card
        for transfers, needs_copies in order:
            if needs_copies:
                _run_with_copies(transfers, pieces, add)
            else:
                _run(transfers, pieces, add)


def _add_into(target: Array, source: Array) -> None:
    # NumPy and ml_dtypes add 8- and 16-bit floats as float32 and round once, which is the rule above.
    np.add(target, source, out=target)


def _run(transfers: Transfers, pieces: list[list[Array]], add: AddInto) -> None:
    for source, target, part, adds in transfers:
        if adds:
            add(pieces[target][part], pieces[source][part])
        else:
            pieces[target][part][...] = pieces[source][part]


def _run_with_copies(transfers: Transfers, pieces: list[list[Array]], add: AddInto) -> None:
    arriving = [pieces[source][part].copy() for source, _, part, _ in transfers]
    for (_, target, part, adds), piece in zip(transfers, arriving, strict=True):
        if adds:
            add(pieces[target][part], piece)
        else:
            pieces[target][part][...] = piece


@lru_cache(maxsize=512)
def _order(plan: Plan) -> tuple[tuple[tuple[Transfers, bool], ...], bool]:
    """(steps that carry bytes, each its transfers as plain tuples and whether it needs copies; whether any reduces)."""

    def plain(transfers: tuple[Transfer, ...]) -> Transfers:
        return tuple((t.source, t.target, t.part, t.reduces) for t in transfers if t.part != SIGNAL)

    steps = tuple((plain(step.transfers), step.needs_copies) for step in plan.steps)
    return tuple(step for step in steps if step[0]), any(t.reduces for step in plan.steps for t in step.transfers)


def _check(plan: Plan, buffers: Sequence[Array], dtype: DType, parts: Sequence[Part]) -> None:
    if len(buffers) != plan.size or len(parts) != plan.parts:
        raise ProgramError(
            f"{plan.name}: {len(buffers)} buffers and {len(parts)} parts; it needs {plan.size} and {plan.parts}"
        )
    for part in parts:
        if not isinstance(part, slice | tuple | EllipsisType):  # an index array would copy, and the sums would be lost
            raise ProgramError(f"{plan.name}: part {part!r} must be a slice, or a tuple of slices and ...")
    shape = buffers[0].shape
    for member, buffer in enumerate(buffers):
        if buffer.dtype != dtype.storage:
            raise ProgramError(
                f"{plan.name}: member {member} holds {buffer.dtype}; {dtype} is stored as {dtype.storage}"
            )
        if buffer.shape != shape:
            raise ProgramError(f"{plan.name}: member {member} has shape {buffer.shape}, member 0 {shape}")
