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

NO_LEVEL = 1 << 62  # above every level: no resource holds anybody back
LOWER, OPEN, HELD, FIXED = range(4)  # a member's state: of a lower priority, being divided, held just now, done


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
    """What is left of each resource while it is divided, in scaled capacity << 16, and who touches it.

    `filling` is what one unit of level takes of it, the sum of coefficient * weight over the members not yet fixed;
    `wanted` what they would take at their bounds, the sum of coefficient * bound. Resource r is touched by
    member[first[r]:first[r + 1]].
    """

    room: Ints
    filling: Ints
    wanted: Ints
    first: Ints
    member: Ints


class Heap(NamedTuple):
    """Items by key, the least at the top: item[0] with key[item[0]]."""

    item: Ints
    key: Ints


@njit(cache=True)
def solve(members: Members, room: Ints, rate: Ints, holder: Ints) -> None:
    """Divide `room` [resources] (scaled capacity << 16) among members; fills `rate` [members] and `holder` [members].

    holder[i] is the lowest resource that held member i below its bound, or FREE. A lower priority gets what is left.
    `room` is consumed. The caller keeps the sum of coefficient * bound over each resource below 2^63.
    """
    filling, wanted = np.zeros(room.size, np.int64), np.zeros(room.size, np.int64)
    pool = Pool(room, filling, wanted, *touching(members, room.size))
    state = np.zeros(members.bound.size, np.int64)
    found = np.empty(members.bound.size, np.int64)
    above = NO_PRIORITY
    left = members.bound.size
    while left:
        count, above = highest_below(above, members.priority, found)
        fill(found[:count], state, members, pool, rate, holder)
        left -= count


@njit(cache=True)
def touching(members: Members, resources: int) -> tuple[Ints, Ints]:
    """The members that touch each resource, end to end, and where each resource's begin."""
    first = np.zeros(resources + 1, np.int64)
    uses = members.first[members.bound.size]
    for k in range(uses):
        first[members.resource[k] + 1] += 1
    for r in range(resources):
        first[r + 1] += first[r]
    member, at = np.empty(uses, np.int64), first.copy()
    for i in range(members.bound.size):
        for k in range(members.first[i], members.first[i + 1]):
            r = members.resource[k]
            member[at[r]] = i
            at[r] += 1
    return first, member


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
def fill(found: Ints, state: Ints, members: Members, pool: Pool, rate: Ints, holder: Ints) -> None:
    """Max-min among the members listed in `found`, which is consumed: one priority.

    Everything only ever rises: the level that a resource can give never sinks when a member is fixed at or below it,
    and a resource that holds nobody back never does again. So two heaps say who is next, and no member and no
    resource is looked at more often than somebody it touches is fixed.
    """
    reached = np.empty(members.bound.size, np.int64)  # the level at which a member has all it can use
    for i in found:
        state[i] = OPEN
        reached[i] = (members.bound[i] + members.weight[i] - 1) // members.weight[i]
        for k in range(members.first[i], members.first[i + 1]):
            pool.filling[members.resource[k]] += members.coefficient[k] * members.weight[i]
            pool.wanted[members.resource[k]] += members.coefficient[k] * members.bound[i]
    by_reach, left = Heap(found, reached), found.size
    heapify(by_reach, left)
    scarce, short = Heap(np.empty(pool.room.size, np.int64), np.empty(pool.room.size, np.int64)), 0
    for r in range(pool.room.size):
        if pool.wanted[r] > pool.room[r]:
            scarce.item[short], scarce.key[r] = r, pool.room[r] // pool.filling[r]
            short += 1
    heapify(scarce, short)
    tight, held = np.empty(short, np.int64), np.empty(left, np.int64)
    while left:
        short = settle(scarce, short, pool)
        level = scarce.key[scarce.item[0]] if short else NO_LEVEL
        before = left
        left = fix_bounded(level, by_reach, left, state, members, pool, rate, holder)
        if left and left == before:
            short = fix_held(level, scarce, short, tight, held, state, members, pool, rate, holder)


@njit(cache=True)
def settle(scarce: Heap, short: int, pool: Pool) -> int:
    """Bring the top of the heap of scarce resources up to date; returns how many are left in it."""
    while short:
        r = scarce.item[0]
        if pool.wanted[r] <= pool.room[r]:
            short -= 1
            scarce.item[0] = scarce.item[short]
        elif pool.room[r] // pool.filling[r] > scarce.key[r]:
            scarce.key[r] = pool.room[r] // pool.filling[r]
        else:
            break
        sink(scarce, 0, short)
    return short


@njit(cache=True)
def fix_bounded(
    level: int, by_reach: Heap, left: int, state: Ints, members: Members, pool: Pool, rate: Ints, holder: Ints
) -> int:
    """Fix at its bound every member that reaches it by `level`; returns how many are left in the heap.

    The rule fixes the smallest bound first; as the level never sinks by that, all that lie below it are fixed at once.
    """
    while left:
        i = by_reach.item[0]
        if state[i] == OPEN:
            if by_reach.key[i] > level:
                break
            rate[i], holder[i] = members.bound[i], FREE
            take(i, state, members, pool, rate)
        left -= 1
        by_reach.item[0] = by_reach.item[left]
        sink(by_reach, 0, left)
    return left


@njit(cache=True)
def fix_held(
    level: int,
    scarce: Heap,
    short: int,
    tight: Ints,
    held: Ints,
    state: Ints,
    members: Members,
    pool: Pool,
    rate: Ints,
    holder: Ints,
) -> int:
    """Fix at `level` every member of a resource that can give no more; returns how many resources are still scarce.

    All is decided before anything is taken, so that the order of members does not matter.
    """
    found = 0
    while short and scarce.key[scarce.item[0]] <= level:
        tight[found] = scarce.item[0]
        found, short = found + 1, short - 1
        scarce.item[0] = scarce.item[short]
        sink(scarce, 0, short)
        short = settle(scarce, short, pool)
    count = 0
    for r in tight[:found]:
        for k in range(pool.first[r], pool.first[r + 1]):
            i = pool.member[k]
            if state[i] == OPEN:
                state[i], holder[i], rate[i] = HELD, r, level * members.weight[i]
                held[count] = i
                count += 1
            elif state[i] == HELD:
                holder[i] = min(holder[i], r)
    for i in held[:count]:
        take(i, state, members, pool, rate)
    return short


@njit(cache=True)
def take(i: int, state: Ints, members: Members, pool: Pool, rate: Ints) -> None:
    """Take what member i got out of the room of its resources, and i out of those who still fill."""
    state[i] = FIXED
    for k in range(members.first[i], members.first[i + 1]):
        r = members.resource[k]
        pool.room[r] -= members.coefficient[k] * rate[i]
        pool.filling[r] -= members.coefficient[k] * members.weight[i]
        pool.wanted[r] -= members.coefficient[k] * members.bound[i]


@njit(cache=True)
def heapify(heap: Heap, count: int) -> None:
    """Make a heap of the first `count` items."""
    for place in range(count // 2 - 1, -1, -1):
        sink(heap, place, count)


@njit(cache=True)
def sink(heap: Heap, place: int, count: int) -> None:
    """Let the item at `place` sink to where nothing below it has a smaller key."""
    if place >= count:
        return
    item = heap.item[place]
    key = heap.key[item]
    while True:
        child = 2 * place + 1
        if child >= count:
            break
        if child + 1 < count and heap.key[heap.item[child + 1]] < heap.key[heap.item[child]]:
            child += 1
        if heap.key[heap.item[child]] >= key:
            break
        heap.item[place] = heap.item[child]
        place = child
    heap.item[place] = item
