"""Binders of expert layers whose tokens travel: TALLY and REGROUP."""

from __future__ import annotations

import numpy as np

from ...isa.dispatch import CHOOSE_REPLICA, COPY_CHOICES, REGROUP, TALLY
from ...isa.errors import ProgramError
from ...isa.meaning import ArrayMemory
from . import dispatch, moves
from .binding import Thunk, floats, integers, kernel_of, operand
from .dma_binders import rows_between
from .threads import over_rows


@kernel_of(TALLY)
def bind_tally(i: TALLY, memory: ArrayMemory) -> Thunk:
    """rows and three extents = the counts of an exchange."""
    i.work(memory)  # which checks the sizes
    rows, counts, arriving = (integers(i, memory, ref) for ref in (i.rows, i.counts, i.arriving))
    sizes = np.array(memory.extent(i.sizes), np.int64)
    sent, received = (memory.written_array(name, i.members) for name in (i.sent, i.received))
    local = memory.written_array(i.local, i.experts)

    def thunk() -> None:
        dispatch.tally(rows, counts, arriving, sizes, sent, received, local)

    return thunk


@kernel_of(CHOOSE_REPLICA)
def bind_choose_replica(i: CHOOSE_REPLICA, memory: ArrayMemory) -> Thunk:
    """slots and counts of the chosen experts; the extent holds the counts once it has ended."""
    slots, ids, table = (operand(i, memory, ref) for ref in (i.slots, i.ids, i.table))
    counts = integers(i, memory, i.counts)
    written = memory.written_array(i.extent, i.parts * i.total)
    places = (slots.rows, slots.start, counts, ids.rows, ids.start, ids.cols, table.rows, table.start)
    arguments = (*places, i.parts, i.total, memory.number(i.shift))

    def thunk() -> None:
        bad = dispatch.choose_replica(*arguments)
        if bad >= 0:
            raise ProgramError(
                f"choose_replica: ids[{bad}] is {ids.view[bad].tolist()}, must be 0 to {table.count - 1} (in: {i})"
            )
        written[:] = counts

    return thunk


@kernel_of(COPY_CHOICES)
def bind_copy_choices(i: COPY_CHOICES, memory: ArrayMemory) -> Thunk:
    """ids, weights and counts of every cut of the chosen experts; the extent holds the counts once it has ended."""
    ids, chosen, table = (operand(i, memory, ref) for ref in (i.ids, i.chosen, i.table))
    weights, shares = floats(i, memory, i.weights, i.shares)
    counts = integers(i, memory, i.counts)
    written = memory.written_array(i.extent, len(counts))
    given = (chosen.rows, chosen.start, chosen.cols, shares.rows, shares.start, table.rows, table.start, table.cols)
    arguments = (ids.rows, ids.start, weights.rows, weights.start, counts, *given)

    def thunk() -> None:
        bad = dispatch.copy_choices(*arguments)
        if bad >= 0:
            raise ProgramError(
                f"copy_choices: chosen[{bad}] is {chosen.view[bad].tolist()}, must be 0 to {table.count - 1} (in: {i})"
            )
        written[:] = counts

    return thunk


@kernel_of(REGROUP)
def bind_regroup(i: REGROUP, memory: ArrayMemory) -> Thunk:
    """dst = rows of x by expert, or back by member."""
    dst, x = rows_between(i, memory, i.dst, i.x)
    arriving = integers(i, memory, i.arriving)
    places = np.empty(min(dst.count, x.count), np.int32)
    moved = (dst.rows, dst.start, x.rows, x.start, dst.cols)

    def forward(first: int, last: int) -> int:
        return int(moves.gather(*moved, places, first, last))

    def thunk() -> None:
        rows = dispatch.order(places, arriving, i.members, i.experts)
        if rows < 0:
            raise ProgramError(f"regroup: {-1 - rows} rows, and there is room for {places.size} (in: {i})")
        if i.back:
            moves.scatter(*moved, places[:rows])
        else:
            over_rows(forward, rows, rows * dst.cols)

    return thunk
