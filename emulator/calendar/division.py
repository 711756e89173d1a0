"""Which activities must be divided anew, and at what speed each goes on: components, gathered for the solver."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .activity import NOBODY, Running
from .resources import Resource
from .solver import FREE, Members, solve


class Division:
    """Walks the components reached from changed resources; a resource that holds nobody back joins nothing."""

    def __init__(self) -> None:
        self._mark = 0  # whoever bears it has been visited in this round

    def divide(self, dirty: list[Resource]) -> Iterator[tuple[Running, float, int]]:
        """(activity, speed relative to alone, resource that holds it or NOBODY) of all who may be concerned."""
        self._mark += 1
        for resource in dirty:
            resource.dirty = False
        for resource in dirty:
            if resource.visited != self._mark and couples(resource):
                yield from self._divide_component(resource)

    def _divide_component(self, seed: Resource) -> Iterator[tuple[Running, float, int]]:
        resources, members = self._component(seed)
        short = []
        for resource in resources:
            resource.coupled = is_short(resource)
            if resource.coupled:
                short.append(resource)
        if short:
            short.sort(key=by_index)
            yield from speeds(members, short)
        else:
            for running in members:
                yield running, 1.0, NOBODY

    def _component(self, seed: Resource) -> tuple[list[Resource], list[Running]]:
        mark = self._mark
        seed.visited = mark
        resources, members = [seed], []
        for resource in resources:  # which grows as we go
            for running in resource.members:
                if running.visited == mark:
                    continue
                running.visited = mark
                members.append(running)
                for use in running.share.uses:
                    other = use.resource
                    if other.visited != mark and couples(other):
                        other.visited = mark
                        resources.append(other)
        return resources, members


def by_index(resource: Resource) -> int:
    """Sort key."""
    return resource.index


def is_short(resource: Resource) -> bool:
    """Whether its members together would take more than it has."""
    return resource.room is not None and resource.load > resource.room


def couples(resource: Resource) -> bool:
    """Whether its members' speeds hang together, before this division or after."""
    return resource.coupled or is_short(resource)


def speeds(members: list[Running], short: list[Resource]) -> Iterator[tuple[Running, float, int]]:
    """Solve one component over the resources that are short in it."""
    place = {resource.index: n for n, resource in enumerate(short)}
    first, resource, coefficient = [0], [], []
    for running in members:
        for use in running.share.uses:
            n = place.get(use.resource.index)
            if n is not None:
                resource.append(n)
                coefficient.append(use.coefficient)
        first.append(len(resource))
    bounds = [running.share.bound for running in members]
    # A weight over the bound changes nothing but the size of the numbers: the member is full at level 1.
    weights = [min(running.weight, running.share.bound) for running in members]
    priorities = [running.priority for running in members]
    columns = (ints(priorities), ints(weights), ints(bounds), ints(first), ints(resource), ints(coefficient))
    rates, holders = ints(bounds), ints(bounds)
    solve(Members(*columns), ints([r.room or 0 for r in short]), rates, holders)
    for running, bound, rate, holder in zip(members, bounds, rates.tolist(), holders.tolist(), strict=True):
        yield running, rate / bound, NOBODY if holder == FREE else short[holder].index


def ints(values: list[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """An int64 array."""
    return np.array(values, np.int64)
