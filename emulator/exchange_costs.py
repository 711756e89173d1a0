"""What an exchange takes when it runs alone: its wires, and the memories and reducing units at its ends."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from ..interconnect.collectives.amounts import Measured, StepProfile
from ..interconnect.collectives.plan import Ints, Plan
from ..interconnect.collectives.protocol import Protocol
from ..isa.dtype import DType
from ..isa.work import Unit, Work
from .span import Bound
from .spec import CardSpec
from .units.link import reduction_cycles
from .units.rates import ps_for


class Alone(NamedTuple):
    """Picoseconds that hold the queue and no rate, picoseconds that flow, and what holds the exchange."""

    fixed_ps: int
    alone_ps: int
    bound: Bound


def alone_of(whole: Measured, kind: str, dtype: DType | None, card: CardSpec, dispatch_ps: int) -> Alone:
    """What an exchange between equal cards takes alone, after a card's link dispatch of `dispatch_ps`."""
    dispatch_ps = issue_ps(dispatch_ps, whole.plan, whole.protocol)
    excess_ps = _excess_ps(whole.steps, dtype, card)
    latency_ps, alone_ps = whole.latency_ps, whole.flow_ps + excess_ps
    bound: Bound = "link"
    if kind == "barrier":
        bound = "dependency"
    elif dispatch_ps > latency_ps + alone_ps:
        bound = "dispatch"
    elif excess_ps > latency_ps:
        memory_ps, reduction_ps = ends_ps(whole, dtype, card)
        bound = "hbm" if memory_ps >= reduction_ps else "compute"
    return Alone(dispatch_ps + latency_ps, alone_ps, bound)


def issue_ps(dispatch_ps: int, plan: Plan, protocol: Protocol) -> int:
    """What a card's dispatch adds to a library's own start, which holds its launch: by how much it is longer."""
    return max(0, dispatch_ps - protocol.start_ps) if plan.num_steps else dispatch_ps


def ends_ps(measured: Measured, dtype: DType | None, card: CardSpec) -> tuple[int, int]:
    """Picoseconds that the busiest member's HBM takes, and its reductions."""
    num_bytes, cycles = (int(column.max()) for column in at_ends(measured, dtype, card))
    return ps_for(num_bytes, card.hbm.attainable_bytes_per_s), ps_for(cycles, card.clock_hz)


def at_ends(measured: Measured, dtype: DType | None, card: CardSpec) -> tuple[Ints, Ints]:
    """HBM bytes and reduction cycles of members: each reads what it sends or adds to, and writes what arrives."""
    work = Work(Unit.LINK, dtype=dtype)
    sizes, which = np.unique(measured.members[2], return_inverse=True)
    cycles = [reduction_cycles(work, reduced, card) if reduced else 0 for reduced in sizes.tolist()]
    return measured.members.sum(axis=0), np.array(cycles, np.int64)[which]


def _excess_ps(steps: StepProfile, dtype: DType | None, card: CardSpec) -> int:
    """How much longer than the links the members' ends hold the steps, all added up."""
    work, bandwidth = Work(Unit.LINK, dtype=dtype), card.hbm.attainable_bytes_per_s
    rows = (steps.flow_ps, steps.moved_bytes, steps.reduced_bytes)
    times = Counter(zip(*(row.tolist() for row in rows), strict=True))  # most steps are alike
    total = 0
    for (flow_ps, moved, reduced), count in times.items():
        cycles = reduction_cycles(work, reduced, card) if reduced else 0
        held_ps = max(ps_for(moved, bandwidth), ps_for(cycles, card.clock_hz))
        total += count * max(0, held_ps - flow_ps)
    return total
