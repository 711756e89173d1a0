"""How an activity takes part in the sharing: its bound, and its coefficient on each bounded resource."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ...isa.errors import ConfigError
from .activity import PS_PER_S, Demand
from .resources import COEFFICIENT_BITS, ROOM_LIMIT, Resource, scaled
from .solver import Ints

MAX_ALONE_PS = 1 << 53  # remaining time is a float64, exact below this


class Use(NamedTuple):
    """One bounded resource of an activity: its coefficient there and coefficient * bound, its load at full speed."""

    resource: Resource
    coefficient: int
    load: int


@dataclass(frozen=True, eq=False)
class Share:
    """An activity's bound (its scaled rate alone on its share resource) and its uses; a pure function of the demand.

    `exclusive` are the units it must own before it flows, in index order.
    """

    bound: int
    uses: tuple[Use, ...]
    exclusive: tuple[Resource, ...]

    @cached_property
    def columns(self) -> tuple[Ints, Ints, Ints]:
        """The uses as compiled code reads them: resource, coefficient and load of each."""
        rows = [(resource.index, coefficient, load) for resource, coefficient, load in self.uses]
        resource, coefficient, load = np.array(rows, np.int64).reshape(-1, 3).T.copy()
        return resource, coefficient, load


def share_of(demand: Demand, resources: Sequence[Resource]) -> Share:
    """The share of a demand on these resources.

    Raises ConfigError for a demand that is not well formed, or whose rate no resource could count.
    """
    check(demand, resources)
    alone_ps, bound = demand.alone_ps, 1
    rates, exclusive = [], []
    best: Resource | None = None
    for index, amount in demand.amounts:
        resource = resources[index]
        if resource.exclusive:
            exclusive.append(resource)
        if resource.nominal_per_s is None:
            continue
        rate = scaled_rate(resource, amount, alone_ps)
        rates.append((resource, rate))
        if best is None or is_busier(resource, rate, best, bound):
            best, bound = resource, rate
    uses = []
    for resource, rate in rates:
        coefficient = max(1, (rate << COEFFICIENT_BITS) // bound)  # never up: that would slow an activity alone
        if coefficient * bound >= ROOM_LIMIT:
            raise ConfigError(
                f"an activity of alone_ps={alone_ps} asks {rate / resource.nominal:.3g} times the "
                f"capacity of {resource.name!r}; give it the time its amounts take alone"
            )
        uses.append(Use(resource, coefficient, coefficient * bound))
    return Share(bound, tuple(uses), tuple(sorted(exclusive, key=lambda r: r.index)))


def scaled_rate(resource: Resource, amount: int, alone_ps: int) -> int:
    """Amount a second at full speed, rounded down, at least 1, in the resource's scale."""
    return scaled(amount * PS_PER_S // alone_ps or 1, resource.shift) or 1


def is_busier(resource: Resource, rate: int, best: Resource, best_rate: int) -> bool:
    """Whether a resource is rather the share resource of an activity than the best so far.

    That is the busiest link if there is one, else memory or host link, else unit. Busiest is the largest part of the
    nominal capacity; ties go to the lowest index.
    """
    if resource.order != best.order:
        return resource.order < best.order
    part, of_best = rate * best.nominal, best_rate * resource.nominal
    return part > of_best or (part == of_best and resource.index < best.index)


def check(demand: Demand, resources: Sequence[Resource]) -> None:
    """Refuse a demand that is not well formed (a NumPy integer would overflow silently in the rate)."""
    if type(demand.alone_ps) is not int or not 0 <= demand.alone_ps < MAX_ALONE_PS:
        raise ConfigError(f"alone_ps={demand.alone_ps!r} is no int from 0 to 2^53 - 1 (2.5 hours); split the activity")
    if demand.alone_ps == 0 and demand.amounts:
        raise ConfigError(f"alone_ps=0 with amounts {demand.amounts}: amounts flow, and flowing takes at least 1 ps")
    seen = set()
    for index, amount in demand.amounts:
        if type(index) is not int or not 0 <= index < len(resources):
            raise ConfigError(f"no resource has index {index!r}; there are {len(resources)}")
        if type(amount) is not int or amount < 1:
            raise ConfigError(
                f"amount {amount!r} on {resources[index].name!r} must be an int of at least 1; leave out a 0"
            )
        if index in seen:
            raise ConfigError(f"amounts name {resources[index].name!r} twice; add them up")
        seen.add(index)
