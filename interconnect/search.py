"""Searching ways of least cost, compiled: Dijkstra's search with a heap, from each of some nodes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

Ints = np.ndarray[Any, np.dtype[Any]]


@njit(cache=True)
def _push(costs: Ints, nodes: Ints, size: int, cost: float, node: int) -> None:
    """Put a node among the `size` of a heap, the cheapest of which stands first."""
    at = size
    while at and costs[(at - 1) // 2] > cost:
        costs[at], nodes[at] = costs[(at - 1) // 2], nodes[(at - 1) // 2]
        at = (at - 1) // 2
    costs[at], nodes[at] = cost, node


@njit(cache=True)
def _drop_first(costs: Ints, nodes: Ints, size: int) -> None:
    """Take the first of `size` away."""
    cost, node, at = costs[size - 1], nodes[size - 1], 0
    while 2 * at + 1 < size - 1:
        child = 2 * at + 1
        if child + 1 < size - 1 and costs[child + 1] < costs[child]:
            child += 1
        if costs[child] >= cost:
            break
        costs[at], nodes[at] = costs[child], nodes[child]
        at = child
    costs[at], nodes[at] = cost, node


@njit(cache=True)
def cheapest(first: Ints, ends: Ints, weights: Ints, starts: Ints) -> Ints:
    """Costs of the cheapest ways from each of `starts` to every node, float64 [starts, nodes]; infinite where none is.

    Links of node i lead to `ends[first[i] : first[i + 1]]` and cost `weights` there, whole numbers as float64.
    """
    found = np.full((len(starts), len(first) - 1), np.inf)
    costs, nodes = np.empty(len(ends) + 1), np.empty(len(ends) + 1, np.int64)
    for row in range(len(starts)):
        best = found[row]
        best[starts[row]] = 0.0
        costs[0], nodes[0], size = 0.0, starts[row], 1
        while size:
            cost, here = costs[0], nodes[0]
            _drop_first(costs, nodes, size)
            size -= 1
            if cost > best[here]:
                continue  # a cheaper way was found since
            for link in range(first[here], first[here + 1]):
                reached = cost + weights[link]
                if reached < best[ends[link]]:
                    best[ends[link]] = reached
                    _push(costs, nodes, size, reached, ends[link])
                    size += 1
    return found
