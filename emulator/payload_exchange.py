"""Bytes between cards within a program: sends in order, receives, and collectives once every member has come."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..interconnect.collectives.execute import execute
from ..interconnect.collectives.plan import Plan
from ..isa.dtype import BF16, FP16, FP32, DType
from ..isa.errors import ProgramError
from ..isa.instruction import Array, Instruction, split_even
from ..isa.link import ALL_GATHER, ALL_REDUCE, BARRIER, BROADCAST, RECV, RECV_REDUCE, REDUCE_SCATTER, SEND
from ..isa.meaning import ArrayMemory
from ..isa.operands import Ref
from .kernels.elementwise import add_into

Thunk = Callable[[], None]
Algorithm = Callable[[str, int], Plan]
TRANSFERS = (SEND, RECV, RECV_REDUCE)


@dataclass(eq=False)
class LinkOp:
    """One link instruction of one card, bound to its memory.

    `ranks` are the group's, `partners` those that it needs bytes from or sends bytes to. `x` is the operand that moves
    (the gathered or reduced whole, for a collective), `part` the member's own share where there is one.
    """

    rank: int
    instruction: Any
    ranks: tuple[int, ...]
    partners: tuple[int, ...]
    where: str
    dtype: DType | None = None
    x: Array | None = None
    part: Array | None = None
    meeting: tuple[tuple[LinkOp, ...], Thunk] | None = field(default=None, repr=False)

    @property
    def peer(self) -> int:
        """The other rank of a transfer."""
        return self.partners[0]

    @property
    def whole(self) -> Array:
        """The operand that moves; only a barrier has none."""
        assert self.x is not None
        return self.x

    def terms(self) -> tuple[object, ...]:
        """What members of a group must agree on."""
        i = self.instruction
        shape = None if self.x is None else self.x.shape
        return i.mnemonic, shape, self.dtype, getattr(i, "axis", None), getattr(i, "root", None)


def link_op(
    rank: int, instruction: Instruction, memory: ArrayMemory, groups: Mapping[str, tuple[int, ...]], where: str
) -> LinkOp:
    """Bind a link instruction; ProgramError for a group that is not bound or a share that does not fit."""
    i: Any = instruction
    i.check(memory)
    ranks = groups[i.group]
    if isinstance(i, TRANSFERS):
        if ranks[i.peer] == rank:
            raise ProgramError(f"{i.mnemonic}: peer {i.peer} of group {i.group!r} is this card itself (in: {i})")
        return LinkOp(rank, i, ranks, (ranks[i.peer],), where, memory.type_of(i.x).dtype, _bytes(i, memory, i.x))
    partners = tuple(other for other in ranks if other != rank)
    if isinstance(i, BARRIER):
        return LinkOp(rank, i, ranks, partners, where)
    whole, part = i.x if isinstance(i, ALL_REDUCE | BROADCAST) else i.dst, None
    if isinstance(i, ALL_GATHER):
        part = i.src
    elif isinstance(i, REDUCE_SCATTER):
        whole, part = i.src, i.dst
    share = None if part is None else _bytes(i, memory, part)
    op = LinkOp(rank, i, ranks, partners, where, memory.type_of(whole).dtype, _bytes(i, memory, whole), share)
    if share is not None:
        _check_share(op, share)
    return op


def _bytes(instruction: Instruction, memory: ArrayMemory, ref: Ref) -> Array:
    """The operand's view; ProgramError where its array is not what the block declares."""
    kind, array = memory.type_of(ref), memory.arrays[ref.buffer]
    if array.shape != memory.shape(Ref(ref.buffer)) or array.dtype != kind.dtype.storage:
        raise ProgramError(
            f"{instruction.mnemonic}: %{ref.buffer} is bound to {array.dtype}{list(array.shape)}, must be "
            f"{kind.dtype.storage}{list(memory.shape(Ref(ref.buffer)))} (in: {instruction})"
        )
    return memory.raw(ref)


def _check_share(op: LinkOp, share: Array) -> None:
    axis = -1 if getattr(op.instruction, "axis", "rows") == "columns" else 0
    index, whole = op.ranks.index(op.rank), op.whole.shape
    size = split_even(whole[axis], len(op.ranks))[index][1]
    expected = list(whole)
    expected[axis] = size
    if list(share.shape) != expected:
        raise ProgramError(
            f"{op.instruction.mnemonic}: member {index} holds {list(share.shape)}, its even share of {list(whole)} is "
            f"{expected} (in: {op.instruction})"
        )


class Exchange:
    """What is under way between the cards of one run."""

    def __init__(self, algorithm: Algorithm) -> None:
        self.algorithm = algorithm
        self._sent: dict[tuple[int, int], deque[tuple[LinkOp, Array]]] = {}
        self._here: dict[tuple[int, ...], dict[int, LinkOp]] = {}
        self._done: set[int] = set()

    def arrive(self, op: LinkOp) -> None:
        """A card has come to a link instruction: a send leaves at once, the last member runs the collective."""
        if isinstance(op.instruction, SEND):
            self._sent.setdefault((op.rank, op.peer), deque()).append((op, op.whole.copy()))
            self._done.add(op.rank)
        elif not isinstance(op.instruction, TRANSFERS):
            here = self._here.setdefault(op.ranks, {})
            here[op.rank] = op
            if len(here) == len(op.ranks):
                _meet([here[rank] for rank in op.ranks], self.algorithm)
                here.clear()
                self._done.update(op.ranks)

    def complete(self, op: LinkOp) -> bool:
        """Whether the card that came with `op` may go on; a receive takes what has arrived."""
        if isinstance(op.instruction, RECV | RECV_REDUCE):
            waiting = self._sent.get((op.peer, op.rank))
            if not waiting:
                return False
            _receive(op, *waiting.popleft())
            return True
        if op.rank not in self._done:
            return False
        self._done.remove(op.rank)
        return True

    def lacks(self, op: LinkOp, places: Mapping[int, LinkOp | None]) -> str:
        """Whom a waiting card waits for, and where those stand."""
        if isinstance(op.instruction, TRANSFERS):
            missing = [op.peer]
        else:
            missing = [rank for rank in op.ranks if rank not in self._here.get(op.ranks, {})]
        return ", ".join(f"card {rank} ({_place(places.get(rank))})" for rank in missing)

    def check_nothing_is_left(self) -> None:
        """ProgramError for bytes that were sent and never received."""
        for (source, target), messages in self._sent.items():
            if messages:
                op = messages[0][0]
                raise ProgramError(
                    f"card {source}, {op.where}: {op.instruction} sent what card {target} never received"
                )


def _place(op: LinkOp | None) -> str:
    return "ended" if op is None else f"in {op.where}: {op.instruction}"


def _receive(op: LinkOp, sender: LinkOp, values: Array) -> None:
    x = op.whole
    if values.shape != x.shape or sender.dtype is not op.dtype:
        raise ProgramError(
            f"{op.instruction} takes {op.dtype}{list(x.shape)} and card {sender.rank} sent {sender.dtype}"
            f"{list(values.shape)} ({sender.where}: {sender.instruction})"
        )
    if isinstance(op.instruction, RECV_REDUCE):
        assert op.dtype is not None
        total = np.ascontiguousarray(x)
        _adder(op.dtype)(total.reshape(-1), values.reshape(-1))
        values = total
    if values is not x:
        x[...] = values


def _adder(dtype: DType) -> Callable[[Array, Array], object]:
    """dst += src over runs of storage elements, summed in float32 and rounded once."""
    add: Callable[[Array, Array], object] = add_into
    if dtype in (FP32, BF16):
        return add
    if dtype is FP16:
        return lambda dst, src: add(dst.view(np.int16), src.view(np.int16))
    raise ProgramError(f"no kernel adds {dtype}; reduce in {FP32}, {BF16} or {FP16}")


def _meet(ops: list[LinkOp], algorithm: Algorithm) -> None:
    """Run a collective whose members, in group order, are all here; what it binds is kept for the next time."""
    kept = ops[0].meeting
    if kept is None or any(old is not new for old, new in zip(kept[0], ops, strict=True)):
        kept = ops[0].meeting = (tuple(ops), _bind_meeting(ops, algorithm))
    kept[1]()


def _bind_meeting(ops: list[LinkOp], algorithm: Algorithm) -> Thunk:
    for op in ops[1:]:
        if op.terms() != ops[0].terms():
            raise ProgramError(
                "members of one group do not agree:\n  "
                + "\n  ".join(
                    f"card {o.rank}, {o.where}: {o.instruction} over {o.dtype}{[] if o.x is None else list(o.x.shape)}"
                    for o in ops
                )
            )
    kind = ops[0].instruction.mnemonic
    if kind == "barrier":
        return lambda: None
    return _MEETINGS[kind](ops, algorithm(kind, len(ops)))


@dataclass(eq=False)
class _Runs:
    """Members' wholes as contiguous runs: their own memory, or a copy where they are column slices."""

    ops: list[LinkOp]

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


def _all_reduce(ops: list[LinkOp], plan: Plan) -> Thunk:
    dtype = ops[0].dtype
    assert dtype is not None
    runs, add = _Runs(ops), _adder(dtype)
    parts = [slice(start, start + size) for start, size in split_even(ops[0].whole.size, len(ops))]

    def thunk() -> None:
        runs.load()
        execute(plan, runs.flat, dtype, parts, add)
        runs.store()

    return thunk


def _reduce_scatter(ops: list[LinkOp], plan: Plan) -> Thunk:
    dtype, whole = ops[0].dtype, ops[0].whole
    assert dtype is not None
    runs, add = _Runs(ops), _adder(dtype)
    row = whole.size // max(1, len(whole))
    parts = [slice(start * row, (start + size) * row) for start, size in split_even(len(whole), len(ops))]

    def thunk() -> None:
        runs.load()
        execute(plan, runs.flat, dtype, parts, add)
        for op, run, part in zip(ops, runs.flat, parts, strict=True):
            assert op.part is not None
            op.part[...] = run[part].reshape(op.part.shape)

    return thunk


def _all_gather(ops: list[LinkOp], plan: Plan) -> Thunk:
    dtype, whole = ops[0].dtype, ops[0].whole
    assert dtype is not None
    columns = ops[0].instruction.axis == "columns"
    cuts = [slice(s, s + size) for s, size in split_even(whole.shape[-1] if columns else len(whole), len(ops))]
    parts = [(..., cut) if columns else cut for cut in cuts]
    own = [(op.whole[part], op.part) for op, part in zip(ops, parts, strict=True)]
    buffers = [op.whole for op in ops]

    def thunk() -> None:
        for place, share in own:
            place[...] = share
        execute(plan, buffers, dtype, parts)

    return thunk


def _broadcast(ops: list[LinkOp], plan: Plan) -> Thunk:
    dtype = ops[0].dtype
    assert dtype is not None
    root = ops[0].instruction.root
    buffers = [op.whole for op in [*ops[root:], *ops[:root]]]  # the plan starts at member 0
    return lambda: execute(plan, buffers, dtype, [...])


_MEETINGS: dict[str, Callable[[list[LinkOp], Plan], Thunk]] = {
    "all_reduce": _all_reduce,
    "reduce_scatter": _reduce_scatter,
    "all_gather": _all_gather,
    "broadcast": _broadcast,
}
