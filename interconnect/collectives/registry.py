"""What each collective promises, and the algorithms that keep the promise, by (collective, algorithm)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .plan import Step

Members = frozenset[int]
Algorithm = Callable[[int, int], tuple[Step, ...]]  # (group size, root) -> steps


@dataclass(frozen=True)
class Collective:
    """What a collective means, part by part, whatever the algorithm; a test holds every algorithm to it.

    `parts(size)` is how many parts the buffer has. `begins(member, part, size, root)` is whose contribution stands in
    that part of a member's buffer at first (empty: nothing of use), and `ends` whose sum must stand there at last
    (None: anything). `size` is the only legal group size, where there is but one. `gathers_all` asks that in the end
    every member has heard, directly or through others, from every member.
    """

    name: str
    parts: Callable[[int], int]
    begins: Callable[[int, int, int, int], Members]
    ends: Callable[[int, int, int, int], Members | None]
    size: int | None = None
    gathers_all: bool = False


def _everyone(member: int, part: int, size: int, root: int) -> Members:
    return frozenset(range(size))


def _own(member: int, part: int, size: int, root: int) -> Members:
    return frozenset({member})


def _owned_part(member: int, part: int, size: int, root: int) -> Members:
    return frozenset({member}) if part == member else frozenset()


def _root(member: int, part: int, size: int, root: int) -> Members:
    return frozenset({root})


COLLECTIVES: dict[str, Collective] = {
    collective.name: collective
    for collective in (
        Collective("all_reduce", lambda size: size, _own, _everyone, gathers_all=True),
        Collective(
            "reduce_scatter",
            lambda size: size,
            _own,
            lambda member, part, size, root: frozenset(range(size)) if part == member else None,
            gathers_all=True,
        ),
        Collective(
            "all_gather",
            lambda size: size,
            _owned_part,
            lambda m, part, size, root: frozenset({part}),
            gathers_all=True,
        ),
        Collective(
            "broadcast",
            lambda size: 1,
            lambda member, part, size, root: frozenset({root}) if member == root else frozenset(),
            _root,
        ),
        Collective("barrier", lambda size: 0, _own, _own, gathers_all=True),
        Collective("send_recv", lambda size: 1, _own, lambda member, part, size, root: frozenset({0}), size=2),
        Collective(
            "send_recv_reduce",
            lambda size: 1,
            _own,
            lambda member, part, size, root: frozenset(range(member + 1)),
            size=2,
        ),
    )
}
ALGORITHMS: dict[tuple[str, str], Algorithm] = {}


def algorithm(collective: str, name: str) -> Callable[[Algorithm], Algorithm]:
    """Register an expansion; the first one of a collective is its default. A clash is an error at import."""

    def register(expansion: Algorithm) -> Algorithm:
        if collective not in COLLECTIVES:
            raise AssertionError(f"{name}: {collective} is no collective; known: {', '.join(COLLECTIVES)}")
        if (collective, name) in ALGORITHMS:
            owner = ALGORITHMS[collective, name].__qualname__
            raise AssertionError(f"{name} for {collective} already belongs to {owner}")
        ALGORITHMS[collective, name] = expansion
        return expansion

    return register


def algorithms_for(collective: str) -> tuple[str, ...]:
    """The algorithms that expand this collective, its default first."""
    return tuple(name for kind, name in ALGORITHMS if kind == collective)
