"""The learned correction of a calibrated card's times, over what its units ask."""

from __future__ import annotations

from ...isa.work import Work
from ..calibrated import is_plain, sizes_of
from ..spec import CardSpec
from ..trees import LEAST
from .rates import UnitDemand, capacities, ps_for


def corrected(work: Work, card: CardSpec, asked: UnitDemand) -> UnitDemand:
    """The demand with its time multiplied by what the card learned of this kind; as it is where it learned nothing.

    Amounts stay, and the time stays long enough for them.
    """
    found = sizes_of(work)
    if card.calibration is None or found is None or work.dtype is None:
        return asked
    told = card.calibration.kinds.get(found[0])
    if told is None or told.correction is None or work.dtype.name not in told.correction.dtypes or not is_plain(work):
        return asked
    physics_ps = asked.fixed_ps + asked.alone_ps
    capacity = capacities(card)
    floor_ps = max([ps_for(amount, capacity[kind]) for kind, amount in asked.amounts], default=0)
    least_ps = floor_ps + int(LEAST * asked.fixed_ps)
    whole_ps = max(round(physics_ps * told.correction.ratio(found[1], physics_ps)), least_ps)
    alone_ps = max(floor_ps, whole_ps - asked.fixed_ps)
    fixed_ps = whole_ps - alone_ps
    bound = "dispatch" if fixed_ps > alone_ps else asked.bound
    return UnitDemand(fixed_ps, alone_ps, asked.amounts, bound, asked.clock_fraction)
