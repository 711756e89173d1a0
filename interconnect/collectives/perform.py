"""Collectives on each member's own arrays, out of place, as message passing libraries offer them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...isa.dtype import DType
from ...isa.errors import ProgramError
from .execute import AddInto, Array, even_parts, run_pieces
from .plan import Plan

Counts = Sequence[int] | Sequence[Sequence[int]]
Perform = Callable[[Plan, list[Array], DType, Any, AddInto | None], list[Array]]


def perform(
    plan: Plan,
    inputs: Sequence[Array],
    dtype: DType,
    counts: Counts | None = None,
    reduce: AddInto | None = None,
) -> list[Array]:
    """What every member holds after the collective, from flat storage arrays that are left as they are.

    all_reduce, reduce: inputs of one length; each (reduce: the root) gets the sum, the others of a reduce nothing.
    reduce_scatter: the same, and member i gets its part of the sum, `counts[i]` elements (evenly cut without counts).
    all_gather, gather: inputs of any lengths; each (gather: the root) gets them one after the other.
    broadcast: each gets the root's. scatter: member i gets `counts[i]` of the root's elements (evenly cut without).
    all_to_all: input i holds what it has for member 0, 1 and on; `counts[i][j]` elements are for member j (evenly cut
    without); member j gets what all have for it, one after the other. barrier: the inputs. send_recv,
    send_recv_reduce: member 1 gets member 0's input, or its sum with its own. Sums are rounded as in `execute`.
    ProgramError for inputs or counts that do not suit.
    """
    arrays = [np.asarray(array) for array in inputs]
    if len(arrays) != plan.size:
        raise ProgramError(f"{plan.name}: {len(arrays)} inputs; the group has {plan.size} members")
    for member, array in enumerate(arrays):
        if array.dtype != dtype.storage or array.ndim != 1:
            raise ProgramError(
                f"{plan.name}: member {member} holds {array.dtype}{list(array.shape)}; give a flat array of "
                f"{dtype.storage}, as {dtype} is stored"
            )
    return _PERFORMERS[plan.collective](plan, arrays, dtype, counts, reduce)


def _same_lengths(plan: Plan, inputs: list[Array]) -> int:
    lengths = {len(array) for array in inputs}
    if len(lengths) > 1:
        raise ProgramError(f"{plan.name}: inputs of {sorted(lengths)} elements; all must have as many")
    return lengths.pop()


def _checked(plan: Plan, counts: Any, total: int, parts: int) -> list[int]:
    """Counts of the parts of `total` elements, even where none are given."""
    if counts is None:
        return [part.stop - part.start for part in even_parts(total, parts)]
    found = [int(count) for count in counts]
    if len(found) != parts or sum(found) != total or any(count < 0 for count in found):
        raise ProgramError(f"{plan.name}: counts {found} must be {parts}, not negative, with the sum {total}")
    return found


def _split(array: Array, counts: Sequence[int]) -> list[Array]:
    """Views of runs of a flat array."""
    bounds = np.cumsum([0, *counts])
    return [array[low:high] for low, high in zip(bounds, bounds[1:], strict=False)]


def _own_pieces(plan: Plan, array: Array, counts: Sequence[int]) -> list[Array]:
    """A flat array cut as the plan cuts it, when its callers cut it by `counts`."""
    return _split(array, plan.sizes_of(np.array(counts, np.int64)).tolist())


def _summed(plan: Plan, inputs: list[Array], dtype: DType, counts: Any, reduce: AddInto | None) -> list[Array]:
    """All members' buffers after a collective whose parts lie one after the other in every member's buffer."""
    wholes = [array.copy() for array in inputs]
    run_pieces(plan, [_own_pieces(plan, whole, counts) for whole in wholes], dtype, reduce)
    return wholes


def _all_reduce(plan: Plan, inputs: list[Array], dtype: DType, counts: Any, reduce: AddInto | None) -> list[Array]:
    total = _same_lengths(plan, inputs)
    return _summed(plan, inputs, dtype, _checked(plan, counts, total, plan.given), reduce)


def _reduce(plan: Plan, inputs: list[Array], dtype: DType, counts: Any, reduce: AddInto | None) -> list[Array]:
    wholes = _all_reduce(plan, inputs, dtype, None, reduce)
    return [whole if member == plan.root else whole[:0] for member, whole in enumerate(wholes)]


def _reduce_scatter(plan: Plan, inputs: list[Array], dtype: DType, counts: Any, reduce: AddInto | None) -> list[Array]:
    sizes = _checked(plan, counts, _same_lengths(plan, inputs), plan.given)
    wholes = _summed(plan, inputs, dtype, sizes, reduce)
    return [_split(whole, sizes)[member] for member, whole in enumerate(wholes)]


def _all_gather(plan: Plan, inputs: list[Array], dtype: DType, counts: Any, reduce: AddInto | None) -> list[Array]:
    sizes = [len(array) for array in inputs]
    wholes = [np.zeros(sum(sizes), dtype.storage) for _ in inputs]
    for member, whole in enumerate(wholes):
        _split(whole, sizes)[member][...] = inputs[member]
    return _summed(plan, wholes, dtype, sizes, reduce)


def _gather(plan: Plan, inputs: list[Array], dtype: DType, counts: Any, reduce: AddInto | None) -> list[Array]:
    wholes = _all_gather(plan, inputs, dtype, counts, reduce)
    return [whole if member == plan.root else whole[:0] for member, whole in enumerate(wholes)]


def _scatter(plan: Plan, inputs: list[Array], dtype: DType, counts: Any, reduce: AddInto | None) -> list[Array]:
    source = inputs[plan.root]
    sizes = _checked(plan, counts, len(source), plan.given)
    wholes = [source if member == plan.root else np.zeros_like(source) for member in range(plan.size)]
    return [
        _split(whole, sizes)[member].copy() for member, whole in enumerate(_summed(plan, wholes, dtype, sizes, reduce))
    ]


def _broadcast(plan: Plan, inputs: list[Array], dtype: DType, counts: Any, reduce: AddInto | None) -> list[Array]:
    source = inputs[plan.root]
    wholes = [source if member == plan.root else np.zeros_like(source) for member in range(plan.size)]
    return _summed(plan, wholes, dtype, [len(source)], reduce)


def _all_to_all(plan: Plan, inputs: list[Array], dtype: DType, counts: Any, reduce: AddInto | None) -> list[Array]:
    n = plan.size
    if counts is not None and len(counts) != n:
        raise ProgramError(f"{plan.name}: counts of {len(counts)} members; give {n} rows of {n}")
    rows = [_checked(plan, counts[m] if counts is not None else None, len(inputs[m]), n) for m in range(n)]
    outputs = [np.zeros(sum(rows[source][m] for source in range(n)), dtype.storage) for m in range(n)]
    sent = [_split(inputs[m], rows[m]) for m in range(n)]
    heard = [_split(outputs[m], [rows[source][m] for source in range(n)]) for m in range(n)]
    for m in range(n):
        heard[m][m][...] = sent[m][m]
    run_pieces(plan, [_Mailbox(m, n, sent[m], heard[m], rows, dtype) for m in range(n)], dtype, reduce)
    return outputs


class _Mailbox(dict[int, Array]):
    """A member's parts by number: what it sends, what it hears, and room, made on demand, for what passes through."""

    def __init__(
        self, member: int, size: int, sent: list[Array], heard: list[Array], rows: list[list[int]], dtype: DType
    ) -> None:
        super().__init__({source * size + member: heard[source] for source in range(size)})
        self.update({member * size + target: sent[target] for target in range(size) if target != member})
        self._rows, self._size, self._storage = rows, size, dtype.storage

    def __missing__(self, part: int) -> Array:
        source, target = divmod(part, self._size)
        room = self[part] = np.zeros(self._rows[source][target], self._storage)
        return room


def _barrier(plan: Plan, inputs: list[Array], dtype: DType, counts: Any, reduce: AddInto | None) -> list[Array]:
    return [array.copy() for array in inputs]


def _transfer(plan: Plan, inputs: list[Array], dtype: DType, counts: Any, reduce: AddInto | None) -> list[Array]:
    return _summed(plan, inputs, dtype, [_same_lengths(plan, inputs)], reduce)


_PERFORMERS: dict[str, Perform] = {
    "all_reduce": _all_reduce,
    "reduce": _reduce,
    "reduce_scatter": _reduce_scatter,
    "all_gather": _all_gather,
    "gather": _gather,
    "scatter": _scatter,
    "broadcast": _broadcast,
    "all_to_all": _all_to_all,
    "barrier": _barrier,
    "send_recv": _transfer,
    "send_recv_reduce": _transfer,
}
