"""Several rings at once, each with its share of the bytes and links of its own.

Without a `shape`, ring r walks the group in strides of the r-th number that has no divisor in common with its size: in
a full mesh no two of these rings share a link. With a shape (nodes, m), ring r leaves and enters every node by a card
of its own, so that all cards' ports out of the node (rails) are used: it walks even nodes from card r backwards and odd
ones forwards, and crosses between cards of equal place. Times are those of one ring with S/rails bytes while rings
share no link. Order of reduction as in a ring, in the order of its walk.
"""

from __future__ import annotations

import math

import numpy as np

from ...isa.errors import ConfigError
from .plan import Moves
from .registry import Options, algorithm, shape_of
from .ring import rings

MOST_RAILS = 8


def _strides(size: int) -> list[int]:
    return [stride for stride in range(1, size) if math.gcd(stride, size) == 1] or [1]


def _rails(size: int, options: Options) -> int:
    if options.shape:
        return options.rails or options.shape[-1]
    return options.rails or min(MOST_RAILS, len(_strides(size)))


def _order(size: int, rail: int, options: Options) -> np.ndarray:
    if not options.shape:
        return np.arange(size) * _strides(size)[rail] % size
    nodes, inner = options.shape
    back = (rail - np.arange(inner)) % inner  # rail, rail-1 .. rail+1; odd nodes walk it from rail+1 to rail
    walks = [node * inner + (back if node % 2 == 0 else back[::-1]) for node in range(nodes)]
    return np.concatenate(walks)


def _orders(size: int, options: Options) -> list[np.ndarray]:
    if size == 1:
        return [np.arange(1)]
    most = len(_strides(size))
    if options.shape:
        if len(shape_of(size, options, "rings")) != 2:
            raise ConfigError(f"rings walk nodes of cards, two levels; got the shape {options.shape}")
        most = options.shape[-1]
    count = _rails(size, options)
    if count > most:
        raise ConfigError(f"rails={count} of rings over {size} members; there are {most} different ones")
    return [_order(size, rail, options) for rail in range(count)]


def _transfers(size: int, options: Options) -> int:
    return 2 * size * size * _rails(size, options)


@algorithm("all_reduce", "rings", pieces=_rails, takes=("shape", "rails"), transfers=_transfers)
def all_reduce(size: int, root: int, options: Options) -> Moves:
    """Reduce-scatter and all-gather round every ring."""
    return rings(_orders(size, options), scatter=True, gather=True)


@algorithm("reduce_scatter", "rings", pieces=_rails, takes=("shape", "rails"), transfers=_transfers)
def reduce_scatter(size: int, root: int, options: Options) -> Moves:
    """Reduce-scatter round every ring."""
    return rings(_orders(size, options), scatter=True, gather=False)


@algorithm("all_gather", "rings", pieces=_rails, takes=("shape", "rails"), transfers=_transfers)
def all_gather(size: int, root: int, options: Options) -> Moves:
    """All-gather round every ring."""
    return rings(_orders(size, options), scatter=False, gather=True)
