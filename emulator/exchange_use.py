"""What exchanges asked of links and cards, and when: equal ones added up at once, times kept by who shares them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from .calendar.activity import Demand
from .calendar.amounts import columns_of
from .calendar.solver import Ints
from .exchange import Exchanged


class Alike(NamedTuple):
    """Exchanges of the same ranks that demanded the same; `times` [n, 2] are their starts and ends."""

    first: Exchanged
    times: Ints

    @property
    def number(self) -> int:
        """How many there are."""
        return len(self.times)

    @property
    def time_ps(self) -> int:
        """How long they took together."""
        return int((self.times[:, 1] - self.times[:, 0]).sum())


class ByPlace(ABC, Sequence[Exchanged]):
    """Exchanges that are kept by who met and what they demanded."""

    @abstractmethod
    def alike(self) -> list[Alike]:
        """All of them by that."""


def alike(exchanged: Sequence[Exchanged]) -> list[Alike]:
    """Exchanges by what they demanded."""
    if isinstance(exchanged, ByPlace):
        return exchanged.alike()
    found: defaultdict[tuple[int, tuple[int, ...], str], list[Exchanged]] = defaultdict(list)
    for one in exchanged:
        found[id(one.demand), one.ranks, one.message.kind].append(one)
    return [Alike(some[0], np.array([(one.start_ps, one.end_ps) for one in some], np.int64)) for some in found.values()]


class Times:
    """When each resource was busy: intervals by the sets of resources that were busy in them together."""

    def __init__(self) -> None:
        self._sets: dict[bytes, tuple[Ints, list[Ints]]] = {}

    def add(self, resources: Ints, times: Ints) -> None:
        """All of some resources were busy in the same times."""
        self._sets.setdefault(resources.tobytes(), (resources, []))[1].append(times)

    def clear(self) -> None:
        """Forget all."""
        self._sets.clear()

    def groups(self) -> Iterator[tuple[list[int], Ints]]:
        """Resources that were busy in the same times, and these, [n, 2]."""
        parts = [part for part in self._sets.values() if len(part[0])]
        if not parts:
            return
        index = np.concatenate([resources for resources, _ in parts])
        which = np.repeat(np.arange(len(parts)), [len(resources) for resources, _ in parts])
        order = np.argsort(index, kind="stable")
        index, which = index[order], which[order]
        starts = np.flatnonzero(np.diff(index, prepend=-1))
        together: defaultdict[bytes, list[int]] = defaultdict(list)
        for number, low, high in zip(index[starts].tolist(), starts, np.append(starts[1:], len(index)), strict=True):
            together[which[low:high].tobytes()].append(number)
        for sets, resources in together.items():
            yield resources, np.concatenate([t for at in np.frombuffer(sets, which.dtype) for t in parts[at][1]])


def asked(demand: Demand, count: int) -> tuple[Ints, Ints]:
    """The resources of a demand, and what so many of them ask of each."""
    resources, amounts = columns_of(demand.amounts)
    return resources, amounts * count
