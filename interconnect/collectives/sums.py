"""Sums over the transfers of a plan, compiled: bytes on every link that they cross, and at every member."""

from __future__ import annotations

import numpy as np
from numba import njit

from .plan import Ints


@njit(cache=True)
def loads(sizes: Ints, pairs: Ints, stripes: int, flows: Ints, starts: Ints) -> Ints:
    """Bytes at every place in every step, int64 [steps, places], from the sizes of transfers, [steps, transfers].

    A transfer is of pair `pairs[i]` and cut evenly into `stripes` shares, the first ones a byte longer. At place i the
    flows `flows[starts[i]]` to the next one's count, flow p * stripes + s being the shares s of pair p.
    """
    found = np.zeros((len(sizes), len(starts)), np.int64)
    bytes_of = np.empty((pairs.max() + 1) * stripes, np.int64)
    for step in range(len(sizes)):
        bytes_of[:] = 0
        for transfer in range(len(pairs)):
            size = sizes[step, transfer]
            base, first = size // stripes, pairs[transfer] * stripes
            longer = size - base * stripes
            for share in range(stripes):
                bytes_of[first + share] += base + (share < longer)
        for place in range(len(starts)):
            end = starts[place + 1] if place + 1 < len(starts) else len(flows)
            total = 0
            for entry in range(starts[place], end):
                total += bytes_of[flows[entry]]
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
