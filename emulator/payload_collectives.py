"""Collectives of cards that have all come, carried out on their memory by the plan that the interconnect gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from types import EllipsisType
from typing import Any

import numpy as np

from ..interconnect.collectives.execute import execute, run_pieces
from ..interconnect.collectives.plan import Plan
from ..isa.dtype import BF16, FP16, FP32, DType
from ..isa.errors import ProgramError
from ..isa.instruction import Array, split_even
from .choosing import Choose
from .kernels.elementwise import add_into
from .payload_link import LinkOp, Thunk

MOST_STAGED = 64  # members: beyond, a table of who has which of n * n parts is too large, and rows are copied straight
Cut = slice | EllipsisType
# The interconnect's names, where they are others.
KINDS = {"link_gather": "gather", "link_scatter": "scatter", "all_gather_rows": "all_gather"}


def bind_collective(ops: Sequence[LinkOp], choose: Choose) -> Thunk:
    """What the members, in group order, do together; ProgramError when they do not agree on what that is."""
    for op in ops[1:]:
        if op.terms() != ops[0].terms():
            raise ProgramError(
                "members of one group do not agree:\n  "
                + "\n  ".join(
                    f"card {o.rank}, {o.where}: {o.instruction} over {o.dtype}{[] if o.x is None else list(o.x.shape)}"
                    for o in ops
                )
            )
    instruction = ops[0].instruction
    if instruction.mnemonic == "barrier":
        return lambda: None
    if instruction.mnemonic == "all_to_all":
        if any(op.read_counts for op in ops):
            return lambda: _exchange_rows(ops)
        _check_counts(ops)
    kind, ranks = KINDS.get(instruction.mnemonic, instruction.mnemonic), ops[0].ranks
    choice = choose(kind, len(ops), ranks, _num_bytes(ops), ops[0].dtype)
    plan = choice.plan(kind, len(ops), getattr(instruction, "root", 0))
    return _MEETINGS[instruction.mnemonic](ops, plan)


def _num_bytes(ops: Sequence[LinkOp]) -> int:
    """Bytes of all parts of a collective."""
    dtype, whole = ops[0].dtype, ops[0].whole
    assert dtype is not None
    if ops[0].instruction.mnemonic != "all_to_all":
        return dtype.bytes_of(whole.size)
    row = whole[:1].size if len(whole) else 0
    return sum(dtype.bytes_of(count * row) for op in ops for count in op.counts[0])


def _check_counts(ops: Sequence[LinkOp]) -> None:
    for i, sender in enumerate(ops):
        for j, receiver in enumerate(ops):
            sent, expected = sender.counts[0][j], receiver.counts[1][i]
            if sent != expected:
                raise ProgramError(
                    f"members of one group do not agree: card {sender.rank}, {sender.where}: {sender.instruction} "
                    f"sends {sent} rows to member {j}, and card {receiver.rank}, {receiver.where}: "
                    f"{receiver.instruction} expects {expected} from member {i}"
                )


def adder(dtype: DType) -> Callable[[Array, Array], object]:
    """dst += src over runs of storage elements, summed in float32 and rounded once."""
    add: Callable[[Array, Array], object] = add_into
    if dtype in (FP32, BF16):
        return add
    if dtype is FP16:
        return lambda dst, src: add(dst.view(np.int16), src.view(np.int16))
    raise ProgramError(f"no kernel adds {dtype}; reduce in {FP32}, {BF16} or {FP16}")


@dataclass(eq=False)
class Runs:
    """Members' wholes as contiguous runs: their own memory, or a copy where they are column slices."""

    ops: Sequence[LinkOp]

    def __post_init__(self) -> None:
        self.flat = [np.ascontiguousarray(op.whole).reshape(-1) for op in self.ops]
        shared = [np.shares_memory(run, op.whole) for run, op in zip(self.flat, self.ops, strict=True)]
        self.copied = [
            (run.reshape(op.whole.shape), op.whole)
            for run, op, same in zip(self.flat, self.ops, shared, strict=True)
            if not same
        ]

    def load(self) -> None:
        for run, whole in self.copied:
            run[...] = whole

    def store(self) -> None:
        for run, whole in self.copied:
            whole[...] = run


def _all_reduce(ops: Sequence[LinkOp], plan: Plan) -> Thunk:
    """All-reduce and reduce: a sum over the members, of the whole operand."""
    dtype, size = ops[0].dtype, ops[0].whole.size
    assert dtype is not None
    runs, add = Runs(ops), adder(dtype)
    parts = [slice(start, start + count) for start, count in split_even(size, plan.given)]

    def thunk() -> None:
        runs.load()
        execute(plan, runs.flat, dtype, parts, add)
        runs.store()

    return thunk


def _reduce_scatter(ops: Sequence[LinkOp], plan: Plan) -> Thunk:
    dtype, whole = ops[0].dtype, ops[0].whole
    assert dtype is not None
    runs, add = Runs(ops), adder(dtype)
    row = whole.size // max(1, len(whole))
    parts = [slice(start * row, (start + size) * row) for start, size in split_even(len(whole), len(ops))]

    def thunk() -> None:
        runs.load()
        execute(plan, runs.flat, dtype, parts, add)
        for op, run, part in zip(ops, runs.flat, parts, strict=True):
            op.share[...] = run[part].reshape(op.share.shape)

    return thunk


def _all_gather(ops: Sequence[LinkOp], plan: Plan) -> Thunk:
    dtype, buffers = ops[0].dtype, [op.whole for op in ops]
    assert dtype is not None
    parts = _shares(ops)
    own = [(op.whole[part], op.share) for op, part in zip(ops, parts, strict=True)]

    def thunk() -> None:
        for place, share in own:
            place[...] = share
        execute(plan, buffers, dtype, parts)

    return thunk


def _broadcast(ops: Sequence[LinkOp], plan: Plan) -> Thunk:
    dtype, buffers = ops[0].dtype, [op.whole for op in ops]
    assert dtype is not None
    return lambda: execute(plan, buffers, dtype, [...])


def _shares(ops: Sequence[LinkOp]) -> list[Cut | tuple[Cut, ...]]:
    """Each member's share as an index of the whole."""
    if ops[0].instruction.mnemonic == "all_gather_rows":
        counts = ops[0].counts[0]
        return [slice(end - count, end) for end, count in zip(accumulate(counts), counts, strict=True)]
    whole, columns = ops[0].whole, ops[0].instruction.axis == "columns"
    cuts = [slice(s, s + size) for s, size in split_even(whole.shape[-1] if columns else len(whole), len(ops))]
    return [(..., cut) if columns else cut for cut in cuts]


# Nothing is added: bytes go from where they are to where they belong, perhaps through members that have no use for them

Pair = tuple[Array, Array]  # target, source


def _gather(ops: Sequence[LinkOp], plan: Plan) -> Thunk:
    root = ops[0].instruction.root
    places = [ops[root].whole[share] for share in _shares(ops)]
    return _moved(
        ops, plan, _homes(ops, places, root), [(place, op.share) for place, op in zip(places, ops, strict=True)]
    )


def _scatter(ops: Sequence[LinkOp], plan: Plan) -> Thunk:
    root = ops[0].instruction.root
    places = [ops[root].whole[share] for share in _shares(ops)]
    return _moved(
        ops, plan, _homes(ops, places, root), [(op.share, place) for place, op in zip(places, ops, strict=True)]
    )


def _homes(ops: Sequence[LinkOp], places: Sequence[Array], root: int) -> list[dict[int, Array]]:
    """Where each member has which part: its own share, and the root all of them in the whole."""
    homes = [{member: op.share} for member, op in enumerate(ops)]
    homes[root] = dict(enumerate(places))
    return homes


def _all_to_all(ops: Sequence[LinkOp], plan: Plan) -> Thunk:
    size = len(ops)
    sent = [_rows(op.whole, op.counts[0]) for op in ops]
    received = [_rows(op.share, op.counts[1]) for op in ops]
    homes = []
    for member in range(size):
        leaving = {member * size + other: view for other, view in enumerate(sent[member])}
        homes.append(leaving | {other * size + member: view for other, view in enumerate(received[member])})
    return _moved(ops, plan, homes, [(received[j][i], sent[i][j]) for i in range(size) for j in range(size)])


def _exchange_rows(ops: Sequence[LinkOp]) -> None:
    """An all-to-all whose counts the program has just written: what is bound to them would not be used again."""
    for op in ops:
        if op.read_counts is not None:
            op.counts = op.read_counts()
    _check_counts(ops)
    sent = [_rows(op.whole, op.counts[0]) for op in ops]
    received = [_rows(op.share, op.counts[1]) for op in ops]
    for source, rows in enumerate(sent):
        for target, values in enumerate(rows):
            received[target][source][...] = values


def _rows(buffer: Array, counts: Sequence[int]) -> list[Array]:
    """The leading rows of a buffer, cut by counts."""
    ends = accumulate(counts)
    return [buffer[end - count : end] for end, count in zip(ends, counts, strict=True)]


def _moved(ops: Sequence[LinkOp], plan: Plan, homes: Sequence[dict[int, Array]], pairs: Sequence[Pair]) -> Thunk:
    """Run the plan on what each member holds of each part, its `homes`, and copy what stays on its member.

    A member that passes a part on gets a place for it while the plan runs. `pairs` are all that must be copied in the
    end, part by part; so it is done where the plan is too large or cuts the parts, which no byte can tell.
    """
    dtype, size = ops[0].dtype, len(ops)
    assert dtype is not None
    if size > MOST_STAGED or plan.parts != plan.given:
        return _copies(pairs)
    shapes = {part: view for home in homes for part, view in home.items()}
    rows: list[list[Any]] = [[home.get(part) for part in range(plan.parts)] for home in homes]
    for target, part in zip(plan.moves.targets.tolist(), plan.moves.parts.tolist(), strict=True):
        if rows[target][part] is None:
            rows[target][part] = np.empty_like(shapes[part])
    stays = _copies([pair for part, pair in enumerate(pairs) if _stays(plan, part)])

    def thunk() -> None:
        run_pieces(plan, rows, dtype, _never)
        stays()

    return thunk


def _stays(plan: Plan, part: int) -> bool:
    """Whether a part belongs where it is: a root's own share, what a member has for itself."""
    return part // plan.size == part % plan.size if plan.collective == "all_to_all" else part == plan.root


def _copies(pairs: Sequence[Pair]) -> Thunk:
    def thunk() -> None:
        for target, source in pairs:
            target[...] = source

    return thunk


def _never(target: Array, source: Array) -> None:
    raise AssertionError("a plan that only moves bytes adds some")


_MEETINGS: dict[str, Callable[[Sequence[LinkOp], Plan], Thunk]] = {
    "all_reduce": _all_reduce,
    "reduce": _all_reduce,
    "reduce_scatter": _reduce_scatter,
    "all_gather": _all_gather,
    "all_gather_rows": _all_gather,
    "broadcast": _broadcast,
    "link_gather": _gather,
    "link_scatter": _scatter,
    "all_to_all": _all_to_all,
}
