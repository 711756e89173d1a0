"""All resources of a calendar as columns; a Resource object is made of those that somebody looks at."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple, overload

import numpy as np

from ...isa.errors import ConfigError
from .resources import COEFFICIENT_BITS, SCALED_BITS, SHARE_ORDER, UNBOUNDED, Ints, Resource

KINDS = tuple(SHARE_ORDER)
UNBOUNDED_PER_S = -1


class ResourceColumns(NamedTuple):
    """One entry a resource: its number in KINDS, place in the share order, scale, scaled first capacity (0: unbounded),
    and whether it serves one at a time.
    """

    kind: Ints
    order: Ints
    shift: Ints
    nominal: Ints
    exclusive: Ints


class Resources(Sequence[Resource]):
    """The resources of a calendar, by index."""

    def __init__(self) -> None:
        self._made: list[Resource | None] = []
        self._names: set[str] = set()
        self._parts: list[tuple[int, Ints, str, Callable[[int], str]]] = []  # first, capacities, kind, names
        self._rows: list[tuple[int, int, str, bool]] = []  # index, capacity, kind, exclusive

    def add(self, name: str, capacity_per_s: int | None, kind: str, exclusive: bool) -> Resource:
        """One more; ConfigError for a name that is taken, or what no resource can be."""
        if name in self._names:
            raise ConfigError(f"there is already a resource {name!r}; names tell resources apart in errors and reports")
        resource = Resource(len(self._made), name, capacity_per_s, kind, exclusive)
        self._names.add(name)
        self._made.append(resource)
        per_s = UNBOUNDED_PER_S if capacity_per_s is None else capacity_per_s
        self._rows.append((resource.index, per_s, kind, exclusive))
        self.__dict__.pop("columns", None)
        return resource

    def add_many(self, name_of: Callable[[int], str], capacities_per_s: Ints, kind: str) -> range:
        """Bounded ones of one kind; `name_of` gives the name of each by its place among them, unlike any other."""
        first, count = len(self._made), len(capacities_per_s)
        if count and int(capacities_per_s.min()) < 1:
            for place, per_s in enumerate(capacities_per_s.tolist()):
                self.add(name_of(place), per_s, kind, False)  # says which is wrong
        else:
            self._made += [None] * count
            self._parts.append((first, capacities_per_s, kind, name_of))
            self.__dict__.pop("columns", None)
        return range(first, first + count)

    @cached_property
    def columns(self) -> ResourceColumns:
        """What shares are worked out from; capacities that have changed since do not change it."""
        capacity, kind = np.zeros(len(self), np.int64), np.zeros(len(self), np.int64)
        exclusive = np.zeros(len(self), bool)
        for first, capacities, name, _ in self._parts:
            capacity[first : first + len(capacities)] = capacities
            kind[first : first + len(capacities)] = KINDS.index(name)
        if self._rows:
            index, per_s, names, alone = zip(*self._rows, strict=True)
            at = list(index)
            capacity[at], kind[at], exclusive[at] = per_s, [KINDS.index(name) for name in names], alone
        order = np.array([SHARE_ORDER[name] for name in KINDS])[kind]
        # A float's exponent counts the bits of an int below 2^53, for it is exact; few are above.
        bits = np.frexp(capacity.astype(float))[1].astype(np.int64)
        for big in np.flatnonzero(capacity >= 1 << 53).tolist():
            bits[big] = int(capacity[big]).bit_length()
        shift = np.where(capacity == UNBOUNDED_PER_S, 0, SCALED_BITS - bits)
        nominal = np.where(shift >= 0, capacity << np.maximum(shift, 0), capacity >> np.maximum(-shift, 0))
        nominal[capacity == UNBOUNDED_PER_S] = 0
        return ResourceColumns(kind, order, shift, nominal, exclusive)

    def rooms(self) -> Ints:
        """`room_of` each as it is now."""
        nominal = self.columns.nominal
        rooms = np.where(nominal, nominal << COEFFICIENT_BITS, UNBOUNDED)
        for resource in self._made:
            if resource is not None and resource.room is not None:
                rooms[resource.index] = resource.room
        return rooms

    def __len__(self) -> int:
        return len(self._made)

    @overload
    def __getitem__(self, index: int) -> Resource: ...
    @overload
    def __getitem__(self, index: slice) -> list[Resource]: ...
    def __getitem__(self, index: int | slice) -> Resource | list[Resource]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        return self._made[index] or self._make(index)

    def __iter__(self) -> Iterator[Resource]:
        return (self[index] for index in range(len(self)))

    def _make(self, index: int) -> Resource:
        index = index + len(self) if index < 0 else index
        first, capacities, kind, name_of = next(part for part in self._parts if 0 <= index - part[0] < len(part[1]))
        made = Resource(index, name_of(index - first), int(capacities[index - first]), kind, False)
        self._made[index] = made
        return made
