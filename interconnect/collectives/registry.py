"""What each collective promises, and the algorithms that keep the promise, by (collective, algorithm)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...isa.errors import ConfigError
from .plan import Moves

Members = frozenset[int]
MAX_TRANSFERS = 1 << 25  # half a gigabyte of plan: a ring of 4,096


@dataclass(frozen=True)
class Options:
    """What an algorithm can be told beside the group.

    `shape`: how many members stand together at each level of the machine, outermost first, as (4, 8) for 4 nodes of 8;
    members count through it like digits. `chunks`: how many pieces follow one another through a pipeline. `rails`: how
    many rings or trees run beside one another, each with its piece of the bytes.
    """

    shape: tuple[int, ...] = ()
    chunks: int = 0
    rails: int = 0

    def __str__(self) -> str:
        words = ["x".join(map(str, self.shape))] if self.shape else []
        words += [f"{name}={value}" for name, value in (("chunks", self.chunks), ("rails", self.rails)) if value]
        return " ".join(words)


Algorithm = Callable[[int, int, Options], Moves]  # (group size, root, options) -> transfers
Cut = Callable[[int, Options], int]


@dataclass(frozen=True)
class Entry:
    """A registered algorithm: `pieces` of each given part, or `parts` of the whole buffer, and what it can be told.

    `takes` names the options that it reads. `copies` estimates its transfers, so that a plan beyond reason is refused
    before it is made.
    """

    make: Algorithm
    pieces: Cut
    parts: Cut | None
    takes: frozenset[str]
    uses_switch: bool
    transfers: Cut

    @property
    def summary(self) -> str:
        """The algorithm in a few lines."""
        return (self.make.__doc__ or "").strip()


@dataclass(frozen=True)
class Collective:
    """What a collective means, part by part, whatever the algorithm; a test holds every algorithm to it.

    `parts(size)` is how many parts the buffer has. `begins(member, part, size, root)` is whose contribution stands in
    that part of a member's buffer at first (empty: nothing of use), and `ends` whose sum must stand there at last
    (None: anything). `size` is the only legal group size, where there is but one. `gathers_all` asks that in the end
    every member has heard, directly or through others, from every member. `rooted` collectives have a root. `usual` is
    the algorithm that expands it where none is named.
    """

    name: str
    parts: Callable[[int], int]
    begins: Callable[[int, int, int, int], Members]
    ends: Callable[[int, int, int, int], Members | None]
    size: int | None = None
    gathers_all: bool = False
    rooted: bool = False
    usual: str = "direct"


def _everyone(member: int, part: int, size: int, root: int) -> Members:
    return frozenset(range(size))


def _own(member: int, part: int, size: int, root: int) -> Members:
    return frozenset({member})


def _owned_part(member: int, part: int, size: int, root: int) -> Members:
    return frozenset({member}) if part == member else frozenset()


def _root(member: int, part: int, size: int, root: int) -> Members:
    return frozenset({root})


def _at_root(member: int, part: int, size: int, root: int) -> Members:
    return frozenset({root}) if member == root else frozenset()


_DECLARED = (
    Collective("all_reduce", lambda size: size, _own, _everyone, gathers_all=True, usual="ring"),
    Collective(
        "reduce_scatter",
        lambda size: size,
        _own,
        lambda member, part, size, root: frozenset(range(size)) if part == member else None,
        gathers_all=True,
        usual="ring",
    ),
    Collective(
        "all_gather",
        lambda size: size,
        _owned_part,
        lambda member, part, size, root: frozenset({part}),
        gathers_all=True,
        usual="ring",
    ),
    Collective(  # part i * size + j is what member i has for member j
        "all_to_all",
        lambda size: size * size,
        lambda member, part, size, root: frozenset({member}) if part // size == member else frozenset(),
        lambda member, part, size, root: frozenset({part // size}) if part % size == member else None,
        gathers_all=True,
    ),
    Collective("broadcast", lambda size: 1, _at_root, _root, rooted=True, usual="chain"),
    Collective(
        "reduce",
        lambda size: 1,
        _own,
        lambda member, part, size, root: frozenset(range(size)) if member == root else None,
        rooted=True,
        usual="chain",
    ),
    Collective(  # part i is what member i gets
        "scatter",
        lambda size: size,
        _at_root,
        lambda member, part, size, root: frozenset({root}) if part == member else None,
        rooted=True,
    ),
    Collective(  # part i is what member i has
        "gather",
        lambda size: size,
        _owned_part,
        lambda member, part, size, root: frozenset({part}) if member == root else None,
        rooted=True,
    ),
    Collective("barrier", lambda size: 0, _own, _own, gathers_all=True, usual="ring"),
    Collective("send_recv", lambda size: 1, _own, lambda member, part, size, root: frozenset({0}), size=2),
    Collective(
        "send_recv_reduce",
        lambda size: 1,
        _own,
        lambda member, part, size, root: frozenset(range(member + 1)),
        size=2,
    ),
)
COLLECTIVES: dict[str, Collective] = {collective.name: collective for collective in _DECLARED}
ALGORITHMS: dict[tuple[str, str], Entry] = {}


def _one(size: int, options: Options) -> int:
    return 1


def _square(size: int, options: Options) -> int:
    return 2 * size * size  # twice round a ring, or everyone to everyone and back


def algorithm(
    collective: str,
    name: str,
    *,
    pieces: int | Cut = _one,
    parts: Cut | None = None,
    takes: tuple[str, ...] = (),
    uses_switch: bool = False,
    transfers: Cut = _square,
) -> Callable[[Algorithm], Algorithm]:
    """Register an expansion of a collective under a name. A clash is an error at import."""

    def register(expansion: Algorithm) -> Algorithm:
        if collective not in COLLECTIVES:
            raise AssertionError(f"{name}: {collective} is no collective; known: {', '.join(COLLECTIVES)}")
        if (collective, name) in ALGORITHMS:
            owner = ALGORITHMS[collective, name].make.__qualname__
            raise AssertionError(f"{name} for {collective} already belongs to {owner}")
        fixed = pieces
        cut: Cut = fixed if callable(fixed) else lambda size, options: fixed
        ALGORITHMS[collective, name] = Entry(expansion, cut, parts, frozenset(takes), uses_switch, transfers)
        return expansion

    return register


def algorithms_for(collective: str) -> tuple[str, ...]:
    """The algorithms that expand this collective, its default first."""
    usual = COLLECTIVES[collective].usual
    names = [name for kind, name in ALGORITHMS if kind == collective]
    return tuple(sorted(names, key=lambda name: name != usual))


def shape_of(size: int, options: Options, name: str) -> tuple[int, ...]:
    """The levels of a hierarchy, outermost first; ConfigError unless their product is the group."""
    product = 1
    for count in options.shape:
        product *= count
    if len(options.shape) < 2 or product != size or min(options.shape) < 1:
        raise ConfigError(
            f"{name} over {size} members needs their shape, outermost first, as (nodes, members of a node) with the "
            f"product {size}; got {options.shape}"
        )
    return options.shape
