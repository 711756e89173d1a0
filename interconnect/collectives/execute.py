"""A plan carried out on real arrays, bit for bit as its transfers say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import EllipsisType
from typing import Any

import numpy as np

from ...isa.dtype import DType
from ...isa.errors import ProgramError, UnsupportedError
from .cache import WeighedCache
from .plan import SIGNAL, Ints, Plan

Array = np.ndarray[Any, Any]
Index = slice | EllipsisType
Part = Index | tuple[Index, ...]
Pieces = Sequence[Array] | Mapping[int, Array]  # the pieces of a member, by their number
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
    the parts that a member does not own. Parts that the plan cuts further are cut as flat runs, as `even_parts` does.

    At every reducing transfer the target adds the arriving partial sum to its own element, in float32, and rounds to
    `dtype` (nearest, ties to even), in the order that the plan gives: at each hop, as a recv-reduce does, in a switch
    too. Integers wrap around. `reduce(dst, src)` may do that addition instead, on storage arrays of one shape, giving
    the same bits.

    ProgramError for buffers or parts that do not fit the plan, UnsupportedError for adding packed sub-byte elements.
    """
    _check(plan, buffers, dtype, parts)
    if not plan.moves.count or not parts:
        return
    pieces = [[buffer[part] for part in parts] for buffer in buffers]
    if len(parts) == plan.parts:
        run_pieces(plan, pieces, dtype, reduce)
        return
    flat = [[np.ascontiguousarray(piece) for piece in row] for row in pieces]
    if plan.cuts_each_part:
        cut = [[run for piece in row for run in _runs(piece, plan.parts // plan.given)] for row in flat]
    else:
        flat = [[np.concatenate([piece.reshape(-1) for piece in row])] for row in flat]
        cut = [_runs(row[0], plan.parts) for row in flat]
    run_pieces(plan, cut, dtype, reduce)
    for row, own in zip(flat, pieces, strict=True):
        _put_back(row, own)


def run_pieces(plan: Plan, pieces: Sequence[Pieces], dtype: DType, reduce: AddInto | None = None) -> None:
    """The same on pieces already cut: `pieces[member][part]` is a flat view of each of the plan's own parts.

    They are what `reduce` adds; where it is not given, NumPy does.
    """
    if plan.moves.reduces.any() and dtype.bits % 8:
        raise UnsupportedError(f"{plan.name}: {dtype} packs several elements in a byte, which cannot be added in place")
    rows = list(pieces)
    if plan.uses_switch and rows:
        rows.append([np.zeros_like(rows[0][part]) for part in range(plan.parts)])
    add = reduce or (lambda target, source: _add_into(target.view(dtype.value), source.view(dtype.value)))
    with np.errstate(over="ignore", invalid="ignore"):  # a sum that overflows is an infinity here as on a card
        for transfers, needs_copies in _order(plan):
            if needs_copies:
                _run_with_copies(transfers, rows, add)
            else:
                _run(transfers, rows, add)


def _runs(piece: Array, count: int) -> list[Array]:
    flat = piece.reshape(-1)
    return [flat[run] for run in even_parts(flat.size, count)]


def _put_back(flat: list[Array], own: list[Array]) -> None:
    """Copy what was cut from copies back into the members' own parts; views of them need none."""
    if len(flat) == len(own):
        sources = flat
    else:
        bounds = np.cumsum([piece.size for piece in own])[:-1]
        sources = np.split(flat[0], bounds)
    for source, target in zip(sources, own, strict=True):
        if not np.may_share_memory(source, target):
            target[...] = source.reshape(target.shape)


def _add_into(target: Array, source: Array) -> None:
    # NumPy and ml_dtypes add 8- and 16-bit floats as float32 and round once, which is the rule above.
    np.add(target, source, out=target)


def _run(transfers: Transfers, pieces: Sequence[Pieces], add: AddInto) -> None:
    for source, target, part, adds in transfers:
        if adds:
            add(pieces[target][part], pieces[source][part])
        else:
            pieces[target][part][...] = pieces[source][part]


def _run_with_copies(transfers: Transfers, pieces: Sequence[Pieces], add: AddInto) -> None:
    arriving = [pieces[source][part].copy() for source, _, part, _ in transfers]
    for (_, target, part, adds), piece in zip(transfers, arriving, strict=True):
        if adds:
            add(pieces[target][part], piece)
        else:
            pieces[target][part][...] = piece


def _order(plan: Plan) -> tuple[tuple[Transfers, bool], ...]:
    """Steps that carry bytes, each its transfers as plain tuples, and whether it needs copies."""
    return _ORDERS.get(plan, lambda: _ordered(plan))


def _ordered(plan: Plan) -> tuple[tuple[Transfers, bool], ...]:
    moves = plan.moves
    carries = moves.parts != SIGNAL
    columns = (moves.sources, moves.targets, moves.parts, moves.reduces)
    rows = list(zip(*(column[carries].tolist() for column in columns), strict=True))
    bounds = np.concatenate(([0], np.cumsum(carries)))[moves.starts].tolist()
    copies = _needs_copies(plan).tolist()
    steps = zip(bounds, bounds[1:], copies, strict=False)
    return tuple((tuple(rows[low:high]), copy) for low, high, copy in steps if high > low)


def _needs_copies(plan: Plan) -> Ints:
    """For every step whether a transfer sends what another one of it overwrites."""
    moves = plan.moves
    place = (moves.step_of * (plan.size + 1), max(1, plan.parts))
    sent = (place[0] + moves.sources) * place[1] + moves.parts
    reached = (place[0] + moves.targets) * place[1] + moves.parts
    clash = np.isin(reached, sent) & (moves.parts != SIGNAL)
    needs = np.zeros(plan.num_steps, bool)
    needs[moves.step_of[clash]] = True
    return needs


_ORDERS: WeighedCache[tuple[tuple[Transfers, bool], ...]] = WeighedCache(
    1 << 28, lambda steps: sum(200 * len(transfers) for transfers, _ in steps)
)


def _check(plan: Plan, buffers: Sequence[Array], dtype: DType, parts: Sequence[Part]) -> None:
    if len(buffers) != plan.size or len(parts) not in (plan.given, plan.parts):
        raise ProgramError(
            f"{plan.name}: {len(buffers)} buffers and {len(parts)} parts; it needs {plan.size} and {plan.given}"
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
