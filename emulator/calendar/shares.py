"""How an activity takes part in the sharing: its bound, and its coefficient on each bounded resource."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from ...isa.errors import ConfigError
from .activity import PS_PER_S, Demand
from .amounts import Amounts
from .resource_columns import Resources
from .resources import COEFFICIENT_BITS, ROOM_LIMIT, Resource, scaled
from .solver import Ints
from .wide import divided

MAX_ALONE_PS = 1 << 53  # remaining time is a float64, exact below this
RATE_BITS = 63 - COEFFICIENT_BITS  # of rates whose coefficients an int64 holds
NEARLY = 1 - 1e-12


class Use(NamedTuple):
    """One bounded resource of an activity: its coefficient there and coefficient * bound, its load at full speed."""

    resource: Resource
    coefficient: int
    load: int


class Share:
    """An activity's bound (its scaled rate alone on its share resource) and its uses; a pure function of the demand.

    `columns` are the uses as compiled code reads them: int64 [n] of resource, coefficient and load. `exclusive` are the
    units it must own before it flows, in index order.
    """

    def __init__(
        self, bound: int, columns: tuple[Ints, Ints, Ints], exclusive: tuple[Resource, ...], resources: Resources
    ) -> None:
        self.bound, self.columns, self.exclusive, self._resources = bound, columns, exclusive, resources

    @cached_property
    def uses(self) -> tuple[Use, ...]:
        """The uses one by one."""
        rows = zip(*(column.tolist() for column in self.columns), strict=True)
        return tuple(Use(self._resources[index], coefficient, load) for index, coefficient, load in rows)


def share_of(demand: Demand, resources: Resources) -> Share:
    """The share of a demand on these resources.

    Raises ConfigError for a demand that is not well formed, or whose rate no resource could count.
    """
    if isinstance(demand.amounts, Amounts):
        found = _share_of_columns(demand, demand.amounts, resources)
        if found is not None:
            return found
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
    rows = []
    for resource, rate in rates:
        coefficient = max(1, (rate << COEFFICIENT_BITS) // bound)  # never up: that would slow an activity alone
        if coefficient * bound >= ROOM_LIMIT:
            raise ConfigError(
                f"an activity of alone_ps={alone_ps} asks {rate / resource.nominal:.3g} times the "
                f"capacity of {resource.name!r}; give it the time its amounts take alone"
            )
        rows.append((resource.index, coefficient, coefficient * bound))
    columns = np.array(rows, np.int64).reshape(-1, 3).T.copy()
    units = tuple(sorted(exclusive, key=lambda r: r.index))
    return Share(bound, (columns[0], columns[1], columns[2]), units, resources)


def _share_of_columns(demand: Demand, amounts: Amounts, resources: Resources) -> Share | None:
    """The share of a demand on many resources at once; None where its numbers need more than 64 bits, or are wrong."""
    index, known, alone_ps = amounts.resources, resources.columns, demand.alone_ps
    if not len(index) or not 1 <= alone_ps < MAX_ALONE_PS:
        return None
    if index.min() < 0 or index.max() >= len(resources) or amounts.amounts.min() < 1:
        return None
    named = np.zeros(len(resources), bool)
    named[index] = True
    if np.count_nonzero(named) < len(index):
        return None  # one is named twice
    try:
        rates = scaled_rates(amounts.amounts, alone_ps, known.shift[index])
    except OverflowError:
        return None
    nominal = known.nominal[index]
    bounded, alone = np.flatnonzero(nominal), np.flatnonzero(known.exclusive[index])
    bound = 1
    if len(bounded):
        order = known.order[index[bounded]]
        first = bounded[order == order.min()]
        bound = busiest(rates[first], nominal[first], index[first])
    coefficients = coefficients_of(rates[bounded], bound)
    units = tuple(resources[number] for number in np.sort(index[alone]).tolist())
    return Share(bound, (index[bounded], coefficients, coefficients * bound), units, resources)


def scaled_rates(amounts: Ints, alone_ps: Any, shifts: Ints) -> Ints:
    """`scaled_rate` of many amounts, each in the scale of its resource; OverflowError where one needs over 47 bits."""
    per_s = np.maximum(1, divided(amounts, PS_PER_S, alone_ps)[0])
    up, down = np.maximum(shifts, 0), np.maximum(-shifts, 0)
    if (per_s >> (RATE_BITS - up)).any():
        raise OverflowError(f"a rate needs more than {RATE_BITS} bits")
    return np.asarray(np.maximum(1, np.where(shifts >= 0, per_s << up, per_s >> down)))


def coefficients_of(rates: Ints, bounds: Any) -> Ints:
    """Coefficients of scaled rates below 2^47 under a bound; never up: that would slow an activity alone."""
    return np.asarray(np.maximum(1, (rates << COEFFICIENT_BITS) // bounds))


def busiest(rates: Ints, nominal: Ints, index: Ints) -> int:
    """The rate at the resource of which it is the largest part, as `is_busier` has it; all are of one order."""
    parts = rates / nominal
    near = np.flatnonzero(parts >= parts.max() * NEARLY)  # whole numbers decide what floats cannot tell
    if (nominal[near] == nominal[near[0]]).all():
        return int(rates[near].max())
    rate, of, at = 0, 1, 0
    for some, whole, place in zip(rates[near].tolist(), nominal[near].tolist(), index[near].tolist(), strict=True):
        if (more := some * of - rate * whole) > 0 or (more == 0 and place < at):
            rate, of, at = some, whole, place
    return int(rate)


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
