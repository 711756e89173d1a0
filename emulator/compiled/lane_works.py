"""Works of instructions that many ranks were costed for at once, for those who look at a few of them afterwards."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from ...isa.work import Work
from ..card import Op
from .lane_ops import Batch, LaneOps


def lane_works(asked: Iterable[tuple[Sequence[Op], Sequence[int]]]) -> dict[tuple[int, int], Work]:
    """The Works of some sites of each rank's operations that were costed in lanes, by (identity of these, site).

    What is not there, the operation itself knows as cheaply.
    """
    places: defaultdict[tuple[int, int], list[tuple[int, int, int]]] = defaultdict(list)
    batches: dict[int, Batch] = {}
    for ops, sites in asked:
        if isinstance(ops, LaneOps):
            batches[id(ops.batch)] = ops.batch
            for site in sites:
                number = int(ops.asked[site])
                if ops.batch.is_lane(number):
                    places[id(ops.batch), number].append((ops.place, id(ops), site))
    found: dict[tuple[int, int], Work] = {}
    for (batch, number), own in places.items():
        known = batches[batch].known_works
        unknown = sorted({place for place, _, _ in own if (place, number) not in known})
        if unknown:
            works = batches[batch].works(number, np.array(unknown))
            known |= {(place, number): work for place, work in works}
        found |= {(ops, site): known[place, number] for place, ops, site in own if (place, number) in known}
    return found
