"""The vector unit: rows over cores, a row over lanes, a long row over several cores."""

from __future__ import annotations

from functools import lru_cache

from ...isa.errors import ProgramError, UnsupportedError
from ...isa.work import Unit, VectorShape, Work
from ..spec import CardSpec
from .rates import Bound, UnitDemand, demand_of, ps_for

MAP, GATE, REDUCE = range(3)  # kinds of kernels
MAP_OPS = 2  # operations an element that a kernel does beside its loads and stores at no cost
MIN_LANE_TRIPS = 4  # a row is shared by cores only while each still makes this many trips through its lanes


def vector_demand(work: Work, card: CardSpec) -> UnitDemand:
    """What a row-wise instruction asks of a card. UnsupportedError for a dtype the lanes do not compute in."""
    if work.dtype is None or not isinstance(work.shape, VectorShape):
        raise ProgramError(f"a vector instruction needs a dtype and a vector shape, not {work.dtype} and {work.shape}")
    if work.dtype.name not in card.vector.dtypes:
        raise UnsupportedError(
            f"{card.name} has no vector lanes for {work.dtype.name}; "
            f"native: {', '.join(card.native_dtypes(Unit.VECTOR))}"
        )
    fixed_ps = card.dispatch.vector_ps + card.hbm.latency_ps
    num_bytes = work.read_bytes + work.write_bytes
    shape = work.shape
    if not shape.rows or not shape.cols:
        return demand_of(card, fixed_ps, 0, "hbm", hbm=num_bytes)
    lanes = card.vector.lanes_of(-(-work.dtype.bits // 8))
    spread = max(1, min(card.cores.count // shape.rows, shape.cols // (lanes * MIN_LANE_TRIPS)))
    cycles, load_cycles = min((_cycles(work, shape, card, lanes, parts) for parts in (1, spread)), key=max)
    compute_ps, load_ps = ps_for(cycles, card.clock_hz), ps_for(load_cycles, card.clock_hz)
    hbm_ps = ps_for(num_bytes, streams_of(card)[kernel_of(work, shape)])
    longest = max(compute_ps, load_ps, hbm_ps)
    bound: Bound = "hbm" if longest == hbm_ps else "compute" if longest == compute_ps else "sram"
    if shape.passes > 1:
        longest += reduce_ps(card)
    return demand_of(card, fixed_ps, longest, bound, vector=cycles, hbm=num_bytes)


def kernel_of(work: Work, shape: VectorShape) -> int:
    """Which kind of kernel does a row-wise instruction: one that maps, that computes more, or that reduces first."""
    if shape.passes > 1:
        return REDUCE
    return GATE if work.ops > MAP_OPS * shape.rows * shape.cols else MAP


@lru_cache(maxsize=64)
def streams_of(card: CardSpec) -> tuple[int, int, int]:
    """Bytes a second that each kind of kernel streams from and to HBM, rounded down."""
    tuning, attainable = card.tuning.vector, card.hbm.attainable_bytes_per_s
    mapped, gated, reduced = (
        max(1, int(attainable * share)) for share in (tuning.map_share, tuning.gate_share, tuning.reduce_share)
    )
    return mapped, gated, reduced


def reduce_ps(card: CardSpec) -> int:
    """Picoseconds that a reduction adds before the first result."""
    return ps_for(round(card.tuning.vector.reduce_cycles), card.clock_hz)


def _cycles(work: Work, shape: VectorShape, card: CardSpec, lanes: int, parts: int) -> tuple[int, int]:
    """(lane cycles, operand load cycles) of the busiest core with every row shared by `parts` cores."""
    rows_a_core = -(-shape.rows * parts // card.cores.count)
    trips = shape.passes * -(-shape.cols // (lanes * parts))
    operations = -(-work.ops // (shape.rows * parts * lanes))
    row_cycles = max(trips, operations) + shape.passes * card.vector.row_cycles
    joins = (shape.passes - 1) * card.vector.sync_cycles if parts > 1 else 0
    active = min(card.cores.count, shape.rows * parts)
    load = -(-(work.read_bytes + work.write_bytes) // (active * card.cores.load_bytes_per_cycle))
    return rows_a_core * row_cycles + joins, load
