"""Sums over the transfers of a plan, compiled: bytes on every link that they cross, and at every member."""

from __future__ import annotations

import numpy as np
from numba import njit

from .plan import Ints


@njit(cache=True)
def loads(sizes: Ints, columns: Ints, shares: Ints, starts: Ints, stripes: int) -> Ints:
    """Bytes at every place in every step, int64 [steps, places], from the sizes of transfers, [steps, transfers].

    At place i share `shares[e]` of transfer `columns[e]` counts for every entry e from `starts[i]` to the next one's;
    a transfer is cut evenly into `stripes` shares, the first ones a byte longer.
    """
    found = np.zeros((len(sizes), len(starts)), np.int64)
    for step in range(len(sizes)):
        base = sizes[step] // stripes
        longer = sizes[step] - base * stripes
        for place in range(len(starts)):
            end = starts[place + 1] if place + 1 < len(starts) else len(columns)
            total = 0
            for entry in range(starts[place], end):
                transfer = columns[entry]
                total += base[transfer] + (shares[entry] < longer[transfer])
            found[step, place] = total
    return found


@njit(cache=True)
def at_members(sources: Ints, targets: Ints, reduces: Ints, sizes: Ints, members: int) -> Ints:
    """Bytes sent, received and reduced at every member, int64 [3, members]."""
    found = np.zeros((3, members), np.int64)
    for transfer in range(len(sizes)):
        size = sizes[transfer]
        found[0, sources[transfer]] += size
        found[1, targets[transfer]] += size
        found[2, targets[transfer]] += size * reduces[transfer]
    return found
