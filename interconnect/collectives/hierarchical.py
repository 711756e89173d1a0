"""Hierarchical algorithms: inside the package or node, then across, then inside again, any number of levels deep.

`shape` says how members stand together, outermost level first: (4, 8) is 4 nodes of 8, and member 8a + x is the x-th of
node a. A reduce-scatter goes through the levels from the innermost, each among members that differ at that level only,
so that every member takes 1/8 of its node's bytes across, on its own rail; an all-gather goes the other way. With N
nodes of m, S bytes, bandwidths b (inside) and c (across, a member), an all-reduce by rings takes
2 ((m-1) S/m/b + (N-1) S/(mN)/c) and 2 (m-1 + N-1) latencies. `hierarchical` walks a ring at every level,
`hierarchical_direct` lets all of a level send to each other at once, one step a level. In `chunks`, a chunk is at one
level while the next one is at the level before, so that links inside and across are busy at once.

Order of reduction: within a level the sums of the level below are the terms, by rings ((x[p+1] + x[p+2]) + ...) + x[p]
and directly ((x[p] + x[p-1]) + x[p-2]) + ..., p being the place of the member that keeps the sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from .plan import SIGNAL, Batch, Moves, MovesBuilder
from .registry import Options, algorithm, shape_of

StepBatches = tuple[Batch, ...]
Walk = Callable[["_Level", bool], list[StepBatches]]


class _Level:
    """The members of a group at one level: `side` of them differ there only, `inner` stand inside each."""

    def __init__(self, shape: tuple[int, ...], level: int) -> None:
        self.side = shape[level]
        self.inner = math.prod(shape[level + 1 :])
        self.outer = math.prod(shape[:level])
        self.members = np.arange(math.prod(shape))
        self.digit = self.members // self.inner % self.side

    def peer(self, digit: np.ndarray) -> np.ndarray:
        """The member that differs from each in its digit at this level only."""
        return self.members + (digit - self.digit) * self.inner

    def batch(self, distance: int, digit: np.ndarray, reduces: bool) -> Batch:
        """Everyone sends the member `distance` further on the parts with `digit` here and its own digits further in."""
        first = digit * self.inner + self.members % self.inner
        parts = np.arange(self.outer) * (self.side * self.inner) + first[:, None]
        peer = self.peer((self.digit + distance) % self.side)
        return self.members[:, None], peer[:, None], parts, reduces


def _ring(level: _Level, reduces: bool) -> list[StepBatches]:
    digits = ((level.digit - index - reduces) % level.side for index in range(level.side - 1))
    return [(level.batch(1, digit, reduces),) for digit in digits]


def _direct(level: _Level, reduces: bool) -> list[StepBatches]:
    distances = range(1, level.side)
    digits = ((level.digit + distance) % level.side if reduces else level.digit for distance in distances)
    together = tuple(level.batch(distance, digit, reduces) for distance, digit in zip(distances, digits, strict=True))
    return [together] if together else []


def _walk(walk: Walk, size: int, options: Options, scatter: bool, gather: bool) -> Moves:
    if size == 1:
        return MovesBuilder().moves()
    shape = shape_of(size, options, "a hierarchical algorithm")
    levels = [_Level(shape, level) for level in range(len(shape))]
    stages = [walk(level, True) for level in reversed(levels)] if scatter else []
    stages += [walk(level, False) for level in levels] if gather else []
    return _pipelined(stages, _chunks(size, options))


def _pipelined(stages: list[list[StepBatches]], chunks: int) -> Moves:
    """Chunk c is in stage s while chunk c + 1 is in stage s - 1; steps of equal number in their stages are one."""
    builder = MovesBuilder()
    for slot in range(len(stages) + chunks - 1):
        active = [(chunk, stages[slot - chunk]) for chunk in range(chunks) if 0 <= slot - chunk < len(stages)]
        for index in range(max(len(steps) for _, steps in active)):
            builder.step(
                *(
                    (sources, targets, parts * chunks + chunk, reduces)
                    for chunk, steps in active
                    for sources, targets, parts, reduces in (steps[index] if index < len(steps) else ())
                )
            )
    return builder.moves()


def _chunks(size: int, options: Options) -> int:
    return max(1, options.chunks)


def _transfers(size: int, options: Options) -> int:
    return 2 * size * size * _chunks(size, options)


@algorithm("all_reduce", "hierarchical", pieces=_chunks, takes=("shape", "chunks"), transfers=_transfers)
def all_reduce(size: int, root: int, options: Options) -> Moves:
    """Rings: reduce-scatter inwards out, then all-gather outwards in."""
    return _walk(_ring, size, options, scatter=True, gather=True)


@algorithm("reduce_scatter", "hierarchical", pieces=_chunks, takes=("shape", "chunks"), transfers=_transfers)
def reduce_scatter(size: int, root: int, options: Options) -> Moves:
    """Rings, the innermost level first."""
    return _walk(_ring, size, options, scatter=True, gather=False)


@algorithm("all_gather", "hierarchical", pieces=_chunks, takes=("shape", "chunks"), transfers=_transfers)
def all_gather(size: int, root: int, options: Options) -> Moves:
    """Rings, the outermost level first."""
    return _walk(_ring, size, options, scatter=False, gather=True)


@algorithm("all_reduce", "hierarchical_direct", pieces=_chunks, takes=("shape", "chunks"), transfers=_transfers)
def all_reduce_direct(size: int, root: int, options: Options) -> Moves:
    """Two steps a level."""
    return _walk(_direct, size, options, scatter=True, gather=True)


@algorithm("reduce_scatter", "hierarchical_direct", pieces=_chunks, takes=("shape", "chunks"), transfers=_transfers)
def reduce_scatter_direct(size: int, root: int, options: Options) -> Moves:
    """A step a level, the innermost first."""
    return _walk(_direct, size, options, scatter=True, gather=False)


@algorithm("all_gather", "hierarchical_direct", pieces=_chunks, takes=("shape", "chunks"), transfers=_transfers)
def all_gather_direct(size: int, root: int, options: Options) -> Moves:
    """A step a level, the outermost first."""
    return _walk(_direct, size, options, scatter=False, gather=True)


def _binomial(size: int, root: int, options: Options, reduces: bool) -> Moves:
    """One member of each unit first hears from (or last tells) its like in other units, level by level, by doubling."""
    batches: list[Batch] = []
    shape = shape_of(size, options, "a hierarchical algorithm") if size > 1 else ()
    for number in range(len(shape)):
        level = _Level(shape, number)
        at_root = level.members % level.inner == root % level.inner
        offset = (level.digit - root // level.inner) % level.side
        distance = 1
        while distance < level.side:
            sends = np.flatnonzero(at_root & (offset < distance) & (offset + distance < level.side))
            hears = level.peer((level.digit + distance) % level.side)[sends]
            batches.append((hears, sends, 0, True) if reduces else (sends, hears, 0, False))
            distance *= 2
    builder = MovesBuilder()
    for batch in reversed(batches) if reduces else batches:
        builder.step(batch)
    return builder.moves()


@algorithm("broadcast", "hierarchical", takes=("shape",))
def broadcast(size: int, root: int, options: Options) -> Moves:
    """Across nodes to the members that stand there as the root does, then inside every node."""
    return _binomial(size, root, options, reduces=False)


@algorithm("reduce", "hierarchical", takes=("shape",))
def reduce(size: int, root: int, options: Options) -> Moves:
    """Inside every node to the member that stands there as the root does, then across."""
    return _binomial(size, root, options, reduces=True)


@algorithm("barrier", "hierarchical", takes=("shape",))
def barrier(size: int, root: int, options: Options) -> Moves:
    """Dissemination inside every node, then across among members of equal place."""
    builder = MovesBuilder()
    shape = shape_of(size, options, "a hierarchical algorithm") if size > 1 else ()
    for number in reversed(range(len(shape))):
        level, distance = _Level(shape, number), 1
        while distance < level.side:
            peer = level.peer((level.digit + distance) % level.side)
            builder.step((level.members, peer, SIGNAL, False))
            distance *= 2
    return builder.moves()
