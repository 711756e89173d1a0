"""Binders of what Kimi K3 adds to a decoder: RESIDUAL_MIX, SITU_GATED and GROUPED_SITU_GATED."""

from __future__ import annotations

import numpy as np

from ...isa.meaning import ArrayMemory
from ...isa.residual import RESIDUAL_MIX
from ...isa.situ import GROUPED_SITU_GATED, SITU_GATED
from . import residual, situ
from .binding import Thunk, floats, integers, kernel_of
from .expert_binders import rows_of
from .threads import over_rows
from .vector_binders import rowwise

_OPERATIONS = 16  # what an element of SiTU costs beside an addition


@kernel_of(RESIDUAL_MIX)
def bind_residual_mix(i: RESIDUAL_MIX, memory: ArrayMemory) -> Thunk:
    """dst = the shares' sum of snapshots and x."""
    dst, snapshots, x = floats(i, memory, i.dst, i.snapshots, i.x)
    weight, query = (one.flat for one in floats(i, memory, i.weight, i.query))
    places = (dst.rows, dst.start, snapshots.rows, snapshots.start, snapshots.cols // x.cols, x.rows, x.start)
    arguments = (*places, weight, query, np.float32(i.eps))
    return rowwise(residual.residual_mix, arguments, x.count, 6 * x.count * (snapshots.cols + x.cols))


@kernel_of(SITU_GATED)
def bind_situ_gated(i: SITU_GATED, memory: ArrayMemory) -> Thunk:
    """dst = situ(gate, up)."""
    dst, x = floats(i, memory, i.dst, i.x)
    arguments = (dst.rows, dst.start, x.rows, x.start, dst.cols, np.float32(i.beta), np.float32(i.linear_beta))
    return rowwise(situ.situ_gated, arguments, dst.count, _OPERATIONS * dst.count * dst.cols)


@kernel_of(GROUPED_SITU_GATED)
def bind_grouped_situ_gated(i: GROUPED_SITU_GATED, memory: ArrayMemory) -> Thunk:
    """dst = situ(gate, up) over the rows that the counts say."""
    dst, x = floats(i, memory, i.dst, i.x)
    counts = integers(i, memory, i.counts)
    arguments = (dst.rows, dst.start, x.rows, x.start, dst.cols, np.float32(i.beta), np.float32(i.linear_beta))

    def run(first: int, last: int) -> int:
        return int(situ.situ_gated(*arguments, first, last))

    def thunk() -> None:
        rows = int(rows_of(i, counts, memory.number(i.at), i.experts, x.count).sum())
        over_rows(run, rows, _OPERATIONS * rows * dst.cols)

    return thunk
