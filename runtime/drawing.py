"""Drawing: the experts that tokens choose at random, each token distinct ones, by how popular an expert is."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numba import njit, uint64

Array = np.ndarray[Any, np.dtype[Any]]

MOST_SKEW = 64  # beyond it every token chooses the most popular experts, and their weights leave the range of floats
_PATIENCE = 16  # draws of experts that a token has already, after which the most popular of them are left out
_STEP = uint64(0x9E3779B97F4A7C15)


def draw(tokens: Array, top_k: int, ranks: Array, skew: float, seed: Any) -> Array:
    """Choices [sources, experts] of `tokens` [sources], each of which draws `top_k` experts one after the other.

    The expert at `ranks[r]` is drawn with weight (r + 1) ** -skew among those that the token has not yet: successive
    draws, as the top k of logits with Gumbel noise are. A source's tokens follow from the seed and its number alone.
    """
    by_rank, tails = _tables(len(ranks), skew)
    keep, other = (np.empty_like(table) for table in by_rank)
    keep[ranks], other[ranks] = by_rank[0], ranks[by_rank[1]]
    narrow = np.uint16 if tokens.max(initial=0) <= np.iinfo(np.uint16).max else np.int64
    found = np.zeros((len(tokens), len(ranks)), narrow)
    _draw(tokens.astype(np.int64), top_k, ranks.astype(np.int32), keep, other, tails, np.uint64(seed), found)
    return found


@lru_cache(maxsize=16)
def _tables(experts: int, skew: float) -> tuple[tuple[Array, Array], Array]:
    """What draws look up: `_alias` of the shares of ranks, and the weight of every rank and all after it."""
    weights = np.arange(1, experts + 1, dtype=np.float64) ** -skew
    return _alias(weights / weights.sum()), np.append(np.cumsum(weights[::-1])[::-1], 0.0)


def _alias(shares: Array) -> tuple[Array, Array]:
    """Walker's alias tables: entry i is kept with chance keep[i] / 2 ** 32, else it is other[i]."""
    size = len(shares)
    scaled, other = shares * size, np.arange(size, dtype=np.int32)
    small = [index for index in range(size) if scaled[index] < 1]
    large = [index for index in range(size) if scaled[index] >= 1]
    while small and large:
        less, more = small.pop(), large.pop()
        other[less] = more
        scaled[more] -= 1 - scaled[less]
        (small if scaled[more] < 1 else large).append(more)
    for rest in (*small, *large):
        scaled[rest], other[rest] = 1, rest
    # a chance of 1 is that of 2 ** 32 - 1: what is missed is the entry itself again
    return np.minimum(np.rint(scaled * 2**32), 2**32 - 1).astype(np.uint32), other


@njit(cache=True, nogil=True, inline="always")
def _mixed(x):  # type: ignore[no-untyped-def]
    """The finaliser of splitmix64, whose stream is that of multiples of `_STEP`."""
    x = (x ^ (x >> uint64(30))) * uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> uint64(27))) * uint64(0x94D049BB133111EB)
    return x ^ (x >> uint64(31))


@njit(cache=True, nogil=True)
def _draw(tokens, top_k, ranks, keep, other, tails, seed, found):  # type: ignore[no-untyped-def]
    """Add to found[source, expert]; a token marks the experts it has drawn with its number among all."""
    experts = uint64(len(ranks))
    marks = np.full(len(ranks), -1, np.int64)
    token = 0
    for source in range(len(tokens)):
        own = found[source]
        state = _mixed(seed + uint64(source + 1) * uint64(0xD1B54A32D192ED03))
        for _ in range(tokens[source]):
            drawn = refused = 0
            while drawn < top_k:
                state += _STEP
                bits = _mixed(state)
                first = np.int64(((bits >> uint64(32)) * experts) >> uint64(32))
                second = other[first]
                expert = second if (bits & uint64(0xFFFFFFFF)) >= keep[first] else first
                if marks[expert] == token:
                    refused += 1
                    if refused < _PATIENCE:
                        continue
                    state, expert = _beyond(state, tails, ranks, marks, token)
                marks[expert] = token
                own[expert] += 1
                drawn += 1
            token += 1


@njit(cache=True, nogil=True)
def _beyond(state, tails, ranks, marks, token):  # type: ignore[no-untyped-def]
    """An expert that the token has not, among those from the first such rank on; tails[r] weighs r and all after it."""
    first = 0
    while marks[ranks[first]] == token:
        first += 1
    while True:
        state += _STEP
        share = (np.float64(_mixed(state) >> uint64(11)) + 1.0) / 9007199254740992.0  # above 0, at most 1
        low, high = first, len(marks)  # tails[low] >= point > tails[high]
        point = share * tails[first]
        while high - low > 1:
            middle = (low + high) // 2
            if tails[middle] >= point:
                low = middle
            else:
                high = middle
        if marks[ranks[low]] != token:
            return state, np.int64(ranks[low])
