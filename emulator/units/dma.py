"""Copies within a card and over its host link: bursts, engines and latency."""

from __future__ import annotations

from ...isa.errors import ProgramError
from ...isa.work import MoveShape, Work
from ..spec import CardSpec
from .rates import Bound, UnitDemand, demand_of, ps_for


def dma_demand(work: Work, card: CardSpec) -> UnitDemand:
    """What a copy, gather or scatter asks of a card.

    Each run of `row_bytes` moves in whole bursts on its scattered side, so the HBM amount is the Work's bytes plus the
    part of the bursts that short runs waste. The "dma" amount is one engine's cycles.
    """
    fixed_ps = card.dispatch.dma_ps + card.dma.latency_ps + card.hbm.latency_ps
    num_bytes = work.read_bytes + work.write_bytes
    payload = max(work.read_bytes, work.write_bytes)
    if isinstance(work.shape, MoveShape):
        bursts = -(-work.shape.row_bytes // card.dma.granularity_bytes)
        wasted = work.shape.rows * (bursts * card.dma.granularity_bytes - work.shape.row_bytes)
        num_bytes, payload = num_bytes + wasted, payload + wasted
    elif work.shape is not None:
        raise ProgramError(f"a dma instruction needs a move shape, not {work.shape}")
    cycles = -(-payload // card.dma.bytes_per_cycle)
    hbm_ps, engine_ps = ps_for(num_bytes, card.hbm.attainable_bytes_per_s), ps_for(cycles, card.clock_hz)
    bound: Bound = "hbm" if hbm_ps >= engine_ps else "compute"
    return demand_of(card, fixed_ps, max(hbm_ps, engine_ps), bound, dma=cycles, hbm=num_bytes)


def host_demand(work: Work, card: CardSpec) -> UnitDemand:
    """What a load from or a store to the host's memory asks of a card: its bytes once on the host link, once in HBM."""
    fixed_ps = card.dispatch.host_ps + card.host.latency_ps + card.hbm.latency_ps
    crossing = max(work.read_bytes, work.write_bytes)
    num_bytes = work.read_bytes + work.write_bytes
    hbm_ps, host_ps = (
        ps_for(num_bytes, card.hbm.attainable_bytes_per_s),
        ps_for(crossing, card.host.bandwidth_bytes_per_s),
    )
    bound: Bound = "hbm" if hbm_ps > host_ps else "link"
    return demand_of(card, fixed_ps, max(hbm_ps, host_ps), bound, host=crossing, hbm=num_bytes)
