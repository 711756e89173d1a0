"""The seam: Work and a card in, a demand out; nothing else of the units is known outside this room."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from ...isa.work import AttentionShape, FusedShape, LatentShape, Unit, Work
from ..spec import CardSpec
from .attention import attention_demand
from .dma import dma_demand, host_demand
from .latent import latent_demand
from .link import link_demand
from .rates import Bound, UnitDemand, demand_of, ps_for
from .residual import corrected
from .sustained import at_sustained_clock
from .tensor import tensor_demand
from .vector import vector_demand


def _control_demand(work: Work, card: CardSpec) -> UnitDemand:
    return demand_of(card, card.dispatch.control_ps, 0, "dispatch")


_SCHEDULES: dict[Unit, Callable[[Work, CardSpec], UnitDemand]] = {
    Unit.TENSOR: tensor_demand,
    Unit.VECTOR: vector_demand,
    Unit.DMA: dma_demand,
    Unit.HOST: host_demand,
    Unit.LINK: link_demand,
    Unit.CONTROL: _control_demand,
}


# Layers of a step ask the same Work again and again; steps rarely do, so a few thousand entries are a whole step.
@lru_cache(maxsize=2048)
def demand(work: Work, card: CardSpec) -> UnitDemand:
    """The fixed time, the time alone and the amounts that `work` asks of `card` when it runs by itself.

    A pure function of both. Raises UnsupportedError for an element type the unit lacks, ProgramError for a geometry
    that is not the unit's, ConfigError where the card cannot hold a single tile.
    """
    asked = _physics(work, card)
    return asked if card.calibration is None else corrected(work, card, asked)


def _physics(work: Work, card: CardSpec) -> UnitDemand:
    """What the units ask by their schedules, before anything that was learned."""
    if isinstance(work.shape, FusedShape):
        return _fused_demand(work, work.shape, card)
    if isinstance(work.shape, AttentionShape):
        return attention_demand(work, work.shape, card)
    if isinstance(work.shape, LatentShape):
        return at_sustained_clock(work, card, latent_demand(work, work.shape, card))
    return _SCHEDULES[work.unit](work, card)


def _fused_demand(work: Work, shape: FusedShape, card: CardSpec) -> UnitDemand:
    """One launch: its parts one after the other, from operands on the chip, under what the whole moves of HBM."""
    fixed_ps, alone_ps, amounts, clocked_ps = 0, 0, Counter[str](), 0.0
    for part in shape.parts:
        if part.unit is Unit.DMA:
            continue  # the cores store in the place of an engine, and the bytes are the whole's
        asked = _physics(replace(part, read_bytes=0, write_bytes=0), card)
        fixed_ps, alone_ps = max(fixed_ps, asked.fixed_ps), alone_ps + asked.alone_ps
        amounts.update(dict(asked.amounts))
        clocked_ps += asked.alone_ps * asked.clock_fraction
    num_bytes = max(work.read_bytes + work.write_bytes, amounts.pop("hbm", 0))
    hbm_ps = ps_for(num_bytes, card.hbm.attainable_bytes_per_s)
    bound: Bound = "hbm" if hbm_ps > alone_ps else "compute"
    asked = demand_of(card, fixed_ps, alone_ps, bound, hbm=num_bytes, **amounts)
    return replace(asked, clock_fraction=clocked_ps / alone_ps if alone_ps else 1.0)
