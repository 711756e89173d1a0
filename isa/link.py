"""Instructions of the link queue: point-to-point transfers and collectives over a named group of cards.

A collective's meaning is its expansion into send, recv and recv_reduce, in the order that the chosen algorithm states.
"""

from __future__ import annotations

from typing import Literal

from .counts import check_total
from .dtype import DType
from .errors import ProgramError
from .instruction import (
    Dim,
    Instruction,
    Shapes,
    Sizes,
    bytes_of,
    elements,
    require,
    require_apart,
    require_floats,
    split_even,
)
from .operands import ExtentName, GroupName, In, InOut, Out, Ref
from .work import CollectiveShape, TransferShape, Unit, Work


def _transfer(s: Sizes, ref: Ref, group: str, peer: int, *, sends: bool, reduces: bool = False) -> Work:
    if s.group_index(group) == peer:
        raise ProgramError(f"{ref}: member {peer} of group {group!r} is this card itself; a transfer needs two")
    moved = bytes_of(s, ref)
    return Work(
        Unit.LINK,
        ops=elements(s.shape(ref)) if reduces else 0,
        read_bytes=moved if sends or reduces else 0,
        write_bytes=0 if sends else moved,
        dtype=s.type_of(ref).dtype,
        shape=TransferShape(group, peer, moved, sends, reduces, s.type_of(ref).dtype),
    )


def _check_peer(instruction: Instruction, t: Shapes, group: str, peer: int) -> None:
    size = t.group_size(group)
    require(0 <= peer < size, instruction, f"peer {peer} is not in group {group!r} of {size}")


class SEND(Instruction, opcode=0x40, unit=Unit.LINK):
    """Send x to member `peer` of the group; pairs with the peer's next recv or recv_reduce from this card."""

    x: In
    group: GroupName
    peer: int

    def check(self, t: Shapes) -> None:
        _check_peer(self, t, self.group, self.peer)

    def work(self, s: Sizes) -> Work:
        return _transfer(s, self.x, self.group, self.peer, sends=True)


class RECV(Instruction, opcode=0x41, unit=Unit.LINK):
    """x = what member `peer` of the group sends next to this card."""

    x: Out
    group: GroupName
    peer: int

    def check(self, t: Shapes) -> None:
        _check_peer(self, t, self.group, self.peer)

    def work(self, s: Sizes) -> Work:
        return _transfer(s, self.x, self.group, self.peer, sends=False)


class RECV_REDUCE(Instruction, opcode=0x42, unit=Unit.LINK):
    """x = x + what member `peer` sends next: summed in fp32 and rounded to x's dtype at every hop."""

    x: InOut
    group: GroupName
    peer: int

    def check(self, t: Shapes) -> None:
        _check_peer(self, t, self.group, self.peer)
        require_floats(self, t, self.x)

    def work(self, s: Sizes) -> Work:
        return _transfer(s, self.x, self.group, self.peer, sends=False, reduces=True)


def _collective(s: Sizes, kind: str, group: str, parts: tuple[int, ...], dtype: DType | None, root: int = 0) -> Work:
    return Work(Unit.LINK, dtype=dtype, shape=CollectiveShape(kind, group, parts, dtype, root))


def _even_parts(s: Sizes, ref: Ref, group: str) -> tuple[int, ...]:
    """Bytes of each member's chunk of a buffer that is cut evenly by elements."""
    dtype = s.type_of(ref).dtype
    return tuple(dtype.bytes_of(size) for _, size in split_even(elements(s.shape(ref)), s.group_size(group)))


class ALL_REDUCE(Instruction, opcode=0x43, unit=Unit.LINK):
    """x on every member = the sum of x over the group; every member ends with the same bits."""

    x: InOut
    group: GroupName

    def check(self, t: Shapes) -> None:
        t.group_size(self.group)
        require_floats(self, t, self.x)

    def work(self, s: Sizes) -> Work:
        return _collective(s, "all_reduce", self.group, _even_parts(s, self.x, self.group), s.type_of(self.x).dtype)


def gathered_parts(s: Sizes, dst: Ref, group: str, axis: str) -> list[tuple[int, int]]:
    """(start, size) along the gathered axis that each member contributes: an even split of dst's dimension."""
    shape = s.shape(dst)
    return split_even(shape[0] if axis == "rows" else shape[-1], s.group_size(group))


class ALL_GATHER(Instruction, opcode=0x44, unit=Unit.LINK):
    """dst on every member = the members' src one after the other, along rows or along columns (the last dimension).

    The gathered dimension of dst is split evenly over the group, the first members holding one more when it does not
    divide; the receiving engine writes columns strided.
    """

    dst: Out
    src: In
    group: GroupName
    axis: Literal["rows", "columns"]

    def check(self, t: Shapes) -> None:
        _check_gather(self, t, self.dst, self.src, self.group, self.axis)
        require_apart(self, self.dst, self.src)

    def work(self, s: Sizes) -> Work:
        parts = _share_bytes(self, s, self.dst, self.src, self.group, self.axis)
        return _collective(s, "all_gather", self.group, parts, s.type_of(self.dst).dtype)


class REDUCE_SCATTER(Instruction, opcode=0x45, unit=Unit.LINK):
    """dst = this member's share of the rows of the sum of src over the group; src is left undefined."""

    dst: Out
    src: InOut
    group: GroupName

    def check(self, t: Shapes) -> None:
        _check_gather(self, t, self.src, self.dst, self.group, "rows")
        require_floats(self, t, self.src)
        require_apart(self, self.dst, self.src)

    def work(self, s: Sizes) -> Work:
        parts = _share_bytes(self, s, self.src, self.dst, self.group, "rows")
        return _collective(s, "reduce_scatter", self.group, parts, s.type_of(self.src).dtype)


class BROADCAST(Instruction, opcode=0x46, unit=Unit.LINK):
    """x on every member = x of member `root`."""

    x: InOut
    group: GroupName
    root: int

    def check(self, t: Shapes) -> None:
        _check_peer(self, t, self.group, self.root)

    def work(self, s: Sizes) -> Work:
        return _collective(s, "broadcast", self.group, (bytes_of(s, self.x),), s.type_of(self.x).dtype, self.root)


class BARRIER(Instruction, opcode=0x47, unit=Unit.LINK):
    """No member goes on in this queue before every member of the group has arrived."""

    group: GroupName

    def check(self, t: Shapes) -> None:
        t.group_size(self.group)

    def work(self, s: Sizes) -> Work:
        return _collective(s, "barrier", self.group, (), None)


class REDUCE(Instruction, opcode=0x48, unit=Unit.LINK):
    """x on member `root` = the sum of x over the group; x on the other members is left undefined."""

    x: InOut
    group: GroupName
    root: int

    def check(self, t: Shapes) -> None:
        _check_peer(self, t, self.group, self.root)
        require_floats(self, t, self.x)

    def work(self, s: Sizes) -> Work:
        return _collective(s, "reduce", self.group, (bytes_of(s, self.x),), s.type_of(self.x).dtype, self.root)


class LINK_GATHER(Instruction, opcode=0x49, unit=Unit.LINK):
    """dst on member `root` = the members' src one after the other, along rows or columns, split as in all_gather.

    dst on the other members is left undefined.
    """

    dst: Out
    src: In
    group: GroupName
    root: int
    axis: Literal["rows", "columns"]

    def check(self, t: Shapes) -> None:
        _check_peer(self, t, self.group, self.root)
        _check_gather(self, t, self.dst, self.src, self.group, self.axis)
        require_apart(self, self.dst, self.src)

    def work(self, s: Sizes) -> Work:
        parts = _share_bytes(self, s, self.dst, self.src, self.group, self.axis)
        return _collective(s, "gather", self.group, parts, s.type_of(self.dst).dtype, self.root)


class LINK_SCATTER(Instruction, opcode=0x4A, unit=Unit.LINK):
    """dst = this member's share of the rows or columns of src of member `root`, split as in all_gather.

    src on the other members is not read.
    """

    dst: Out
    src: In
    group: GroupName
    root: int
    axis: Literal["rows", "columns"]

    def check(self, t: Shapes) -> None:
        _check_peer(self, t, self.group, self.root)
        _check_gather(self, t, self.src, self.dst, self.group, self.axis)
        require_apart(self, self.dst, self.src)

    def work(self, s: Sizes) -> Work:
        parts = _share_bytes(self, s, self.src, self.dst, self.group, self.axis)
        return _collective(s, "scatter", self.group, parts, s.type_of(self.src).dtype, self.root)


class ALL_TO_ALL(Instruction, opcode=0x4B, unit=Unit.LINK):
    """The first rows of src go to the members in group order, and dst's first rows are what comes from them, likewise.

    Entry i of `send_counts` is how many rows go to member i, entry i of `recv_counts` how many come from there; what a
    member sends must be what the other expects. Rows beyond them are not sent, or keep what they hold.
    """

    dst: Out
    src: In
    group: GroupName
    send_counts: ExtentName
    recv_counts: ExtentName

    def check(self, t: Shapes) -> None:
        to, of = t.type_of(self.dst), t.type_of(self.src)
        t.group_size(self.group)
        require(to.dtype == of.dtype, self, f"dtypes differ: {to} and {of}")
        require(to.shape[1:] == of.shape[1:], self, f"rows of {to} and {of} differ")
        require_apart(self, self.dst, self.src)

    def work(self, s: Sizes) -> Work:
        dtype, shape = s.type_of(self.src).dtype, s.shape(self.src)
        sent = _row_counts(self, s, self.src, self.send_counts)
        received = _row_counts(self, s, self.dst, self.recv_counts)
        row = elements(shape[1:])
        parts, arriving = (tuple([dtype.bytes_of(count * row) for count in counts]) for counts in (sent, received))
        return Work(Unit.LINK, dtype=dtype, shape=CollectiveShape("all_to_all", self.group, parts, dtype, 0, arriving))


def _row_counts(instruction: ALL_TO_ALL, s: Sizes, ref: Ref, extent: str) -> tuple[int, ...]:
    """How many rows of an operand are for each member; ProgramError when they are no counts, or more than there are."""
    counts, rows, size = s.extent(extent), s.shape(ref)[0], s.group_size(instruction.group)
    require(len(counts) == size, instruction, f"{extent} has {len(counts)} entries, one a member of {size} is needed")
    check_total(instruction, extent, counts, rows, f"{ref} has")
    return counts


def _check_gather(instruction: Instruction, t: Shapes, whole: Ref, part: Ref, group: str, axis: str) -> None:
    full, own = t.type_of(whole), t.type_of(part)
    size = t.group_size(group)
    require(full.dtype == own.dtype, instruction, f"dtypes differ: {full} and {own}")
    require(len(full.shape) == len(own.shape), instruction, f"{own} is no part of {full}: their ranks differ")
    index = 0 if axis == "rows" else len(full.shape) - 1
    rest = [dims[:index] + dims[index + 1 :] for dims in (full.shape, own.shape)]
    require(rest[0] == rest[1], instruction, f"{own} is no part of {full} along its {axis}")
    require(
        _is_share(own.shape[index], full.shape[index], size),
        instruction,
        f"{own} is no even share of {full} over {size}",
    )


def _share_bytes(instruction: Instruction, s: Sizes, whole: Ref, part: Ref, group: str, axis: str) -> tuple[int, ...]:
    """Bytes of each member's share of `whole`; ProgramError unless this member's `part` is its own."""
    dtype, shape = s.type_of(whole).dtype, s.shape(whole)
    other = elements(shape) // max(1, shape[0] if axis == "rows" else shape[-1])
    shares = gathered_parts(s, whole, group, axis)
    _check_own_share(instruction, s, part, shares, group, axis)
    return tuple(dtype.bytes_of(size * other) for _, size in shares)


def _is_share(part: Dim, total: Dim, parts: int) -> bool:
    """Whether `part` may be one of an even split; unknown where either is an extent (`work` checks it once bound)."""
    if isinstance(part, str) or isinstance(total, str):
        return True
    small, extra = divmod(total, parts)
    return part == small or (extra > 0 and part == small + 1)


def _check_own_share(
    instruction: Instruction, s: Sizes, part: Ref, shares: list[tuple[int, int]], group: str, axis: str
) -> None:
    index = s.group_index(group)
    held, share = s.shape(part)[0 if axis == "rows" else -1], shares[index][1]
    require(held == share, instruction, f"member {index} holds {held} {axis}, its even share is {share}")
