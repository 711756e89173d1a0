"""Folding: which cards are in equal conditions, so that one of them can stand for all.

The classes are the coarsest equitable partition of cards, links and places where cards meet (colour refinement): two
cards share a class only if they run the same program at the same costs, meet cards of the same classes in the same
order, and share each resource on their way with as many of every class. What is symmetrical stays so, for the rules of
the calendar know no card by its number; so a class's lowest card and its lowest links go through what all of them do,
with the flows of the absent ones added to theirs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..calendar.solver import Ints
from .meetings import Matching, Place

MOST_ENTRIES = 1 << 22  # uses of resources beyond which looking for equal cards would cost more than it may save
EXCLUSIVE = -1  # in place of a coefficient: a unit that an exchange must own

Hashes = np.ndarray[Any, np.dtype[np.uint64]]


@dataclass(frozen=True, eq=False)
class Uses:
    """What one offer of a place uses: resources, with the coefficient and the load of each."""

    resources: Ints
    coefficients: Ints
    loads: Ints
    exclusive: Ints
    terms: tuple[object, ...]  # what else tells offers apart: times and bound


@dataclass(frozen=True, eq=False)
class Scene:
    """All that is in flight together: submissions matched, and the uses of every offer of every place of theirs.

    `owner[resource]` is the card that a resource belongs to, -1 for a link; `kind[resource]` what makes it different
    from others before anything runs. `own[rank]` are the programs and costs of a card, of each submission.
    """

    owner: Ints
    kind: Ints
    own: Sequence[object]
    matchings: Sequence[Matching]
    uses: Mapping[int, Sequence[Uses | None]]  # by the identity of a place


@dataclass(frozen=True, eq=False)
class Partition:
    """Classes: `standing[rank]` is the card that stands for a rank, `resource[index]` the resource that does.

    `place[id(place)]` numbers the class of a place.
    """

    standing: Ints
    resource: Ints
    place: Mapping[int, int]

    @property
    def is_discrete(self) -> bool:
        """Whether every card stands for itself."""
        return bool((self.standing == np.arange(len(self.standing))).all())

    def refines(self, other: Partition) -> bool:
        """Whether cards and resources that stand together here do so there too."""
        return bool(
            (other.standing[self.standing] == other.standing).all()
            and (other.resource[self.resource] == other.resource).all()
        )


def discrete(cards: int, resources: int, places: Sequence[Place]) -> Partition:
    """Everything stands for itself."""
    numbers = {id(place): number for number, place in enumerate(places)}
    return Partition(np.arange(cards), np.arange(resources), numbers)


def partition(scene: Scene) -> Partition:
    """The coarsest partition in which members of a class go through the same."""
    places = [place for matching in scene.matchings for place in matching.places]
    cards, resources = len(scene.own), len(scene.owner)
    entries = sum(len(use.resources) for place in places for use in scene.uses[id(place)] if use is not None)
    if entries > MOST_ENTRIES:
        return discrete(cards, resources, places)
    return _Refinement(scene, places).run()


class _Refinement:
    """Colours of cards, places and resources, which tell more and more of them apart."""

    def __init__(self, scene: Scene, places: Sequence[Place]) -> None:
        self._scene, self._places = scene, places
        self._cards = _numbered(scene.own)
        self._resources = scene.kind
        self._classes = _numbered([self._terms(place, n) for n, place in self._of_matchings()])
        self._enter_members()
        self._enter_uses()

    def _of_matchings(self) -> list[tuple[int, Place]]:
        return [(n, place) for n, matching in enumerate(self._scene.matchings) for place in matching.places]

    def _terms(self, place: Place, submission: int) -> tuple[object, ...]:
        """What tells places apart before anybody has come."""
        offers = [
            (offer.is_eager, None if use is None else use.terms)
            for offer, use in zip(place.offers, self._scene.uses[id(place)], strict=True)
        ]
        return submission, place.is_transfer, place.names, len(place.ranks), place.kinds.tobytes(), tuple(offers)

    def _enter_members(self) -> None:
        """Which card comes to which place, as what, and by which of its exchanges first."""
        rows = [
            (number, rank, 2 * (1 + way) + (end if place.is_transfer else 0))
            for number, place in enumerate(self._places)
            for end, (rank, way) in enumerate(zip(place.ranks, place.ways, strict=True))
        ]
        self._member_place, self._member_rank, self._member_end = np.array(rows, np.int64).reshape(-1, 3).T

    def _enter_uses(self) -> None:
        """Which offer of which place uses which resource, and how much."""
        columns: list[list[Ints]] = [[np.zeros(0, np.int64)] for _ in range(4)]
        for number, place in enumerate(self._places):
            for slot, use in enumerate(self._scene.uses[id(place)]):
                if use is None:
                    continue
                resources = np.concatenate((use.resources, use.exclusive))
                amounts = np.concatenate((use.coefficients, np.full(len(use.exclusive), EXCLUSIVE)))
                same = np.full(len(resources), number), np.full(len(resources), slot)
                for column, values in zip(columns, (*same, resources, amounts), strict=True):
                    column.append(values)
        self._use_place, self._use_slot, self._use_resource, self._use_amount = map(np.concatenate, columns)

    def run(self) -> Partition:
        """Refine until nothing more is told apart."""
        owned, owner = self._scene.owner >= 0, self._scene.owner
        known = 0
        while (count := sum(len(np.unique(c)) for c in (self._cards, self._classes, self._resources))) > known:
            known = count
            places = _mixed(self._classes)
            cards = _mixed(self._cards, 1)
            resources = _mixed(self._resources, 2)
            _add(places, self._member_place, _mix(cards[self._member_rank] + _mixed(self._member_end, 3)))
            weights = _mixed(self._use_amount, 4) ^ _mixed(self._use_slot, 5)
            old = _mixed(self._classes, 6)
            _add(places, self._use_place, _mix(resources[self._use_resource] ^ weights))
            _add(resources, self._use_resource, _mix(old[self._use_place] ^ weights))
            _add(cards, self._member_rank, _mix(old[self._member_place] + _mixed(self._member_end, 7)))
            _add(cards, owner[owned], _mix(_mixed(self._resources, 8)[owned]))
            resources[owned] += _mix(_mixed(self._cards, 9)[owner[owned]])
            self._cards, self._classes, self._resources = (_renumbered(hashes) for hashes in (cards, places, resources))
        lowest = _lowest(self._cards)
        numbers = {id(place): int(n) for place, n in zip(self._places, self._classes, strict=True)}
        return Partition(lowest, self._lowest_resources(lowest), numbers)

    def _lowest_resources(self, standing: Ints) -> Ints:
        """The resource that stands for each: of cards that of the card which stands for it, else the lowest."""
        lowest = _lowest(self._resources)
        owner = self._scene.owner
        assert (standing[owner[owner >= 0]] == owner[lowest[owner >= 0]]).all(), "cards and their units fold alike"
        return lowest


def told(*columns: Ints) -> Ints:
    """Numbers that are equal where all columns are."""
    hashes = np.zeros(len(columns[0]), np.uint64)
    for salt, column in enumerate(columns):
        hashes = _mix(hashes ^ _mixed(column, salt))
    return _renumbered(hashes)


def _numbered(values: Sequence[object]) -> Ints:
    numbers: dict[object, int] = {}
    return np.array([numbers.setdefault(value, len(numbers)) for value in values], np.int64)


def _renumbered(hashes: Hashes) -> Ints:
    return np.unique(hashes, return_inverse=True)[1].astype(np.int64)


def _lowest(classes: Ints) -> Ints:
    """For each the lowest index of its class."""
    _, first, inverse = np.unique(classes, return_index=True, return_inverse=True)
    return first[inverse].astype(np.int64)


def _mixed(values: Ints, salt: int = 0) -> Hashes:
    """Numbers as hashes of 64 bits, others for every salt."""
    return _mix(values.astype(np.uint64) + np.uint64((salt + 1) * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF))


def _mix(hashes: Hashes) -> Hashes:
    """The finaliser of splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014)."""
    hashes = (hashes ^ (hashes >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    hashes = (hashes ^ (hashes >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return hashes ^ (hashes >> np.uint64(31))


def _add(hashes: Hashes, index: Ints, values: Hashes) -> None:
    """Add to each hash those of what belongs to it, in whatever order."""
    np.add.at(hashes, index, values)
