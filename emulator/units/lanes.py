"""Demands of one instruction on many cards at once, whose Work differs in its numbers alone: the units' rules in lanes.

A Work in lanes holds arrays of one value a card in place of numbers. Each rule here is that of the unit's own file
(`dma`, `vector`, `tensor`) over arrays; tests hold the two equal.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ...isa.work import GroupedShape, MoveShape, Unit, VectorShape, Work
from ..calendar.solver import Ints
from ..calendar.wide import rounded_up
from ..span import BOUNDS
from ..spec import CardSpec
from .rates import LONGEST_PS, PS_PER_S, capacities
from .sustained import clock_fraction
from .tensor import MOST_PRODUCTS, knobs_of, launch_ps, machine_of, tuning_of
from .tiles import SLABS, TILES, search_lanes
from .vector import MAP_OPS, MIN_LANE_TRIPS, reduce_ps, streams_of

COMPUTE, HBM, SRAM, DISPATCH = (BOUNDS.index(name) for name in ("compute", "hbm", "sram", "dispatch"))


class LaneDemand(NamedTuple):
    """What an instruction asks in every lane, as `rates.UnitDemand`; an amount may be 0, a bound is its code."""

    fixed_ps: int
    alone_ps: Ints
    amounts: dict[str, Ints]
    bounds: Ints
    clock_fraction: Any = 1.0


def lane_demand(work: Work, card: CardSpec, lanes: int) -> LaneDemand | None:
    """The demand of a Work in so many lanes, of a kind that can be in lanes; None for what a lane alone must refuse."""
    reads, writes = (_wide(value, lanes) for value in (work.read_bytes, work.write_bytes))
    try:
        if work.unit is Unit.DMA and isinstance(work.shape, MoveShape):
            return _dma(work.shape, reads, writes, card, lanes)
        if work.unit is Unit.VECTOR and isinstance(work.shape, VectorShape):
            return _vector(work, work.shape, reads + writes, card, lanes)
        if work.unit is Unit.TENSOR and isinstance(work.shape, GroupedShape):
            return _grouped(work, work.shape, reads, writes, card)
    except OverflowError:
        return None
    return None


def _wide(value: Any, lanes: int) -> Ints:
    return np.broadcast_to(np.asarray(value, np.int64), (lanes,))


def _ceil(a: Any, b: Any) -> Any:
    return -(-a // b)


def _demand(card: CardSpec, fixed_ps: int, alone_ps: Ints, bounds: Any, **amounts: Ints) -> LaneDemand | None:
    """As `rates.demand_of`."""
    capacity = capacities(card)
    for kind, amount in amounts.items():
        alone_ps = np.maximum(alone_ps, rounded_up(amount, PS_PER_S, capacity[kind]))
    if alone_ps.max(initial=0) > LONGEST_PS:
        return None
    return LaneDemand(fixed_ps, alone_ps, amounts, np.where(fixed_ps > alone_ps, DISPATCH, bounds))


def _dma(shape: MoveShape, reads: Ints, writes: Ints, card: CardSpec, lanes: int) -> LaneDemand | None:
    fixed_ps = card.dispatch.dma_ps + card.dma.latency_ps + card.hbm.latency_ps
    bursts = _ceil(shape.row_bytes, card.dma.granularity_bytes)
    wasted = _wide(shape.rows, lanes) * (bursts * card.dma.granularity_bytes - shape.row_bytes)
    num_bytes, payload = reads + writes + wasted, np.maximum(reads, writes) + wasted
    cycles = _ceil(payload, card.dma.bytes_per_cycle)
    hbm_ps = rounded_up(num_bytes, PS_PER_S, card.hbm.attainable_bytes_per_s)
    engine_ps = rounded_up(cycles, PS_PER_S, card.clock_hz)
    bounds = np.where(hbm_ps >= engine_ps, HBM, COMPUTE)
    return _demand(card, fixed_ps, np.maximum(hbm_ps, engine_ps), bounds, dma=cycles, hbm=num_bytes)


def _vector(work: Work, shape: VectorShape, num_bytes: Ints, card: CardSpec, lanes: int) -> LaneDemand | None:
    if work.dtype is None or work.dtype.name not in card.vector.dtypes:
        return None
    fixed_ps = card.dispatch.vector_ps + card.hbm.latency_ps
    rows, cols = _wide(shape.rows, lanes), shape.cols
    empty = (rows == 0) | (cols == 0)
    rows = np.maximum(rows, 1)
    width = card.vector.lanes_of(_ceil(work.dtype.bits, 8))
    spread = np.maximum(1, np.minimum(card.cores.count // rows, cols // (width * MIN_LANE_TRIPS)))
    whole, whole_load = _vector_cycles(work, shape, num_bytes, rows, card, width, np.ones_like(rows))
    split, split_load = _vector_cycles(work, shape, num_bytes, rows, card, width, spread)
    better = np.maximum(split, split_load) < np.maximum(whole, whole_load)
    cycles, load = np.where(better, split, whole), np.where(better, split_load, whole_load)
    cycles, load = np.where(empty, 0, cycles), np.where(empty, 0, load)
    compute_ps, load_ps = (rounded_up(count, PS_PER_S, card.clock_hz) for count in (cycles, load))
    mapped_ps, gated_ps, reduced_ps = (rounded_up(num_bytes, PS_PER_S, per_s) for per_s in streams_of(card))
    reduces = (shape.passes > 1) & ~empty
    hbm_ps = np.where(_wide(work.ops, lanes) > MAP_OPS * rows * cols, gated_ps, mapped_ps)
    hbm_ps = np.where(empty, 0, np.where(reduces, reduced_ps, hbm_ps))
    longest = np.maximum(np.maximum(compute_ps, load_ps), hbm_ps)
    bounds = np.where(longest == hbm_ps, HBM, np.where(longest == compute_ps, COMPUTE, SRAM))
    longest = longest + np.where(reduces, reduce_ps(card), 0)
    return _demand(card, fixed_ps, longest, bounds, vector=cycles, hbm=num_bytes)


def _vector_cycles(
    work: Work, shape: VectorShape, num_bytes: Ints, rows: Ints, card: CardSpec, width: int, parts: Ints
) -> tuple[Ints, Ints]:
    """As `vector._cycles`."""
    passes = shape.passes
    trips = passes * _ceil(shape.cols, width * parts)
    operations = _ceil(work.ops, rows * parts * width)
    row_cycles = np.maximum(trips, operations) + passes * card.vector.row_cycles
    joins = np.where(parts > 1, (passes - 1) * card.vector.sync_cycles, 0)
    active = np.minimum(card.cores.count, rows * parts)
    load: Ints = _ceil(num_bytes, active * card.cores.load_bytes_per_cycle)
    return _ceil(rows * parts, card.cores.count) * row_cycles + joins, load


def _grouped(work: Work, shape: GroupedShape, reads: Ints, writes: Ints, card: CardSpec) -> LaneDemand | None:
    if work.dtype is None or work.dtype.name not in card.tensor.rate or card.tensor.dataflow is not None:
        return None
    machine, tuning = machine_of(card, work.dtype), tuning_of(card, shape)
    rows, num_bytes = np.stack(shape.rows, axis=1), reads + writes
    if int(rows.sum(axis=1).max(initial=0)) * shape.n * shape.k > MOST_PRODUCTS:
        return None
    empty = (rows.sum(axis=1) == 0) | (shape.n == 0) | (shape.k == 0)
    hbm_ps = rounded_up(num_bytes, PS_PER_S, card.hbm.attainable_bytes_per_s)
    times, plans = search_lanes(
        rows, empty, shape.n, shape.k, work.dtype.bits, np.ascontiguousarray(writes), hbm_ps / tuning.hbm,
        machine.ps_per_cycle, machine.ps_per_l2_byte, machine.core, knobs_of(card, tuning), TILES, SLABS,
    )  # fmt: skip
    if not (plans[~empty, 0] > 0).all():
        return None
    tensor, l2_bytes = plans[:, 1], plans[:, 2]
    own_ps, flow_ps = times
    if card.l2 is None:
        num_bytes = np.maximum(num_bytes, l2_bytes)
        hbm_ps = rounded_up(num_bytes, PS_PER_S, card.hbm.attainable_bytes_per_s)
    compute_ps = np.where(plans[:, 3], 0.0, flow_ps)
    longest = np.maximum(np.maximum(flow_ps, l2_bytes * machine.ps_per_l2_byte), hbm_ps)
    bounds = np.where((longest == hbm_ps) & (hbm_ps > compute_ps), HBM, np.where(longest == compute_ps, COMPUTE, SRAM))
    asked = zip(_wide(work.ops, len(rows)).tolist(), num_bytes.tolist(), own_ps.tolist(), strict=True)
    clock = np.array([clock_fraction(card, work.dtype, ops, moved, alone, tuning.power) for ops, moved, alone in asked])
    alone_ps = np.where(empty, 0, np.ceil(own_ps / clock)).astype(np.int64)
    bounds = np.where(empty, HBM, bounds)
    found = _demand(card, launch_ps(card, tuning), alone_ps, bounds, tensor=tensor, hbm=num_bytes)
    return None if found is None else found._replace(clock_fraction=clock)
