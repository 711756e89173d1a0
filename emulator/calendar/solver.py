"""The one max-min solver: progressive filling in scaled integers, the same for every engine.

A pure function of the *set* of members: neither their order nor that of the resources changes a rate. Numba's
cache does not see changes in other files, so the helpers stand here.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

Ints = np.ndarray[Any, np.dtype[np.int64]]

FREE = -1  # holder of a member that runs at its bound
NO_PRIORITY = 1 << 62  # above every priority; its negative lies below


class Members(NamedTuple):
    """Who shares: int64 arrays of one entry a member, and their uses of resources end to end.

    Member i touches resource[first[i]:first[i + 1]] with coefficient[...] (in 2^-16), at a rate of at most bound[i]
    on its share resource; it fills in proportion to weight[i], from 1 to bound[i]. The highest priority is served
    first.
    """

    priority: Ints
    weight: Ints
    bound: Ints
    first: Ints
    resource: Ints
    coefficient: Ints


class Pool(NamedTuple):
    """What is left of each resource while it is divided, in scaled capacity << 16.

    `filling` is what one unit of level takes of it, the sum of coefficient * weight over the members not yet fixed;
    `wanted` what they would take at their bounds, the sum of coefficient * bound.
    """

    room: Ints
    filling: Ints
    wanted: Ints


@njit(cache=True)
def solve(members: Members, room: Ints, rate: Ints, holder: Ints) -> None:
    """Divide `room` [resources] (scaled capacity << 16) among members; fills `rate` [members] and `holder` [members].

    holder[i] is the lowest resource that held member i below its bound, or FREE. A lower priority gets what is left.
    `room` is consumed. The caller keeps the sum of coefficient * bound over each resource below 2^63.
    """
    pool = Pool(room, np.zeros(room.size, np.int64), np.zeros(room.size, np.int64))
    unfixed = np.empty(members.bound.size, np.int64)
    above = NO_PRIORITY
    left = members.bound.size
    while left:
        count, above = highest_below(above, members.priority, unfixed)
        fill(unfixed[:count], members, pool, rate, holder)
        left -= count


@njit(cache=True)
def highest_below(above: int, priority: Ints, found: Ints) -> tuple[int, int]:
    """Puts the members of the highest priority below `above` into `found`; returns how many, and that priority."""
    count, highest = 0, -NO_PRIORITY
    for i in range(priority.size):
        if priority[i] < above and priority[i] >= highest:
            if priority[i] > highest:
                count, highest = 0, priority[i]
            found[count] = i
            count += 1
    return count, highest


@njit(cache=True)
def fill(unfixed: Ints, members: Members, pool: Pool, rate: Ints, holder: Ints) -> None:
    """Max-min among the members listed in `unfixed`, which is consumed: one priority."""
    for i in unfixed:
        for k in range(members.first[i], members.first[i + 1]):
            pool.filling[members.resource[k]] += members.coefficient[k] * members.weight[i]
            pool.wanted[members.resource[k]] += members.coefficient[k] * members.bound[i]
    count = unfixed.size
    while count:
        level = level_of(pool)
        left = fix_bounded(level, unfixed[:count], members, pool, rate, holder)
        if left == count:
            left = fix_held(level, unfixed[:count], members, pool, rate, holder)
        count = left


@njit(cache=True)
def level_of(pool: Pool) -> int:
    """The highest level that every resource can give; -1 when none holds anyone, for then it couples nothing."""
    level = -1
    for r in range(pool.room.size):
        if pool.wanted[r] > pool.room[r]:
            here = pool.room[r] // pool.filling[r]
            if level < 0 or here < level:
                level = here
    return level


@njit(cache=True)
def fix_bounded(level: int, unfixed: Ints, members: Members, pool: Pool, rate: Ints, holder: Ints) -> int:
    """Fix at its bound every member that reaches it by `level`; returns how many are left, at the front of `unfixed`.

    The rule fixes the smallest bound first; as the level never sinks by that, all that lie below it are fixed at once.
    """
    left = 0
    for i in unfixed:
        if level >= 0 and (members.bound[i] + members.weight[i] - 1) // members.weight[i] > level:
            unfixed[left] = i
            left += 1
        else:
            rate[i], holder[i] = members.bound[i], FREE
            take(i, members, pool, rate)
    return left


@njit(cache=True)
def fix_held(level: int, unfixed: Ints, members: Members, pool: Pool, rate: Ints, holder: Ints) -> int:
    """Fix at `level` every member of a resource that can give no more; returns how many are left.

    All is decided before anything is taken, so that the order of members does not matter.
    """
    tight = np.zeros(pool.room.size, np.bool_)
    for r in range(pool.room.size):
        tight[r] = pool.wanted[r] > pool.room[r] and pool.room[r] // pool.filling[r] <= level
    left = 0
    for i in unfixed:
        held = FREE
        for k in range(members.first[i], members.first[i + 1]):
            r = members.resource[k]
            if tight[r] and (held == FREE or r < held):
                held = r
        if held == FREE:
            unfixed[left] = i
            left += 1
        else:
            rate[i], holder[i] = level * members.weight[i], held
            take(i, members, pool, rate)
    return left


@njit(cache=True)
def take(i: int, members: Members, pool: Pool, rate: Ints) -> None:
    """Take what member i got out of the room of its resources, and i out of those who still fill."""
    for k in range(members.first[i], members.first[i + 1]):
        r = members.resource[k]
        pool.room[r] -= members.coefficient[k] * rate[i]
        pool.filling[r] -= members.coefficient[k] * members.weight[i]
        pool.wanted[r] -= members.coefficient[k] * members.bound[i]
