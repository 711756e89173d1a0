"""Ring algorithms: every member sends to the next in group order and hears from the one before.

Each step uses one directed link a member where neighbours in the group are neighbours in the topology; in a full mesh
too, so the other wires of the mesh stay idle. With n members, parts of S/n bytes, bandwidth b and latency L the times
alone are: reduce-scatter and all-gather (n-1)(S/n/b + L), all-reduce 2(n-1)(S/n/b + L), barrier (n-1) L.

Order of reduction: part p starts at member p+1 and travels the ring to member p, each member adding its own
contribution to the partial sum that arrives: ((x[p+1] + x[p+2]) + ...) + x[p]. So the order differs from part to part
but never from run to run, and in an all-reduce every member gets the bits that member p made.
"""

from __future__ import annotations

from .plan import SIGNAL, Step, Transfer
from .registry import algorithm


def _reduce_step(size: int, index: int) -> Step:
    return Step(tuple(Transfer(m, (m + 1) % size, (m - index - 1) % size, reduces=True) for m in range(size)))


def _gather_step(size: int, index: int) -> Step:
    return Step(tuple(Transfer(m, (m + 1) % size, (m - index) % size) for m in range(size)))


@algorithm("reduce_scatter", "ring")
def reduce_scatter(size: int, root: int) -> tuple[Step, ...]:
    """n-1 steps; the sum of part p ends at member p, the other parts of a buffer hold partial sums."""
    return tuple(_reduce_step(size, index) for index in range(size - 1))


@algorithm("all_gather", "ring")
def all_gather(size: int, root: int) -> tuple[Step, ...]:
    """n-1 steps; member p's part p travels once round."""
    return tuple(_gather_step(size, index) for index in range(size - 1))


@algorithm("all_reduce", "ring")
def all_reduce(size: int, root: int) -> tuple[Step, ...]:
    """A reduce-scatter, then an all-gather of what it left."""
    return reduce_scatter(size, root) + all_gather(size, root)


@algorithm("barrier", "ring")
def barrier(size: int, root: int) -> tuple[Step, ...]:
    """n-1 steps of signals without bytes: after step k a member knows that the k before it have come."""
    return tuple(Step(tuple(Transfer(m, (m + 1) % size, SIGNAL) for m in range(size))) for _ in range(size - 1))
