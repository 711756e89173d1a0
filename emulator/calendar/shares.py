"""How an activity takes part in the sharing: its bound, and its coefficient on each bounded resource."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ...isa.errors import ConfigError
from .activity import PS_PER_S, Demand
from .resources import COEFFICIENT_BITS, ROOM_LIMIT, SHARE_ORDER, Resource, scaled

MAX_ALONE_PS = 1 << 53  # remaining time is a float64, exact below this


class Use(NamedTuple):
    """One bounded resource of an activity: its coefficient there and coefficient * bound, its load at full speed."""

    resource: Resource
    coefficient: int
    load: int


class Share(NamedTuple):
    """An activity's bound (its scaled rate alone on its share resource) and its uses; a pure function of the demand.

    `exclusive` are the units it must own before it flows, in index order.
    """

    bound: int
    uses: tuple[Use, ...]
    exclusive: tuple[Resource, ...]


def share_of(demand: Demand, resources: Sequence[Resource]) -> Share:
    """The share of a demand on these resources.

    Raises ConfigError for a demand that is not well formed, or whose rate no resource could count.
    """
    check(demand, resources)
    used = [(resources[index], amount) for index, amount in demand.amounts]
    exclusive = tuple(sorted((r for r, _ in used if r.exclusive), key=lambda r: r.index))
    rates = [(r, scaled_rate(r, amount, demand.alone_ps)) for r, amount in used if r.nominal_per_s is not None]
    if not rates:
        return Share(1, (), exclusive)
    bound = share_rate(rates)
    uses = []
    for resource, rate in rates:
        coefficient = max(1, (rate << COEFFICIENT_BITS) // bound)  # never up: that would slow an activity alone
        if coefficient * bound >= ROOM_LIMIT:
            raise ConfigError(
                f"an activity of alone_ps={demand.alone_ps} asks {rate / nominal(resource):.3g} times the "
                f"capacity of {resource.name!r}; give it the time its amounts take alone"
            )
        uses.append(Use(resource, coefficient, coefficient * bound))
    return Share(bound, tuple(uses), exclusive)


def scaled_rate(resource: Resource, amount: int, alone_ps: int) -> int:
    """Amount a second at full speed, rounded down, at least 1, in the resource's scale."""
    return max(1, scaled(max(1, amount * PS_PER_S // alone_ps), resource.shift))


def share_rate(rates: list[tuple[Resource, int]]) -> int:
    """The scaled rate on the share resource: the busiest link if there is one, else memory or host link, else unit.

    Busiest is the largest part of the nominal capacity; ties go to the lowest index.
    """
    first = min(SHARE_ORDER[r.kind] for r, _ in rates)
    best: tuple[Resource, int] | None = None
    for resource, rate in sorted((u for u in rates if SHARE_ORDER[u[0].kind] == first), key=lambda u: u[0].index):
        if best is None or rate * nominal(best[0]) > best[1] * nominal(resource):
            best = (resource, rate)
    assert best is not None
    return best[1]


def nominal(resource: Resource) -> int:
    """The scaled capacity that a resource was added with."""
    assert resource.nominal_per_s is not None
    return scaled(resource.nominal_per_s, resource.shift)


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
