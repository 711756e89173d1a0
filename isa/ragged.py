"""Collectives whose members hold uneven numbers of rows: what counts them is an extent."""

from __future__ import annotations

from .errors import ProgramError
from .instruction import Instruction, Shapes, Sizes, elements, require, require_apart
from .operands import ExtentName, GroupName, In, Out
from .work import CollectiveShape, Unit, Work


class ALL_GATHER_ROWS(Instruction, opcode=0x7B, unit=Unit.LINK):
    """dst on every member = the members' src one after the other, `counts[i]` rows of member i; the same on each."""

    dst: Out
    src: In
    group: GroupName
    counts: ExtentName

    def check(self, t: Shapes) -> None:
        full, own = t.type_of(self.dst), t.type_of(self.src)
        t.group_size(self.group)
        require(full.dtype == own.dtype, self, f"dtypes differ: {full} and {own}")
        require(full.shape[1:] == own.shape[1:], self, f"rows of {full} and {own} differ")
        require_apart(self, self.dst, self.src)

    def rows(self, s: Sizes) -> tuple[int, ...]:
        """Rows of every member; ProgramError unless they are this member's own, and dst's together."""
        counts, size = s.extent(self.counts), s.group_size(self.group)
        held, whole, own = s.shape(self.src)[0], s.shape(self.dst)[0], s.group_index(self.group)
        if len(counts) != size or min(counts) < 0 or sum(counts) != whole or counts[own] != held:
            raise ProgramError(
                f"{self.mnemonic}: {self.counts} is {list(counts)} for {size} members, of which member {own} holds "
                f"{held} rows, and dst {whole} (in: {self})"
            )
        return counts

    def work(self, s: Sizes) -> Work:
        dtype, row = s.type_of(self.src).dtype, elements(s.shape(self.src)[1:])
        parts = tuple(dtype.bytes_of(count * row) for count in self.rows(s))
        return Work(Unit.LINK, dtype=dtype, shape=CollectiveShape("all_gather", self.group, parts, dtype))
