"""What architects ask of a topology first: how many links, how far, and how much passes through its middle."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, reduce
from math import gcd

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import maximum_flow

from .routing import router
from .topology import Topology

MOST_PAIRS = 1 << 18
INT32 = 2**31 - 1


@dataclass(frozen=True)
class Measures:
    """`links` directed links that are up; `diameter` and `mean_hops` in links over routes between cards (0 for one).

    `bisection_bytes_per_s` is what can pass at once from cards 0 to n/2 - 1 to the others, one direction: the maximum
    flow between these halves. Where cards are numbered as they stand together that is the narrow middle.
    """

    cards: int
    switches: int
    links: int
    diameter: int
    mean_hops: float
    bisection_bytes_per_s: int


@lru_cache(maxsize=32)
def measures(topology: Topology) -> Measures:
    """The measures of a topology. Of more than 512 cards, distances are those of 2**18 pairs, evenly chosen."""
    cards = topology.cards
    every = max(1, cards * cards // MOST_PAIRS)
    source, target = np.divmod(np.arange(0, cards * cards, every), cards)
    apart = source != target
    hops = router(topology).routes(source[apart], target[apart], fixed=True).hops
    return Measures(
        cards,
        topology.switches,
        int((~topology.columns.down).sum()),
        int(hops.max()) if len(hops) else 0,
        float(hops.mean()) if len(hops) else 0.0,
        cut_bytes_per_s(topology, range(cards // 2), range(cards // 2, cards)) if cards > 1 else 0,
    )


def cut_bytes_per_s(topology: Topology, near: range | list[int], far: range | list[int]) -> int:
    """The most that can flow at once from some cards to others, in bytes a second: no collective gets more across."""
    columns = topology.columns
    up = ~columns.down
    unit = reduce(gcd, columns.bandwidth_bytes_per_s[up].tolist(), 0)
    if unit == 0:
        return 0
    capacity = columns.bandwidth_bytes_per_s[up] // unit
    scale = -(-int(capacity.sum()) // INT32)  # one beyond what int32 holds is rounded up: a bound stays one
    capacity = -(-capacity // scale)
    start, end = topology.nodes, topology.nodes + 1
    rows = np.concatenate((columns.source[up], np.full(len(near), start), np.array(far)))
    places = np.concatenate((columns.target[up], np.array(near), np.full(len(far), end)))
    sizes = np.concatenate((capacity, np.full(len(near) + len(far), min(INT32, int(capacity.sum())))))
    graph = coo_array((sizes.astype(np.int32), (rows, places)), shape=(end + 1, end + 1)).tocsr()
    return int(maximum_flow(graph, start, end).flow_value) * scale * unit
