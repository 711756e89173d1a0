"""Levels of a cluster as users write them, and how they compose: dies in packages, cards in nodes, nodes on planes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, model_validator

from ..isa.errors import ConfigError
from .evidence import Quantity
from .kinds import Ints, Shape, check_kind, wiring_of
from .link import LinkSpec

MAX_CARDS = 65_536


class ShapeFields(BaseModel):
    """What a kind can be told, as in kinds.Shape; `planes` copies of the wiring stand side by side, with all ends."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    dims: tuple[StrictInt, ...] = ()
    leaf_cards: StrictInt = Field(default=0, ge=0)
    pod_leaves: StrictInt = Field(default=0, ge=0)
    oversubscription: tuple[StrictInt, ...] = ()
    planes: StrictInt = Field(default=1, ge=1, le=64)
    uplinks: tuple[LinkSpec, ...] = ()
    switch_reduces: StrictBool = False

    @property
    def kind_shape(self) -> Shape:
        """What the kind is told."""
        return Shape(self.dims, self.leaf_cards, self.pod_leaves, self.oversubscription)


class LevelSpec(ShapeFields):
    """One level of a hierarchy: `of` units of the level below joined by `kind`, each link like `link`.

    `joins` says what of each unit is an end of the wiring: all its `cards`; each card in a wiring of its own, with the
    cards of equal place in the other units (`rails`); or the `switch` of the unit below, where that has several planes
    in a wiring for each of them. `uplinks` are the links of a
    fat tree above its leaves, nearest first, where they differ from `link`.
    """

    name: str = Field(min_length=1)
    kind: str
    of: StrictInt = Field(ge=1, le=MAX_CARDS)
    joins: Literal["cards", "rails", "switch"] = "cards"
    link: LinkSpec

    @model_validator(mode="after")
    def _kind_suits(self) -> LevelSpec:
        if self.kind == "single":
            raise ValueError("a level joins units; kind single joins nothing")
        return self

    def quantities(self) -> list[Quantity]:
        """The numbers that times depend on."""
        return [number for link in (self.link, *self.uplinks) for number in link.quantities()]


@dataclass(frozen=True, eq=False)
class Built:
    """The wires of all levels as columns, how many switches there are, and which nodes of them reduce.

    Wire i leads from `source[i]` to `target[i]`, is like `links[like[i]]` and stands at level `level[i]`.
    """

    source: Ints
    target: Ints
    like: Ints
    level: Ints
    links: tuple[LinkSpec, ...]
    switches: int
    reducing: frozenset[int]

    @property
    def ends(self) -> set[tuple[int, int]]:
        """The pairs of nodes that are joined, (source, target)."""
        return set(zip(self.source.tolist(), self.target.tolist(), strict=True))


def cards_of(levels: Sequence[LevelSpec]) -> int:
    """All cards: the product of what each level joins."""
    return math.prod(level.of for level in levels)


def check_levels(levels: Sequence[LevelSpec]) -> None:
    """ConfigError where a level's kind or shape does not suit its ends, or has no switch below it to join."""
    cards = cards_of(levels)
    if cards > MAX_CARDS:
        raise ConfigError(f"levels hold {cards} cards; at most {MAX_CARDS} are built")
    names = [level.name for level in levels]
    if len(set(names)) < len(names):
        raise ConfigError(f"levels {', '.join(names)}: two have one name")
    inside = 1
    for number, level in enumerate(levels):
        ends = level.of * inside if level.joins == "cards" else level.of
        try:
            check_kind(level.kind, ends, level.kind_shape)
        except ConfigError as error:
            raise ConfigError(f"level {level.name}, {ends} ends: {error}") from None
        below = levels[number - 1] if number else None
        if level.joins == "switch" and (below is None or below.kind != "switch"):
            found = f"kind {below.kind}" if below else "nothing, for it is the innermost"
            raise ConfigError(f"level {level.name} joins the switch of each unit below it, and below it is {found}")
        inside *= level.of


def build(levels: Sequence[LevelSpec]) -> Built:
    """Wire all levels, innermost first, unit by unit, rail by rail, plane by plane: that is the order of link ids."""
    cards, inside = cards_of(levels), 1
    links: list[LinkSpec] = []
    wires: list[tuple[Ints, Ints, Ints, Ints]] = []
    node, reducing = cards, set[int]()
    tops: list[range] = []  # the switches of every unit of the level below, one a plane, where its kind is a switch
    for number, level in enumerate(levels):
        here: list[range] = []
        likes, first_like = (level.link, *level.uplinks), len(links)
        links += likes
        for unit in range(cards // (inside * level.of)):
            first = node
            for ends in _ends(level, unit, inside, tops):
                wiring = wiring_of(level.kind, len(ends), level.kind_shape)
                source, target, tiers = wiring.columns
                like = first_like + np.minimum(tiers, len(likes) - 1)
                nodes = np.concatenate((np.array(ends), np.zeros(wiring.switches, np.int64)))
                for _ in range(level.planes):
                    nodes[len(ends) :] = np.arange(wiring.switches) + node
                    wires.append((nodes[source], nodes[target], like, np.full(len(source), number)))
                    node += wiring.switches
            here.append(range(first, node))
            if level.switch_reduces:
                reducing.update(here[-1])
        tops, inside = here, inside * level.of
    source, target, like, at = (
        np.concatenate([np.zeros(0, np.int64), *(row[column] for row in wires)]) for column in range(4)
    )
    return Built(source, target, like, at, tuple(links), node - cards, frozenset(reducing))


def _ends(level: LevelSpec, unit: int, inside: int, tops: list[range]) -> Iterator[Sequence[int]]:
    """The ends of every wiring of one unit of a level."""
    size = inside * level.of
    first = unit * size
    if level.joins == "cards":
        yield range(first, first + size)
    elif level.joins == "rails":
        for rail in range(inside):
            yield range(first + rail, first + size, inside)
    else:
        yield from zip(*tops[unit * level.of : (unit + 1) * level.of], strict=True)
