"""Which switch a group reduces in: one that all members reach over switches only."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from ...isa.errors import ConfigError
from ..routing import router
from ..topology import Topology


@lru_cache(maxsize=4096)
def nearest_reducer(ranks: tuple[int, ...], topology: Topology) -> int | None:
    """The reducing switch that is nearest to all members together, the lowest of several; None where there is none.

    Members must reach it over switches alone: a card on the way would have to hand on what it has no part in, and a
    switch inside one node adds for the cards of that node, not for those of others behind them.
    """
    found = [(_hops(ranks, switch, topology), switch) for switch in sorted(topology.reducing)]
    reached = [(hops, switch) for hops, switch in found if hops is not None]
    return min(reached)[1] if reached else None


def _hops(ranks: tuple[int, ...], switch: int, topology: Topology) -> int | None:
    """Links from all members to a switch and back, added up; None where a way passes a card, or there is none."""
    members, target = np.array(ranks, np.int64), np.full(len(ranks), switch)
    total = 0
    for sources, targets in ((members, target), (target, members)):
        try:
            routes = router(topology).routes(sources, targets, fixed=True)
        except ConfigError:
            return None
        passed = np.delete(topology.columns.target[routes.links], routes.starts[1:] - 1)  # without the last node
        if (passed < topology.cards).any():
            return None
        total += int(routes.hops.sum())
    return total
