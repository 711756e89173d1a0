"""Direct algorithms: everyone sends at once to whoever needs it, without going through other members.

In a full mesh every pair has its own link, so with n members, parts of S/n bytes, bandwidth b and latency L the times
alone are: reduce-scatter, all-gather, scatter, gather and all-to-all (parts of P bytes) one part and one latency,
S/n/b + L; all-reduce twice that; broadcast and reduce S/b + L. Where members share ports, as on a switch, what meets
adds up.

Order of reduction: member p adds what arrives for part p in the order of distance, ((x[p] + x[p+1]) + x[p+2]) + ...;
a root r likewise.
"""

from __future__ import annotations

import numpy as np

from .plan import Batch, Moves, MovesBuilder
from .registry import Options, algorithm


def _towards_owners(size: int) -> Batch:
    distance, owner = np.arange(1, size)[:, None], np.arange(size)
    return (owner + distance) % size, owner, owner, True


def _from_owners(size: int) -> Batch:
    distance, owner = np.arange(1, size)[:, None], np.arange(size)
    return owner, (owner + distance) % size, owner, False


def _others(size: int, root: int) -> np.ndarray:
    return (root + np.arange(1, size)) % size


def _moves(*batches: Batch) -> Moves:
    """One step a batch."""
    builder = MovesBuilder()
    for batch in batches:
        builder.step(batch)
    return builder.moves()


@algorithm("all_reduce", "direct")
def all_reduce(size: int, root: int, options: Options) -> Moves:
    """Two steps: every part to its owner, every sum back to all."""
    return _moves(_towards_owners(size), _from_owners(size))


@algorithm("reduce_scatter", "direct")
def reduce_scatter(size: int, root: int, options: Options) -> Moves:
    """One step: every part to its owner."""
    return _moves(_towards_owners(size))


@algorithm("all_gather", "direct")
def all_gather(size: int, root: int, options: Options) -> Moves:
    """One step: every owner sends its part to all."""
    return _moves(_from_owners(size))


@algorithm("broadcast", "direct")
def broadcast(size: int, root: int, options: Options) -> Moves:
    """One step: the root sends the whole to all."""
    return _moves((root, _others(size, root), 0, False))


@algorithm("reduce", "direct")
def reduce(size: int, root: int, options: Options) -> Moves:
    """One step: all send the whole to the root."""
    return _moves((_others(size, root), root, 0, True))


@algorithm("scatter", "direct")
def scatter(size: int, root: int, options: Options) -> Moves:
    """One step: the root sends everyone its part."""
    others = _others(size, root)
    return _moves((root, others, others, False))


@algorithm("gather", "direct")
def gather(size: int, root: int, options: Options) -> Moves:
    """One step: everyone sends its part to the root."""
    others = _others(size, root)
    return _moves((others, root, others, False))
