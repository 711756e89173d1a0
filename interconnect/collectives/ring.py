"""Ring algorithms: every member sends to the next in group order and hears from the one before.

Each step uses one directed link a member where neighbours in the group are neighbours in the topology; in a full mesh
too, so the other wires of the mesh stay idle. With n members, parts of S/n bytes, bandwidth b and latency L the times
alone are: reduce-scatter and all-gather (n-1)(S/n/b + L), all-reduce 2(n-1)(S/n/b + L), barrier (n-1) L, and
all-to-all with parts of P bytes n(n-1)/2 (P/b + L). `ring_both_ways` sends half of every part each way round, and
takes (n-1)(S/2n/b + L).

Order of reduction: part p starts at member p+1 and travels the ring to member p, each member adding its own
contribution to the partial sum that arrives: ((x[p+1] + x[p+2]) + ...) + x[p]. So the order differs from part to part
but never from run to run, and in an all-reduce every member gets the bits that member p made. The half that goes the
other way round starts at member p-1: ((x[p-1] + x[p-2]) + ...) + x[p].
"""

from __future__ import annotations

import numpy as np

from .plan import SIGNAL, Batch, Moves, MovesBuilder
from .registry import Options, algorithm


def reduce_batch(order: np.ndarray, index: int, pieces: int = 1, piece: int = 0) -> Batch:
    """Step `index` of a reduce-scatter round the ring of members `order`; part p ends at member p."""
    n = len(order)
    places = np.arange(n)
    owners = order[(places - index - 1) % n]
    return order, order[(places + 1) % n], owners * pieces + piece, True


def gather_batch(order: np.ndarray, index: int, pieces: int = 1, piece: int = 0) -> Batch:
    """Step `index` of an all-gather round the ring of members `order`; part p starts at member p."""
    n = len(order)
    places = np.arange(n)
    owners = order[(places - index) % n]
    return order, order[(places + 1) % n], owners * pieces + piece, False


def rings(orders: list[np.ndarray], scatter: bool, gather: bool) -> Moves:
    """A reduce-scatter, an all-gather or both round several rings at once, ring i with piece i of every part."""
    builder, pieces = MovesBuilder(), len(orders)
    for wanted, batch in ((scatter, reduce_batch), (gather, gather_batch)):
        for index in range(len(orders[0]) - 1 if wanted else 0):
            builder.step(*(batch(order, index, pieces, piece) for piece, order in enumerate(orders)))
    return builder.moves()


def _both_ways(size: int) -> list[np.ndarray]:
    return [np.arange(size), np.arange(size)[::-1]]


@algorithm("reduce_scatter", "ring")
def reduce_scatter(size: int, root: int, options: Options) -> Moves:
    """n-1 steps; the sum of part p ends at member p, the other parts of a buffer hold partial sums."""
    return rings([np.arange(size)], scatter=True, gather=False)


@algorithm("all_gather", "ring")
def all_gather(size: int, root: int, options: Options) -> Moves:
    """n-1 steps; member p's part p travels once round."""
    return rings([np.arange(size)], scatter=False, gather=True)


@algorithm("all_reduce", "ring")
def all_reduce(size: int, root: int, options: Options) -> Moves:
    """A reduce-scatter, then an all-gather of what it left."""
    return rings([np.arange(size)], scatter=True, gather=True)


@algorithm("reduce_scatter", "ring_both_ways", pieces=2)
def reduce_scatter_both_ways(size: int, root: int, options: Options) -> Moves:
    """n-1 steps; half of every part goes ahead, half back."""
    return rings(_both_ways(size), scatter=True, gather=False)


@algorithm("all_gather", "ring_both_ways", pieces=2)
def all_gather_both_ways(size: int, root: int, options: Options) -> Moves:
    """n-1 steps; half of every part goes ahead, half back."""
    return rings(_both_ways(size), scatter=False, gather=True)


@algorithm("all_reduce", "ring_both_ways", pieces=2)
def all_reduce_both_ways(size: int, root: int, options: Options) -> Moves:
    """2(n-1) steps; half of every part goes ahead, half back."""
    return rings(_both_ways(size), scatter=True, gather=True)


@algorithm("barrier", "ring")
def barrier(size: int, root: int, options: Options) -> Moves:
    """n-1 steps of signals without bytes: after step k a member knows that the k before it have come."""
    builder, members = MovesBuilder(), np.arange(size)
    for _ in range(size - 1):
        builder.step((members, (members + 1) % size, SIGNAL, False))
    return builder.moves()


def _relayed(size: int, options: Options) -> int:
    return size * size * (size - 1) // 2


@algorithm("all_to_all", "ring", transfers=_relayed)
def all_to_all(size: int, root: int, options: Options) -> Moves:
    """n(n-1)/2 steps: what member i has for member i+d is handed on d times, one part a member at a time."""
    builder, members = MovesBuilder(), np.arange(size)
    for distance in range(1, size):
        for hop in range(distance):
            first = (members - hop) % size
            builder.step((members, (members + 1) % size, first * size + (first + distance) % size, False))
    return builder.moves()
