"""The tensor unit: matrix products as tiles over the cores."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from ...isa.dtype import DType
from ...isa.errors import ConfigError, ProgramError, UnsupportedError
from ...isa.sparse import CHOICE_OPS, SCORE_OPS
from ...isa.work import GroupedShape, IndexShape, MatmulShape, StateShape, Unit, Work
from ..spec import CardSpec
from ..tuning import ProductTuning
from .rates import PS_PER_S, Bound, UnitDemand, demand_of, ps_for
from .sustained import clock_fraction
from .systolic import systolic_plan
from .tiles import SLABS, TILES, search

SCORE_BYTES = 4  # index scores are fp32
MOST_PRODUCTS = 1 << 56  # beyond it the 64-bit byte counts of a tile schedule could overflow
_Geometry = MatmulShape | GroupedShape | IndexShape


class TilePlan(NamedTuple):
    """How a matrix product is dealt over the cores: its tile, K slab and parts of K, and what that costs.

    `tensor_cycles` are the array's own, over all waves; `flow_ps` includes waiting for operands, and what begins and
    ends tiles; `exposed_cycles` are the first load, the last store and the sum over parts, which overlap nothing. A
    plan `waits` where operands of a tile come slower than the array takes them.
    """

    time_ps: float
    tile_rows: int
    tile_columns: int
    slab: int
    parts: int
    waves: int
    tensor_cycles: int
    flow_ps: float
    l2_bytes: int
    exposed_cycles: int
    waits: bool


class _Machine(NamedTuple):
    """A card as the Numba schedules read it, for one element type."""

    core: np.ndarray[Any, Any]
    ps_per_cycle: float
    ps_per_l2_byte: float


@lru_cache(maxsize=256)
def machine_of(card: CardSpec, dtype: DType) -> _Machine:
    if dtype.name not in card.tensor.rate:
        native = ", ".join(card.native_dtypes(Unit.TENSOR))
        raise UnsupportedError(
            f"{card.name} has no tensor unit for {dtype.name}; native: {native}. Cast the operands, or give the card a "
            f"tensor.rate.{dtype.name}"
        )
    depth, step = card.tensor.steps(dtype.name)
    core = [
        card.tensor.rows, card.tensor.columns, depth, step, card.tensor.fill_cycles, card.tensor.slab_cycles,
        card.cores.count, card.cores.load_bytes_per_cycle, card.sram_bytes("operand"), card.sram_bytes("accumulator"),
        card.cores.multicast, card.vector.lanes_of(4), card.vector.sync_cycles,
        card.vector.exponentials_per_cycle,
    ]  # fmt: skip
    l2_bytes_per_s = card.l2.bandwidth_bytes_per_s if card.l2 else card.hbm.attainable_bytes_per_s
    return _Machine(np.array(core, dtype=np.int64), PS_PER_S / card.clock_hz, PS_PER_S / l2_bytes_per_s)


def tuning_of(card: CardSpec, shape: MatmulShape | GroupedShape) -> ProductTuning:
    """The constants of the library's products of this kind."""
    if isinstance(shape, StateShape):
        return _streamed(card.tuning.grouped)
    return card.tuning.matmul if isinstance(shape, MatmulShape) else card.tuning.grouped


@lru_cache(maxsize=64)
def _streamed(tuning: ProductTuning) -> ProductTuning:
    """The constants where a tile waits for nothing: what it loads and stores is hidden behind others on its core.

    Stores of states are no results of tiles, whose empty rows would be charged for them; HBM counts their bytes.
    """
    return tuning.model_copy(update={"wait": 0.0, "store": 0.0, "load": 1.0})


@lru_cache(maxsize=256)
def knobs_of(card: CardSpec, tuning: ProductTuning) -> np.ndarray[Any, Any]:
    """The constants as the tile schedules read them."""
    return np.array([
        tuning.wait * card.hbm.latency_ps, tuning.slabs, tuning.store, tuning.load, tuning.smoothing, tuning.spill,
        tuning.split_cycles, tuning.rereads,
    ])  # fmt: skip


def matmul_plan(work: Work, card: CardSpec, *, from_hbm: bool = True) -> TilePlan:
    """The tile schedule of one or several matrix products; ConfigError when the card's SRAM holds no tile at all.

    Without `from_hbm` operands and result lie in L2, and HBM bounds nothing.
    """
    shape = work.shape
    assert isinstance(shape, MatmulShape | GroupedShape) and work.dtype is not None, f"{work} is no matrix product"
    rows = _rows(shape)
    if sum(rows) * shape.n * shape.k > MOST_PRODUCTS:
        raise UnsupportedError(
            f"{shape} has more than 2^{MOST_PRODUCTS.bit_length() - 1} products; split the instruction"
        )
    machine, tuning = machine_of(card, work.dtype), tuning_of(card, shape)
    hbm_bytes = work.read_bytes + work.write_bytes if from_hbm else 0
    hbm_ps = ps_for(hbm_bytes, card.hbm.attainable_bytes_per_s) / tuning.hbm
    if card.tensor.dataflow is not None:
        return _systolic(rows, shape, work.dtype, hbm_ps, machine, card)
    found = search(
        np.array(rows, dtype=np.int64), shape.n, shape.k, work.dtype.bits, work.write_bytes, hbm_ps,
        machine.ps_per_cycle, machine.ps_per_l2_byte, machine.core, knobs_of(card, tuning), TILES, SLABS,
    )  # fmt: skip
    if not found[1]:
        raise ConfigError(
            f"the sram of {card.name} holds no {TILES[0][0]} x {TILES[0][1]} x {SLABS[-1]} tile of {work.dtype.name} "
            "twice over; raise the capacity_bytes of its operand and accumulator levels"
        )
    return TilePlan(*found)


def _systolic(
    rows: tuple[int, ...], shape: MatmulShape | GroupedShape, dtype: DType, hbm_ps: float, machine: _Machine,
    card: CardSpec,
) -> TilePlan:  # fmt: skip
    """The plan of a card whose tensor units are systolic arrays, where a tile is an array full."""
    apart, copies = (rows[:1], len(rows)) if isinstance(shape, MatmulShape) else (rows, 1)
    asked = systolic_plan(np.array(apart, dtype=np.int64), copies, shape.n, shape.k, dtype.bits, card, dtype.name)
    flow_ps = asked.flow_cycles * machine.ps_per_cycle
    time_ps = max(flow_ps, hbm_ps, asked.l2_bytes * machine.ps_per_l2_byte)
    return TilePlan(
        time_ps, card.tensor.rows, card.tensor.columns, shape.k, 1, 1, asked.tensor_cycles, flow_ps,
        asked.l2_bytes, 0, asked.flow_cycles > asked.tensor_cycles,
    )  # fmt: skip


def tensor_demand(work: Work, card: CardSpec) -> UnitDemand:
    """What a matrix product or a choice of tokens asks of a card; ProgramError for any other geometry."""
    if work.dtype is None or not isinstance(work.shape, _Geometry):
        raise ProgramError(
            f"a tensor instruction needs a dtype and a matmul or index shape, not {work.dtype} and {work.shape}"
        )
    if isinstance(work.shape, IndexShape):
        return _index_demand(work, work.shape, card)
    return _product_demand(work, work.shape, work.dtype, card)


def _product_demand(work: Work, shape: MatmulShape | GroupedShape, dtype: DType, card: CardSpec) -> UnitDemand:
    """Products alone, at the clock that the card sustains when they repeat."""
    machine, tuning = machine_of(card, dtype), tuning_of(card, shape)
    num_bytes = work.read_bytes + work.write_bytes
    if not (sum(_rows(shape)) and shape.n and shape.k):
        return demand_of(card, launch_ps(card, tuning), 0, "hbm", hbm=num_bytes)
    plan = matmul_plan(work, card)
    if card.l2 is None:
        num_bytes = max(num_bytes, plan.l2_bytes)
    compute_ps = 0.0 if plan.waits else plan.flow_ps
    bound = bound_of(compute_ps, plan.flow_ps, plan.l2_bytes * machine.ps_per_l2_byte, num_bytes, card)
    fraction = clock_fraction(card, dtype, work.ops, num_bytes, plan.time_ps, tuning.power)
    alone_ps = math.ceil(plan.time_ps / fraction)
    asked = demand_of(card, launch_ps(card, tuning), alone_ps, bound, tensor=plan.tensor_cycles, hbm=num_bytes)
    return asked if fraction == 1.0 else replace(asked, clock_fraction=fraction)


def launch_ps(card: CardSpec, tuning: ProductTuning) -> int:
    """Picoseconds before the first tile computes: the card's dispatch as the library uses it, and a load from HBM."""
    return round(card.dispatch.tensor_ps * tuning.launch) + card.hbm.latency_ps


def _rows(shape: MatmulShape | GroupedShape) -> tuple[int, ...]:
    """Rows of each product."""
    return (shape.m,) * shape.batch if isinstance(shape, MatmulShape) else shape.rows


def bound_of(compute_ps: float, flow_ps: float, l2_ps: float, hbm_bytes: int, card: CardSpec) -> Bound:
    hbm_ps = ps_for(hbm_bytes, card.hbm.attainable_bytes_per_s)
    longest = max(flow_ps, l2_ps, hbm_ps)
    if longest == hbm_ps and hbm_ps > compute_ps:
        return "hbm"
    return "compute" if longest == compute_ps else "sram"


def _index_demand(work: Work, shape: IndexShape, card: CardSpec) -> UnitDemand:
    """Products of queries and index keys, summed over heads by the lanes meanwhile; then the choice among the scores.

    Sequences with as many choosing queries are one product; its keys are those a query sees on average. The scores, in
    fp32, are written and read in L2, or in HBM where that cannot hold them.
    """
    assert work.dtype is not None
    fixed_ps, num_bytes = launch_ps(card, card.tuning.grouped), work.read_bytes + work.write_bytes
    if not shape.scored:
        return demand_of(card, fixed_ps, 0, "hbm", hbm=num_bytes)
    machine = machine_of(card, work.dtype)
    alike: dict[int, list[int]] = {}
    for queries, pairs, _ in shape.scored:
        alike.setdefault(queries, []).append(-(-pairs // queries))
    total = sum(pairs for _, pairs, _ in shape.scored)
    plans = [
        matmul_plan(
            Work(Unit.TENSOR, dtype=work.dtype, write_bytes=SCORE_BYTES * queries * sum(keys),
                 shape=GroupedShape(tuple(keys), queries * shape.num_heads, shape.dim)),
            card,
            from_hbm=False,
        )
        for queries, keys in alike.items()
    ]  # fmt: skip
    lanes = card.cores.count * card.vector.lanes_of(SCORE_BYTES)
    summing, choosing = -(-SCORE_OPS * total * shape.num_heads // lanes), -(-CHOICE_OPS * total // lanes)
    products_ps, summing_ps = sum(plan.time_ps for plan in plans), summing * machine.ps_per_cycle
    choosing_ps = max(choosing * machine.ps_per_cycle, SCORE_BYTES * total * machine.ps_per_l2_byte)
    if card.l2 is None or SCORE_BYTES * total > card.l2.capacity_bytes:
        num_bytes += 2 * SCORE_BYTES * total
    flow_ps = max(sum(plan.flow_ps for plan in plans), summing_ps)
    compute_ps = 0.0 if any(plan.waits for plan in plans) else flow_ps
    bound = bound_of(
        compute_ps, flow_ps, sum(plan.l2_bytes for plan in plans) * machine.ps_per_l2_byte, num_bytes, card
    )
    return demand_of(
        card,
        fixed_ps,
        math.ceil(max(products_ps, summing_ps) + choosing_ps),
        bound,
        tensor=sum(plan.tensor_cycles for plan in plans),
        vector=summing + choosing,
        hbm=num_bytes,
    )
