"""What a compiled run's cards exchanged, kept by the places where they met, and told one by one when asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple, overload

import numpy as np

from ..calendar.activity import Demand
from ..calendar.solver import Ints
from ..exchange import Exchanged
from ..exchange_use import Alike, ByPlace
from .meetings import Offer, Place


class Held(NamedTuple):
    """The exchanges of one place that have ended, turn by turn: when each began and ended.

    `alone[turn]` says that an eager message was sent before its receiver had come.
    """

    place: Place
    turns: Ints
    starts: Ints
    ends: Ints
    alone: Ints
    demand: Callable[[Place, Offer, bool], Demand]

    def exchanged(self) -> Iterator[Exchanged]:
        """One by one."""
        place = self.place
        columns = (column.tolist() for column in (self.turns, self.starts, self.ends, self.alone))
        for turn, start, end, alone in zip(*columns, strict=True):
            offer = place.offers[place.kinds[turn]]
            assert offer.message is not None, "what nobody offers does not take place"
            yield Exchanged(offer.message, place.ranks, start, end, self.demand(place, offer, bool(alone)))

    def alike(self) -> Iterator[Alike]:
        """By what they demanded."""
        place, times = self.place, np.stack((self.starts, self.ends), axis=1)
        kinds = 2 * place.kinds[self.turns] + self.alone
        for kind in np.unique(kinds).tolist():
            offer, own = place.offers[kind // 2], times[kinds == kind]
            assert offer.message is not None, "what nobody offers does not take place"
            demand = self.demand(place, offer, bool(kind % 2))
            first, last = own[0].tolist()
            yield Alike(Exchanged(offer.message, place.ranks, first, last, demand), own)


class ExchangeTable(ByPlace):
    """All exchanges of a submission, in order of their end; `held` has them by place."""

    def __init__(self, held: Sequence[Held]) -> None:
        self.held = held
        self._count = sum(len(one.turns) for one in held)

    @cached_property
    def _made(self) -> list[Exchanged]:
        return sorted((one for held in self.held for one in held.exchanged()), key=lambda one: (one.end_ps, one.ranks))

    def alike(self) -> list[Alike]:
        """As `ByPlace.alike`."""
        return [some for held in self.held for some in held.alike()]

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Exchanged: ...
    @overload
    def __getitem__(self, index: slice) -> list[Exchanged]: ...
    def __getitem__(self, index: int | slice) -> Exchanged | list[Exchanged]:
        return self._made[index]

    def __iter__(self) -> Iterator[Exchanged]:
        return iter(self._made)
