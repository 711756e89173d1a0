"""From the name of a collective to its plan, by any algorithm whose file stands beside this one."""

from __future__ import annotations

import difflib
from functools import lru_cache
from importlib import import_module
from pathlib import Path

from ...isa.errors import ConfigError
from .plan import Plan
from .registry import ALGORITHMS, COLLECTIVES, algorithms_for

# Every sibling is imported, in name order, so that a new algorithm is a new file and nothing else.
for _path in sorted(Path(__file__).parent.glob("*.py")):
    if _path.stem not in {"__init__", "expand"}:
        import_module(f".{_path.stem}", __package__)


@lru_cache(maxsize=512)
def expand(collective: str, group_size: int, algorithm: str | None = None, root: int = 0) -> Plan:
    """The steps of a collective over `group_size` members, by `algorithm` (None: the collective's default).

    `root` is the index in the group that a broadcast starts from; it is 0 where the collective has none. A group of
    one has no steps. ConfigError for an unknown collective or algorithm, or a size or root it cannot have.
    """
    if collective not in COLLECTIVES:
        near = difflib.get_close_matches(collective, COLLECTIVES, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(f"{collective!r} is not a collective{hint} (known: {', '.join(COLLECTIVES)})")
    meaning = COLLECTIVES[collective]
    known = algorithms_for(collective)
    algorithm = known[0] if algorithm is None else algorithm
    if algorithm not in known:
        raise ConfigError(f"no algorithm {algorithm!r} for {collective}; choose {', '.join(known)}")
    if group_size < 1 or (meaning.size or group_size) != group_size:
        allowed = "1 or more" if meaning.size is None else str(meaning.size)
        raise ConfigError(f"{collective} over a group of {group_size}; the group must have {allowed} members")
    if not 0 <= root < group_size:
        raise ConfigError(f"root {root} is not in the group; its members are 0 to {group_size - 1}")
    steps = ALGORITHMS[collective, algorithm](group_size, root)
    return Plan(collective, algorithm, group_size, steps, root, meaning.parts(group_size))
