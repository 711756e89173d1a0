"""One link instruction of one card, bound to its memory: what it moves, with whom, and what members must agree on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..isa.dtype import DType
from ..isa.errors import ProgramError
from ..isa.instruction import Array, Instruction, split_even
from ..isa.link import (
    ALL_GATHER,
    ALL_TO_ALL,
    BARRIER,
    LINK_GATHER,
    LINK_SCATTER,
    RECV,
    RECV_REDUCE,
    REDUCE_SCATTER,
    SEND,
)
from ..isa.meaning import ArrayMemory
from ..isa.operands import Ref
from ..isa.ragged import ALL_GATHER_ROWS

Thunk = Callable[[], None]
Counts = tuple[tuple[int, ...], tuple[int, ...]]
TRANSFERS = (SEND, RECV, RECV_REDUCE)


@dataclass(eq=False)
class LinkOp:
    """One link instruction of one card, bound to its memory.

    `ranks` are the group's, `partners` those that it needs bytes from or sends bytes to. `x` is the operand that moves
    (the gathered, scattered or reduced whole, for a collective), `part` the member's own share where there is one. Of
    an all-to-all `x` is sent and `part` received, by `counts`: the rows to and from each member, which `read_counts`
    reads anew where an instruction writes them. Where rows are
    gathered unevenly, `counts` are what each member has.
    """

    rank: int
    instruction: Any
    ranks: tuple[int, ...]
    partners: tuple[int, ...]
    where: str
    dtype: DType | None = None
    x: Array | None = None
    part: Array | None = None
    counts: Counts = ((), ())
    read_counts: Callable[[], Counts] | None = field(default=None, repr=False)
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

    @property
    def share(self) -> Array:
        """The member's own share."""
        assert self.part is not None
        return self.part

    def terms(self) -> tuple[object, ...]:
        """What members of a group must agree on."""
        i = self.instruction
        shape = None if self.x is None else self.x.shape[1:] if isinstance(i, ALL_TO_ALL) else self.x.shape
        counts = self.counts if isinstance(i, ALL_GATHER_ROWS) else None
        return i.mnemonic, shape, self.dtype, getattr(i, "axis", None), getattr(i, "root", None), counts


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
    if isinstance(i, ALL_TO_ALL):
        return _all_to_all_op(rank, i, memory, ranks, partners, where)
    if isinstance(i, ALL_GATHER_ROWS):
        held, moved = i.rows(memory), (_bytes(i, memory, i.dst), _bytes(i, memory, i.src))
        return LinkOp(rank, i, ranks, partners, where, memory.type_of(i.src).dtype, *moved, (held, held))
    whole, part = _operands(i)
    share = None if part is None else _bytes(i, memory, part)
    op = LinkOp(rank, i, ranks, partners, where, memory.type_of(whole).dtype, _bytes(i, memory, whole), share)
    if share is not None:
        _check_share(op, share)
    return op


def _all_to_all_op(
    rank: int, i: Any, memory: ArrayMemory, ranks: tuple[int, ...], partners: tuple[int, ...], where: str
) -> LinkOp:
    def read() -> Counts:
        i.work(memory)  # which checks the counts
        return memory.extent(i.send_counts), memory.extent(i.recv_counts)

    written = any(memory.is_written(name) for name in (i.send_counts, i.recv_counts))
    x, part = _bytes(i, memory, i.src), _bytes(i, memory, i.dst)
    dtype = memory.type_of(i.src).dtype
    return LinkOp(rank, i, ranks, partners, where, dtype, x, part, read(), read if written else None)


def _operands(i: Any) -> tuple[Ref, Ref | None]:
    """The whole that a collective is about, and the member's share of it."""
    if isinstance(i, ALL_GATHER | LINK_GATHER):
        return i.dst, i.src
    if isinstance(i, REDUCE_SCATTER | LINK_SCATTER):
        return i.src, i.dst
    return i.x, None


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
