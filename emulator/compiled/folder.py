"""Folder: what the exchanges of places demand, and which cards stand for which while programs are in flight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..calendar.activity import Demand
from ..calendar.solver import Ints
from ..card import Card
from ..wires import GroupShare, Wires
from .calendar import CompiledCalendar
from .folding import Partition, Scene, Uses, discrete, partition, told
from .machine import NONE
from .meetings import Matching, Offer, Place

KEPT = 1 << 10
KEPT_PRICES = 1 << 12


@dataclass(frozen=True, eq=False)
class Priced:
    """What an offer of a place demands, of both ends of an eager message (`alone`: of its sender alone)."""

    share: GroupShare
    alone: GroupShare

    @property
    def uses(self) -> Uses:
        """What it uses of which resource."""
        own = self.share
        terms = own.fixed_ps, own.bound, self.alone.fixed_ps, self.alone.bound, own.alone_ps, own.rate_bound
        return Uses(own.resources, own.coefficients, own.loads, own.units, terms)


class Folder:
    """Finds the classes of cards of what is in flight, and keeps them for the next submission that is like it."""

    def __init__(self, cards: Sequence[Card], calendar: CompiledCalendar, wires: Wires, fold: bool) -> None:
        self._cards, self._calendar, self._wires, self._fold = cards, calendar, wires, fold
        self._priced: dict[tuple[Offer, tuple[int, ...]], Priced] = {}
        self._known: dict[object, tuple[Ints, Ints, list[int]]] = {}
        resources = calendar.resources
        self._owner = np.full(len(resources), NONE)
        self._unit = np.full(len(resources), NONE)
        for card in cards:
            for number, index in enumerate(card.resources.values()):
                self._owner[index], self._unit[index] = card.rank, number
        self._marked: set[int] = set()
        self.resources_a_card = len(cards[0].resources)

    def priced(self, place: Place) -> list[Priced | None]:
        """What every offer of a place demands; None for one that never takes place."""
        return [None if offer.message is None else self._price(place, offer) for offer in place.offers]

    def demand(self, place: Place, offer: Offer, alone: bool) -> Demand:
        """What an offer demanded."""
        assert offer.message is not None, "what nobody offers demands nothing"
        dispatch_ps = offer.dispatch_ps if offer.alone_ps is None or not alone else offer.alone_ps
        return self._wires.cost(offer.message, place.ranks, dispatch_ps).demand

    def _price(self, place: Place, offer: Offer) -> Priced:
        found = self._priced.get((offer, place.ranks))
        if found is None:
            assert offer.message is not None, "what nobody offers has no price"
            share = alone = self._wires.share(offer.message, place.ranks, offer.dispatch_ps)
            if offer.alone_ps is not None:
                alone = self._wires.share(offer.message, place.ranks, offer.alone_ps)
            if len(self._priced) >= KEPT_PRICES:
                self._priced.clear()
            found = self._priced[offer, place.ranks] = Priced(share, alone)
        return found

    # classes

    def mark(self, resource: int) -> None:
        """A resource will not be like others until `forget_marks`."""
        self._marked.add(resource)

    def forget_marks(self) -> None:
        """Nothing is in flight."""
        self._marked.clear()

    def unfolded(self, matchings: Sequence[Matching]) -> Partition:
        """Everything stands for itself."""
        places = [place for matching in matchings for place in matching.places]
        return discrete(len(self._cards), len(self._owner), places)

    def partition(self, matchings: Sequence[Matching], within: Partition | None = None) -> Partition:
        """Classes of the cards of what is in flight; those of `within` are told apart."""
        if not self._fold or (within is not None and within.is_discrete):
            return self.unfolded(matchings)
        numbers: dict[object, int] = {}
        own = tuple(
            numbers.setdefault(self._own(matchings, rank, within), len(numbers)) for rank in range(len(self._cards))
        )
        if len(numbers) == len(self._cards):
            return self.unfolded(matchings)
        places = [place for matching in matchings for place in matching.places]
        priced = [self.priced(place) for place in places]
        shapes = tuple(
            (place.ranks, place.ways, place.is_transfer, place.names, place.sharing, place.kinds.tobytes(), tuple(each))
            for place, each in zip(places, priced, strict=True)
        )
        kind = self._kinds(within)
        key = (own, shapes, tuple(len(matching.places) for matching in matchings), kind.tobytes())
        found = self._known.get(key)
        if found is None:
            uses = {
                id(place): [None if one is None else one.uses for one in each]
                for place, each in zip(places, priced, strict=True)
            }
            classes = partition(Scene(self._owner, kind, own, matchings, uses))
            if len(self._known) >= KEPT:
                self._known.clear()
            found = classes.standing, classes.resource, [classes.place[id(place)] for place in places]
            self._known[key] = found
        standing, resource, of_places = found
        return Partition(standing, resource, {id(p): n for p, n in zip(places, of_places, strict=True)})

    @staticmethod
    def _own(matchings: Sequence[Matching], rank: int, within: Partition | None) -> object:
        """What a card does of all submissions."""
        standing = None if within is None else int(within.standing[rank])
        return standing, *(matching.likeness.get(rank) for matching in matchings)

    def _kinds(self, within: Partition | None) -> Ints:
        """What resources are before anything flows: a unit of a card or a link, and its capacity."""
        resources = self._calendar.resources
        marks = np.zeros(len(resources), np.int64)
        marks[sorted(self._marked)] = 1 + np.arange(len(self._marked))
        told_apart = marks if within is None else within.resource
        return told(self._unit, resources.rooms(), resources.columns.shift, marks, told_apart)

    # shares

    def share(self, places: Sequence[Place], number: int, classes: Partition) -> int:
        """The row of a share of its own, of an offer of places of one class: what they ask of what stands for all.

        NONE for one that flows not at all.
        """
        priced = [self._price(place, place.offers[number]) for place in places]
        if not priced[0].share.alone_ps:
            return NONE
        uses = [one.uses for one in priced]
        resources, coefficients, loads = (
            np.concatenate([getattr(use, name) for use in uses]) for name in ("resources", "coefficients", "loads")
        )
        stands = classes.resource[resources] == resources
        found, where = np.unique(resources[stands], return_inverse=True)
        sums = np.zeros((len(found), 2), np.int64)
        np.add.at(sums, where, np.stack((coefficients[stands], loads[stands]), axis=1))
        units = np.unique(np.concatenate([use.exclusive for use in uses]))
        table = np.column_stack((found, sums))
        return self._calendar.shares.put(priced[0].share.rate_bound, table, units[classes.resource[units] == units])
