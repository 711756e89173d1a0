"""The kinds of topology: each a function from a number of cards to wires, found by the name it registers under."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass

from ..isa.errors import ConfigError


@dataclass(frozen=True)
class Wiring:
    """Directed wires (source, target) in the order of their ids; nodes from `cards` on are `switches`."""

    wires: tuple[tuple[int, int], ...]
    switches: int = 0


@dataclass(frozen=True)
class Kind:
    """A registered kind: the most cards it is built for, and its wiring."""

    name: str
    max_cards: int
    wire: Callable[[int], Wiring]

    @property
    def summary(self) -> str:
        """The kind in one line."""
        return (self.wire.__doc__ or "").strip().split("\n")[0]


KINDS: dict[str, Kind] = {}


def kind(name: str, max_cards: int) -> Callable[[Callable[[int], Wiring]], Callable[[int], Wiring]]:
    """Register a wiring under `name`; a name taken twice is an error at import."""

    def register(wire: Callable[[int], Wiring]) -> Callable[[int], Wiring]:
        if name in KINDS:
            raise AssertionError(f"topology kind {name} already belongs to {KINDS[name].wire.__qualname__}")
        KINDS[name] = Kind(name, max_cards, wire)
        return wire

    return register


def wiring_of(name: str, cards: int) -> Wiring:
    """The wires of kind `name` over `cards` cards; ConfigError for an unknown kind or a count it cannot have."""
    if name not in KINDS:
        near = difflib.get_close_matches(name, KINDS, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(f"kind {name!r} is not a topology{hint} (known: {', '.join(KINDS)})")
    if not 1 <= cards <= KINDS[name].max_cards:
        raise ConfigError(f"cards={cards} does not suit kind {name}; it takes 1 to {KINDS[name].max_cards}")
    return KINDS[name].wire(cards)


@kind("single", max_cards=1)
def single(cards: int) -> Wiring:
    """One card, and no link."""
    return Wiring(())


@kind("ring", max_cards=65_536)
def ring(cards: int) -> Wiring:
    """Each card joined to the next and the last to the first, both ways.

    Link i leads from card i to card i + 1, link n + i back. Two cards share one bidirectional wire: two directed links,
    not four. One card has none.
    """
    if cards == 1:
        return Wiring(())
    ahead = [(card, (card + 1) % cards) for card in range(cards)]
    return Wiring(tuple(ahead if cards == 2 else ahead + [(target, source) for source, target in ahead]))


@kind("full_mesh", max_cards=512)
def full_mesh(cards: int) -> Wiring:
    """Each card joined to every other by a wire of its own, both ways; ids run by source, then target."""
    pairs = ((source, target) for source in range(cards) for target in range(cards))
    return Wiring(tuple(pair for pair in pairs if pair[0] != pair[1]))
