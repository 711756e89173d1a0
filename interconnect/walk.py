"""Walking flows along ways of least cost, compiled: a flow after the other, at every node one of the next links."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

Ints = np.ndarray[Any, np.dtype[Any]]
POLICIES = ("shortest", "ecmp", "by_destination")
UNKNOWN = -1
MIX = np.uint64(0x9E3779B97F4A7C15)


class Graph(NamedTuple):
    """Links that are up. Those that leave node i stand from `first[i]` to `first[i + 1]`, in `leaving` by their ids and
    in `pairs` by (target, id); `is_direct` says of a link whether to take it at once where it leads to the goal.
    """

    first: Ints
    leaving: Ints
    pairs: Ints
    source: Ints
    target: Ints
    costs: Ints
    is_direct: Ints


class Rule(NamedTuple):
    """How a flow chooses among links: the number of its policy in POLICIES, the shares of a pair, the hash's seed."""

    policy: int
    stripes: int
    seed: int


@njit(cache=True)
def _hash(start: int, goal: int, level: int, seed: np.uint64) -> np.uint64:
    """64 well mixed bits of (start, goal, level, seed): the finaliser of splitmix64, the same everywhere."""
    mixed = seed
    for value in (start, goal, level):
        mixed = mixed + np.uint64(value) + MIX
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed = mixed ^ (mixed >> np.uint64(31))
    return mixed


@njit(cache=True)
def _digit(number: int, count: int, level: int) -> int:
    """`number` without its `level` last digits in base `count`."""
    for _ in range(level):
        number //= count
    return number


@njit(cache=True)
def _chosen(count: int, start: int, goal: int, share: int, level: int, rule: Rule) -> int:
    """Which of `count` links a flow takes that has branched `level` times; shares of one pair choose neighbours.

    A hash draws where the first one goes, unless the shares take all links alike: then the n-th takes the n-th.
    """
    if count == 1:
        return 0
    base = _digit(share, count, level)
    if rule.policy == 1 and rule.stripes % count ** (level + 1):
        base += int(_hash(start, goal, level, np.uint64(rule.seed)) % np.uint64(count))
    elif rule.policy == 2:
        base += _digit(goal, count, level)
    return base % count


@njit(cache=True)
def _direct(graph: Graph, here: int, goal: int) -> tuple[int, int]:
    """From where to where in `graph.pairs` the links from `here` to `goal` stand."""
    low, high = graph.first[here], graph.first[here + 1]
    end = high
    while low < high:
        middle = (low + high) // 2
        if graph.target[graph.pairs[middle]] < goal:
            low = middle + 1
        else:
            high = middle
    high = low
    while high < end and graph.target[graph.pairs[high]] == goal:
        high += 1
    return low, high


@njit(cache=True)
def _list_candidates(graph: Graph, costs: Ints, here: int, candidates: Ints, at: int) -> int:
    """Write the number of links that begin a cheapest way from `here`, and then the links; returns where they end."""
    end = at + 1
    for place in range(graph.first[here], graph.first[here + 1]):
        link = graph.leaving[place]
        there = costs[graph.target[link]]
        if np.isfinite(there) and there + graph.costs[link] == costs[here]:
            candidates[end] = link
            end += 1
    candidates[at] = end - at - 1
    return end


@njit(cache=True)
def walk(start: Ints, goal: Ints, row: Ints, costs: Ints, graph: Graph, rule: Rule) -> tuple[Ints, Ints, int]:
    """(where each flow's links begin, the links, the first pair between whose ends there is no way, or -1).

    Pair i goes from `start[i]` to `goal[i]` by the costs `costs[row[i]]` from every node to its goal (of no account
    where its first link is direct), as `rule.stripes` flows one after the other.
    """
    flows = len(start) * rule.stripes
    starts = np.zeros(flows + 1, np.int64)
    links, count = np.empty(4 * flows + 16, np.int64), 0
    known = np.full(costs.shape, np.int32(UNKNOWN))  # where the candidates at a node stand, after their number
    candidates, listed = np.empty(1024 + 2 * len(graph.target), np.int64), 0
    for flow in range(flows):
        pair, share = flow // rule.stripes, flow % rule.stripes
        here, end, level = start[pair], goal[pair], 0
        while here != end:
            table = graph.pairs
            first, high = _direct(graph, here, end)
            number = high - first
            if number == 0 or not graph.is_direct[table[first]]:
                at = known[row[pair], here]
                if at == UNKNOWN:
                    if listed + len(graph.target) >= len(candidates):
                        candidates = np.concatenate((candidates, np.empty_like(candidates)))
                    at = known[row[pair], here] = listed
                    listed = _list_candidates(graph, costs[row[pair]], here, candidates, listed)
                table, first, number = candidates, at + 1, candidates[at]
                if number == 0:
                    return starts, links[:count], pair
            link = table[first + _chosen(number, start[pair], end, share, level, rule)]
            if count == len(links):
                links = np.concatenate((links, np.empty_like(links)))
            links[count] = link
            count += 1
            level += number > 1
            here = graph.target[link]
        starts[flow + 1] = count
    return starts, links[:count], -1
