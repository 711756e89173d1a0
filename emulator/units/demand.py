"""The seam: Work and a card in, a demand out; nothing else of the units is known outside this room."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from ...isa.work import Unit, Work
from ..spec import CardSpec
from .dma import dma_demand, host_demand
from .link import link_demand
from .rates import UnitDemand, demand_of
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
    return _SCHEDULES[work.unit](work, card)
