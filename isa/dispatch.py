"""Instructions of expert layers whose tokens travel: counts of an exchange of rows, and rows sorted by expert and back.

A card sends its rows expert by expert, so those for one member of the group stand together. What comes stands member by
member and there expert by expert; `arriving` counts it: entry m * experts + e is how many rows of member m are for this
card's expert e.
"""

from __future__ import annotations

import numpy as np

from .counts import check_total, total_of
from .dtype import FP32
from .instruction import (
    Array,
    Instruction,
    Memory,
    Shapes,
    Sizes,
    bytes_of,
    known,
    require,
    require_apart,
    require_convertible,
    require_floats,
    require_rows,
)
from .operands import ExtentName, ExtentOut, In, Number, Out, Ref
from .work import MoveShape, Unit, VectorShape, Work


def _check_arriving(instruction: Instruction, t: Shapes, arriving: Ref, members: int, experts: int) -> None:
    kind, wanted = t.type_of(arriving), members * experts
    require(members > 0 and experts > 0, instruction, "members and experts must be 1 or more")
    require(str(kind) == f"int32[{wanted}]", instruction, f"arriving is {kind}, must be int32[{wanted}]")


class TALLY(Instruction, opcode=0x80, unit=Unit.VECTOR):
    """Counts of an exchange: rows to each member, rows from each member, and rows of each own expert over all members.

    Entry i of `sizes` is how many experts member i has; the rows for its experts are the next entries of `counts`.
    `rows` and the extent `local` are the sums of `arriving` over members, `sent` of `counts` over a member's experts,
    `received` of `arriving` over this card's.
    """

    rows: Out
    counts: In
    arriving: In
    sizes: ExtentName
    sent: ExtentOut
    received: ExtentOut
    local: ExtentOut
    members: int
    experts: int

    def check(self, t: Shapes) -> None:
        counts, rows = t.type_of(self.counts), t.type_of(self.rows)
        _check_arriving(self, t, self.arriving, self.members, self.experts)
        require(
            counts.dtype.name == "int32" and len(counts.shape) == 1,
            self,
            f"counts is {counts}, must be int32 [experts of all members]",
        )
        require(str(rows) == f"int32[{self.experts}]", self, f"rows is {rows}, must be int32[{self.experts}]")
        require(len({self.sent, self.received, self.local}) == 3, self, "sent, received and local must differ")
        require_apart(self, self.rows, self.counts, self.arriving)

    def work(self, s: Sizes) -> Work:
        self._sizes(s)
        return Work(
            Unit.VECTOR,
            ops=sum(s.shape(ref)[0] for ref in (self.counts, self.arriving)),
            read_bytes=bytes_of(s, self.counts, self.arriving),
            write_bytes=bytes_of(s, self.rows),
            dtype=FP32,  # lanes add 32-bit integers at the rate of fp32
            shape=VectorShape(self.members, self.experts, 2),
        )

    def _sizes(self, s: Sizes) -> tuple[int, ...]:
        sizes, total = s.extent(self.sizes), s.shape(self.counts)[0]
        require(
            len(sizes) == self.members and sum(sizes) == total and min(sizes) >= 0,
            self,
            f"{self.sizes} is {list(sizes)}, must share {total} experts out over {self.members} members",
        )
        return sizes

    def execute(self, m: Memory) -> None:
        counts, arriving = m.get(self.counts), m.get(self.arriving).reshape(self.members, self.experts)
        starts = np.cumsum([0, *self._sizes(m)])
        sent = [counts[first:last].sum() for first, last in zip(starts, starts[1:], strict=False)]
        m.put(self.rows, arriving.sum(axis=0))
        m.write_extent(self.sent, np.array(sent))
        m.write_extent(self.received, arriving.sum(axis=1))
        m.write_extent(self.local, arriving.sum(axis=0))


class REGROUP(Instruction, opcode=0x81, unit=Unit.DMA):
    """dst = the rows of x, which stand member by member, expert by expert instead; with `back`, the other way round.

    Rows of one expert keep the order of the members, and those of one member their own. Rows of dst beyond the last are
    left as they are. The extent `local` says how many rows each expert has.
    """

    dst: Out
    x: In
    arriving: In
    local: ExtentName
    members: int
    experts: int
    back: bool

    def check(self, t: Shapes) -> None:
        dst, x = t.type_of(self.dst), t.type_of(self.x)
        _check_arriving(self, t, self.arriving, self.members, self.experts)
        require(
            len(dst.shape) == 2 and len(x.shape) == 2 and dst.shape[1] == x.shape[1],
            self,
            f"dst is {dst} and x is {x}: must be [rows, columns] of equal columns",
        )
        require_convertible(self, t, self.dst, self.x)
        require_apart(self, self.dst, self.x, self.arriving)

    def work(self, s: Sizes) -> Work:
        rows, cols, local = min(s.shape(self.dst)[0], s.shape(self.x)[0]), s.shape(self.dst)[1], s.extent(self.local)[:]
        require(len(local) == self.experts, self, f"{self.local} has {len(local)} entries, must have {self.experts}")
        check_total(self, self.local, local, rows)
        total = total_of(local)
        row_bytes = s.type_of(self.x).dtype.bytes_of(cols)
        return Work(
            Unit.DMA,
            read_bytes=total * row_bytes + bytes_of(s, self.arriving),
            write_bytes=total * s.type_of(self.dst).dtype.bytes_of(cols),
            shape=MoveShape(total, row_bytes),
        )

    def execute(self, m: Memory) -> None:
        x, dst = m.get(self.x), m.get(self.dst).copy()
        order = grouped_order(m.get(self.arriving).reshape(self.members, self.experts))
        require(len(order) <= min(len(dst), len(x)), self, f"{len(order)} rows, and there are {min(len(dst), len(x))}")
        if self.back:
            dst[order] = x[: len(order)]
        else:
            dst[: len(order)] = x[order]
        m.put(self.dst, dst)


def grouped_order(arriving: Array) -> Array:
    """For each row that is sorted by expert, where it stands by member; `arriving` is [members, experts]."""
    flat = arriving.reshape(-1)
    starts = np.cumsum(flat) - flat
    runs = [
        np.arange(starts[cell], starts[cell] + flat[cell])
        for expert in range(arriving.shape[1])
        for cell in range(expert, flat.size, arriving.shape[1])
    ]
    return np.concatenate(runs).astype(np.int64)


class CHOOSE_REPLICA(Instruction, opcode=0x82, unit=Unit.VECTOR):
    """slots = where the chosen experts stand: an expert may stand in several slots, which tokens take in turn.

    Row e of `table` is how many slots expert e has, then these slots. Token t takes the one at (t // parts + shift),
    counted round. The counts of all parts, entry p * total + slot, go to `counts` and to the extent.
    """

    slots: Out
    counts: Out
    ids: In
    table: In
    extent: ExtentOut
    parts: int
    total: int
    shift: Number

    def check(self, t: Shapes) -> None:
        slots, ids, table, counts = (t.type_of(ref) for ref in (self.slots, self.ids, self.table, self.counts))
        require(
            slots == ids and ids.dtype.name == "int32" and len(ids.shape) == 2,
            self,
            f"ids is {ids} and slots {slots}: must be int32 [tokens, chosen]",
        )
        require(
            table.dtype.name == "int32" and len(table.shape) == 2 and table.shape[1] not in (0, 1),
            self,
            f"table is {table}, must be int32 [experts, 1 + most slots of one]",
        )
        require(self.parts > 0 and self.total > 0 and known(self.shift) >= 0, self, "parts and total must be 1 or more")
        wanted = self.parts * self.total
        require(str(counts) == f"int32[{wanted}]", self, f"counts is {counts}, must be int32[{wanted}]")
        require_apart(self, self.slots, self.ids, self.table)

    def work(self, s: Sizes) -> Work:
        tokens, chosen = s.shape(self.ids)
        return Work(
            Unit.VECTOR,
            ops=4 * tokens * chosen,
            read_bytes=bytes_of(s, self.ids, self.table),
            write_bytes=bytes_of(s, self.slots, self.counts),
            dtype=FP32,  # lanes work on 32-bit integers at the rate of fp32
            shape=VectorShape(tokens, chosen),
        )

    def execute(self, m: Memory) -> None:
        ids, table = m.get(self.ids), m.get(self.table)
        require_rows(self, ids, len(table), "expert")
        turn = np.arange(len(ids))[:, None] // self.parts + m.number(self.shift)
        slots = table[ids, 1 + turn % table[ids, 0]]
        counts = np.zeros((self.parts, self.total), np.int64)
        np.add.at(counts, (np.arange(len(ids))[:, None] % self.parts, slots), 1)
        m.put(self.slots, slots)
        m.put(self.counts, counts.reshape(-1))
        m.write_extent(self.extent, counts.reshape(-1))


class COPY_CHOICES(Instruction, opcode=0x83, unit=Unit.VECTOR):
    """Every choice as many times as an expert is cut over groups of cards: ids and weights of each cut, side by side.

    Entry c of row e of `table` is the number of cut c of expert e. Column j * cuts + c of `ids` is that of choice j,
    with the weight of the choice. The counts of all cuts go to `counts` and to the extent.
    """

    ids: Out
    weights: Out
    counts: Out
    chosen: In
    shares: In
    table: In
    extent: ExtentOut

    def check(self, t: Shapes) -> None:
        ids, weights, chosen, shares, table = (
            t.type_of(ref) for ref in (self.ids, self.weights, self.chosen, self.shares, self.table)
        )
        require(
            table.dtype.name == "int32" and len(table.shape) == 2 and all(isinstance(dim, int) for dim in table.shape),
            self,
            f"table is {table}, must be int32 [experts, cuts]",
        )
        experts, cuts = (int(dim) for dim in table.shape)
        require(
            chosen.dtype.name == "int32" and len(chosen.shape) == 2 and chosen.shape == shares.shape,
            self,
            f"chosen is {chosen} and shares {shares}: must be int32 and floats [tokens, chosen]",
        )
        wanted = (chosen.shape[0], int(chosen.shape[1]) * cuts)
        require(
            ids.dtype.name == "int32" and ids.shape == weights.shape == wanted,
            self,
            f"ids is {ids} and weights {weights}: must be [{wanted[0]}, {wanted[1]}]",
        )
        require_floats(self, t, self.weights, self.shares)
        counts, total = t.type_of(self.counts), experts * cuts
        require(str(counts) == f"int32[{total}]", self, f"counts is {counts}, must be int32[{total}]")

    def work(self, s: Sizes) -> Work:
        tokens, copies = s.shape(self.ids)
        return Work(
            Unit.VECTOR,
            ops=2 * tokens * copies,
            read_bytes=bytes_of(s, self.chosen, self.shares, self.table),
            write_bytes=bytes_of(s, self.ids, self.weights, self.counts),
            dtype=FP32,
            shape=VectorShape(tokens, copies),
        )

    def execute(self, m: Memory) -> None:
        chosen, table = m.get(self.chosen), m.get(self.table)
        require_rows(self, chosen, len(table), "expert")
        ids = table[chosen].reshape(len(chosen), -1)
        counts = np.bincount(ids.reshape(-1), minlength=table.size)
        m.put(self.ids, ids)
        m.put(self.weights, np.repeat(m.get(self.shares), table.shape[1], axis=1))
        m.put(self.counts, counts)
        m.write_extent(self.extent, counts)
