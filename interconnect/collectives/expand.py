"""From the name of a collective to its plan, by any algorithm whose file stands beside this one."""

from __future__ import annotations

import difflib
from importlib import import_module
from pathlib import Path

from ...isa.errors import ConfigError
from .cache import WeighedCache
from .plan import Plan
from .registry import ALGORITHMS, COLLECTIVES, MAX_TRANSFERS, Collective, Options, algorithms_for

# Every sibling is imported, in name order, so that a new algorithm is a new file and nothing else.
for _path in sorted(Path(__file__).parent.glob("*.py")):
    if _path.stem not in {"__init__", "expand"}:
        import_module(f".{_path.stem}", __package__)

_PLANS: WeighedCache[Plan] = WeighedCache(1 << 28, lambda plan: 500 + plan.moves.num_bytes)
NO_OPTIONS = Options()


def expand(
    collective: str,
    group_size: int,
    algorithm: str | None = None,
    root: int = 0,
    options: Options = NO_OPTIONS,
) -> Plan:
    """The steps of a collective over `group_size` members, by `algorithm` (None: the collective's default).

    `root` is the index in the group that a broadcast, reduce, scatter or gather is about; it is 0 where the collective
    has none. `options` are for the algorithms that take them. A group of one has no steps. ConfigError for an unknown
    collective or algorithm, for a size, root or option it cannot have, or for more than 2**25 transfers.
    """
    key = (collective, group_size, algorithm, root, options)
    return _PLANS.get(key, lambda: _expand(collective, group_size, algorithm, root, options))


def _expand(collective: str, group_size: int, algorithm: str | None, root: int, options: Options) -> Plan:
    if collective not in COLLECTIVES:
        near = difflib.get_close_matches(collective, COLLECTIVES, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(f"{collective!r} is not a collective{hint} (known: {', '.join(COLLECTIVES)})")
    meaning = COLLECTIVES[collective]
    known = algorithms_for(collective)
    if algorithm is None or algorithm == known[0]:
        algorithm = known[0]
    elif algorithm in known:
        return _made(meaning, group_size, algorithm, root, options)
    else:
        raise ConfigError(f"no algorithm {algorithm!r} for {collective}; choose {', '.join(known)}")
    key = (collective, group_size, algorithm, root, options)
    return _PLANS.get((*key, "default"), lambda: _made(meaning, group_size, algorithm, root, options))


def check_expansion(collective: str, size: int, algorithm: str, root: int = 0, options: Options = NO_OPTIONS) -> None:
    """ConfigError where `expand` has it for a collective and algorithm that exist, without making the plan.

    What an algorithm itself refuses in its options shows only when it is made.
    """
    _check(COLLECTIVES[collective], size, algorithm, root, options)


def _made(meaning: Collective, size: int, algorithm: str, root: int, options: Options) -> Plan:
    entry = ALGORITHMS[meaning.name, algorithm]
    _check(meaning, size, algorithm, root, options)
    given = meaning.parts(size)
    parts = given * entry.pieces(size, options) if entry.parts is None else entry.parts(size, options)
    return Plan(
        meaning.name,
        algorithm,
        size,
        entry.make(size, root, options),
        root,
        parts,
        given,
        entry.uses_switch,
        str(options),
    )


def _check(meaning: Collective, size: int, algorithm: str, root: int, options: Options) -> None:
    if size < 1 or (meaning.size or size) != size:
        allowed = "1 or more" if meaning.size is None else str(meaning.size)
        raise ConfigError(f"{meaning.name} over a group of {size}; the group must have {allowed} members")
    if not 0 <= root < size:
        raise ConfigError(f"root {root} is not in the group; its members are 0 to {size - 1}")
    entry = ALGORITHMS[meaning.name, algorithm]
    for name in ("shape", "chunks", "rails"):
        value = getattr(options, name)
        if value and name not in entry.takes:
            takes = ", ".join(sorted(entry.takes)) or "none"
            raise ConfigError(f"{algorithm} {meaning.name} takes no option {name} (got {value}); it takes: {takes}")
        if name != "shape" and not 0 <= value <= 1 << 16:
            raise ConfigError(
                f"{name}={value} of {algorithm} {meaning.name}; choose 1 to {1 << 16}, or 0 for its usual"
            )
    if (transfers := entry.transfers(size, options)) > MAX_TRANSFERS:
        raise ConfigError(
            f"{algorithm} {meaning.name} of {size} is about {transfers} transfers, more than {MAX_TRANSFERS}; "
            "choose a smaller group, or an algorithm with fewer steps"
        )
