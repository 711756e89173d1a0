"""The kinds of topology: each a function from a number of ends to wires, found by the name it registers under."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from ..isa.errors import ConfigError

Ints = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Shape:
    """What a kind can be told beside the number of its ends.

    `dims`: the sides of a mesh or torus. `leaf_cards`: ends on a leaf switch of a fat tree; `pod_leaves`: leaves of a
    pod, which makes it a tree of three levels; `oversubscription`: how many times more bandwidth enters a leaf (and an
    aggregation switch) from below than leaves it upwards.
    """

    dims: tuple[int, ...] = ()
    leaf_cards: int = 0
    pod_leaves: int = 0
    oversubscription: tuple[int, ...] = ()


PLAIN_SHAPE = Shape()


@dataclass(frozen=True)
class Wiring:
    """Directed wires (source, target) in the order of their ids; nodes from the number of ends on are `switches`.

    `tiers` says of every wire how far up it is: 0 at the ends, 1 between a leaf and what is above; empty means all 0.
    """

    wires: tuple[tuple[int, int], ...]
    switches: int = 0
    tiers: tuple[int, ...] = ()

    @cached_property
    def columns(self) -> tuple[Ints, Ints, Ints]:
        """Sources, targets and tiers of the wires."""
        source, target = np.array(self.wires, np.int64).reshape(-1, 2).T
        return source, target, np.array(self.tiers or (0,) * len(self.wires), np.int64)


Wire = Callable[[int, Shape], Wiring]


@dataclass(frozen=True)
class Kind:
    """A registered kind: the most ends it is built for, its wiring, what it can be told, and whether ways branch."""

    name: str
    max_cards: int
    wire: Wire
    takes: frozenset[str]
    branches: bool

    @property
    def summary(self) -> str:
        """The kind in one line."""
        return (self.wire.__doc__ or "").strip().split("\n")[0]


KINDS: dict[str, Kind] = {}


def kind(name: str, max_cards: int, takes: tuple[str, ...] = (), branches: bool = False) -> Callable[[Wire], Wire]:
    """Register a wiring under `name`; a name taken twice is an error at import."""

    def register(wire: Wire) -> Wire:
        if name in KINDS:
            raise AssertionError(f"topology kind {name} already belongs to {KINDS[name].wire.__qualname__}")
        KINDS[name] = Kind(name, max_cards, wire, frozenset(takes), branches)
        return wire

    return register


@lru_cache(maxsize=16)
def wiring_of(name: str, cards: int, shape: Shape = PLAIN_SHAPE) -> Wiring:
    """The wires of kind `name` over `cards` ends; ConfigError for an unknown kind, or a count or shape it has not."""
    check_kind(name, cards, shape)
    return KINDS[name].wire(cards, shape)


def check_kind(name: str, cards: int, shape: Shape = PLAIN_SHAPE) -> None:
    """ConfigError for an unknown kind, or for a count or shape it cannot have."""
    if name not in KINDS:
        near = difflib.get_close_matches(name, KINDS, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(f"kind {name!r} is not a topology{hint} (known: {', '.join(KINDS)})")
    if not 1 <= cards <= KINDS[name].max_cards:
        raise ConfigError(f"cards={cards} does not suit kind {name}; it takes 1 to {KINDS[name].max_cards}")
    for field in ("dims", "leaf_cards", "pod_leaves", "oversubscription"):
        if getattr(shape, field) and field not in KINDS[name].takes:
            takes = ", ".join(sorted(KINDS[name].takes)) or "nothing more"
            raise ConfigError(f"{field} means nothing to kind {name}; it takes {takes}")
    sides = " x ".join(map(str, shape.dims))
    if len(shape.dims) > 3:
        raise ConfigError(f"dims {sides} are {len(shape.dims)}; give 1 to 3 sides")
    if shape.dims and math.prod(shape.dims) != cards:
        raise ConfigError(
            f"dims {sides} hold {math.prod(shape.dims)} cards, not {cards}; give sides that do, or leave `cards` out"
        )


def _both_ways(ahead: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    return tuple(ahead + [(target, source) for source, target in ahead])


@kind("single", max_cards=1)
def single(cards: int, shape: Shape) -> Wiring:
    """One card, and no link."""
    return Wiring(())


@kind("ring", max_cards=65_536)
def ring(cards: int, shape: Shape) -> Wiring:
    """Each card joined to the next and the last to the first, both ways.

    Link i leads from card i to card i + 1, link n + i back. Two cards share one bidirectional wire: two directed links,
    not four. One card has none.
    """
    return torus(cards, Shape(dims=(cards,)))


@kind("full_mesh", max_cards=512)
def full_mesh(cards: int, shape: Shape) -> Wiring:
    """Each card joined to every other by a wire of its own, both ways; ids run by source, then target."""
    return Wiring(tuple((source, target) for source in range(cards) for target in range(cards) if source != target))


@kind("mesh", max_cards=65_536, takes=("dims",))
def mesh(cards: int, shape: Shape) -> Wiring:
    """A grid of 1 to 3 dimensions, each card joined to its neighbours both ways; without dims it is a line."""
    return Wiring(_both_ways(_grid(shape.dims or (cards,), wraps=False)))


@kind("torus", max_cards=65_536, takes=("dims",))
def torus(cards: int, shape: Shape) -> Wiring:
    """A grid of 1 to 3 dimensions whose ends are joined too; without dims it is a ring.

    Cards count through the dimensions like digits, the last one fastest. Links run by dimension, those ahead before
    those back. Where a side is 2, one bidirectional wire joins the two.
    """
    return Wiring(_both_ways(_grid(shape.dims or (cards,), wraps=True)))


def _grid(dims: tuple[int, ...], wraps: bool) -> list[tuple[int, int]]:
    """From each card to the next one of every dimension."""
    ahead, stride, cards = [], math.prod(dims), math.prod(dims)
    for side in dims:
        stride //= side
        for card in range(cards):
            place = card // stride % side
            if place + 1 < side:
                ahead.append((card, card + stride))
            elif wraps and side > 2:
                ahead.append((card, card - place * stride))
    return ahead


@kind("switch", max_cards=65_536)
def switch(cards: int, shape: Shape) -> Wiring:
    """Each card joined to one switch both ways; link i leads up from card i, link n + i down to it."""
    return Wiring(_both_ways([(card, cards) for card in range(cards)]), switches=1)


@kind("fat_tree", max_cards=65_536, takes=("leaf_cards", "pod_leaves", "oversubscription"), branches=True)
def fat_tree(cards: int, shape: Shape) -> Wiring:
    """Cards on leaf switches, every leaf joined to every spine; with pod_leaves a third level of cores above pods.

    A leaf of L cards has L / oversubscription links up, one to each spine (to each aggregation switch of its pod, where
    there are pods); an aggregation switch has one down to each leaf of its pod and pod_leaves / oversubscription up, to
    cores of its own number. Switches count leaves first, then spines or aggregation switches, then cores. Without
    leaf_cards a leaf has 8; what one leaf holds needs no spine, and what one pod holds no core.
    """
    leaf_cards = min(cards, shape.leaf_cards or 8)
    leaves = -(-cards // leaf_cards)
    up, core_up = _uplinks(leaf_cards, shape)
    wires = list(_both_ways([(card, cards + card // leaf_cards) for card in range(cards)]))
    tiers, switches, above = [0] * len(wires), leaves, cards + leaves
    pod_leaves = min(leaves, shape.pod_leaves or leaves)
    pods = -(-leaves // pod_leaves)
    if leaves > 1:
        pairs = [
            (cards + leaf, above + leaf // pod_leaves * up + spine) for leaf in range(leaves) for spine in range(up)
        ]
        wires += _both_ways(pairs)
        tiers += [1] * (2 * len(pairs))
        switches += pods * up
    if pods > 1:
        cores = above + pods * up
        pairs = [
            (above + pod * up + agg, cores + agg * core_up + core)
            for pod in range(pods)
            for agg in range(up)
            for core in range(core_up)
        ]
        wires += _both_ways(pairs)
        tiers += [2] * (2 * len(pairs))
        switches += up * core_up
    return Wiring(tuple(wires), switches, tuple(tiers))


def _uplinks(leaf_cards: int, shape: Shape) -> tuple[int, int]:
    """Links up from a leaf, and from an aggregation switch."""
    ratios = (*shape.oversubscription, 1, 1)
    ups = []
    for below, ratio, what in ((leaf_cards, ratios[0], "leaf_cards"), (shape.pod_leaves, ratios[1], "pod_leaves")):
        if ratio < 1 or below % ratio:
            raise ConfigError(f"oversubscription {ratio} does not divide {what}={below}; links up must be whole")
        ups.append(below // ratio)
    if len(shape.oversubscription) > (2 if shape.pod_leaves else 1):
        raise ConfigError(
            f"oversubscription {list(shape.oversubscription)} has more ratios than the tree has levels above its leaves"
        )
    return ups[0], ups[1]
