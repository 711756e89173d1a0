"""Trees: binomial ones for what has a root, and two binary ones that share the bytes of an all-reduce.

Binomial, n members, bandwidth b, latency L: broadcast and reduce ceil(log2 n) (S/b + L); scatter and gather move every
part over at most ceil(log2 n) hops and the root sends S in all. Double binary tree (every member is a leaf of one of
them): with c chunks and depth d, a step moves up to four runs of S/2c bytes over a member's port, so that an all-reduce
takes about (c + 2d - 1) 2S/cb + 2d L.

Order of reduction: a member adds its children's sums to its own, one after the other; in a binomial tree the child that
stands farthest comes first, in a binary tree the lower one.
"""

from __future__ import annotations

import numpy as np

from .plan import Moves, MovesBuilder
from .registry import Options, algorithm

CHUNKS = 8


def _log(size: int, options: Options) -> int:
    return size * size.bit_length()


def _distances(size: int) -> list[int]:
    """1, 2, 4 .. below `size`."""
    return [1 << level for level in range((size - 1).bit_length())]


def _absolute(offset: np.ndarray, size: int, root: int) -> np.ndarray:
    return (offset + root) % size


@algorithm("broadcast", "binomial", transfers=_log)
def broadcast(size: int, root: int, options: Options) -> Moves:
    """In step k the first 2^k members, counted from the root, send to the next 2^k."""
    builder = MovesBuilder()
    for distance in _distances(size):
        have = np.arange(min(distance, size - distance))
        builder.step((_absolute(have, size, root), _absolute(have + distance, size, root), 0, False))
    return builder.moves()


@algorithm("reduce", "binomial", transfers=_log)
def reduce(size: int, root: int, options: Options) -> Moves:
    """A broadcast backwards, adding."""
    builder = MovesBuilder()
    for distance in reversed(_distances(size)):
        have = np.arange(min(distance, size - distance))
        builder.step((_absolute(have + distance, size, root), _absolute(have, size, root), 0, True))
    return builder.moves()


def _ranges(size: int, distance: int) -> tuple[np.ndarray, np.ndarray]:
    """(near member, part) of the exchange between members 0, 2d, 4d .. and those `distance` further on, from the root.

    The far member answers for itself and the distance - 1 after it.
    """
    near = np.arange(0, size - distance, 2 * distance)
    member, part = np.repeat(near, distance), (near[:, None] + distance + np.arange(distance)).reshape(-1)
    return member[part < size], part[part < size]


@algorithm("scatter", "binomial", transfers=_log)
def scatter(size: int, root: int, options: Options) -> Moves:
    """The root sends half of the parts to the middle, and so on in each half."""
    builder = MovesBuilder()
    for distance in reversed(_distances(size)):
        near, part = _ranges(size, distance)
        far, parts = _absolute(near + distance, size, root), _absolute(part, size, root)
        builder.step((_absolute(near, size, root), far, parts, False))
    return builder.moves()


@algorithm("gather", "binomial", transfers=_log)
def gather(size: int, root: int, options: Options) -> Moves:
    """A scatter backwards."""
    builder = MovesBuilder()
    for distance in _distances(size):
        near, part = _ranges(size, distance)
        far, parts = _absolute(near + distance, size, root), _absolute(part, size, root)
        builder.step((far, _absolute(near, size, root), parts, False))
    return builder.moves()


def _parents(size: int) -> np.ndarray:
    """The parent of every member in an in-order binary tree whose odd members are leaves; -1 for the root, member 0."""
    parents = [-1]
    for member in range(1, size):
        bit = member & -member
        above = (member ^ bit) | (bit << 1)
        parents.append(above if above < size else member ^ bit)
    return np.array(parents)


def _depths(parents: np.ndarray) -> np.ndarray:
    depth, above = np.zeros(len(parents), np.int64), parents.copy()
    while (above >= 0).any():
        depth += above >= 0
        above = np.where(above >= 0, parents[above], -1)
    return depth


def _twice_chunks(size: int, options: Options) -> int:
    return 2 * (options.chunks or CHUNKS)


def _tree_transfers(size: int, options: Options) -> int:
    return 2 * size * _twice_chunks(size, options)


@algorithm("all_reduce", "double_binary_tree", parts=_twice_chunks, takes=("chunks",), transfers=_tree_transfers)
def all_reduce(size: int, root: int, options: Options) -> Moves:
    """Each half of the bytes goes up and down its own tree, in chunks that follow one another.

    The second tree is the first with members renamed, n-1-m for an even n and m+1 for an odd one, so that leaves of
    one are inner members of the other.
    """
    builder, chunks, local = MovesBuilder(), options.chunks or CHUNKS, np.arange(size)
    parents = _parents(size)
    depths = _depths(parents)
    deepest, child = int(depths.max()), np.flatnonzero(parents >= 0)
    trees = (local, size - 1 - local if size % 2 == 0 else (local + 1) % size)
    for slot in range(chunks - 1 + 2 * deepest if size > 1 else 0):
        batches = []
        for tree, names in enumerate(trees):
            up = slot - (deepest - depths[child])  # the chunk that a member sends its parent now
            down = slot - (deepest + depths[child] - 1)
            for chunk, sends, reduces in ((up, True, True), (down, False, False)):
                now = (chunk >= 0) & (chunk < chunks)
                below, above = names[child[now]], names[parents[child[now]]]
                ends = (below, above) if sends else (above, below)
                batches.append((*ends, tree * chunks + chunk[now], reduces))
        builder.step(*batches, streamed=slot >= 2 * deepest)
    return builder.moves()
