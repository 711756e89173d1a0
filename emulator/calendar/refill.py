"""Max-min kept up to date: when members come and go, only the resources whose level changes are filled anew.

The level of a resource is that at which the filling of `solver.py` finds it tight: there it holds every member that
nothing else has fixed before. It follows from its members alone: from the level at which each reaches its bound, and
from the lowest level of the *other* resources that it touches, as far as that is below its own. A member that is held
elsewhere at the same level or above has not been fixed yet, so what stands above a level never matters to it. So all
is well when every level is what its members make of it, and whatever is not can be put right from the lowest level up:
a level that turns out to be too low is forgotten, one that is found is final. That is the one answer that filling from
nothing gives, to the bit; tests hold the two together.

All members must be of one priority. Numba's cache does not see changes in other files, so the helpers stand here.
"""

from __future__ import annotations

from typing import NamedTuple

from numba import njit

from .flows import (
    BOUND,
    COEFFICIENT,
    CONCERNED,
    COUPLED,
    FILLING,
    FIRST,
    FLIPPED,
    HEAD,
    HELD_AT,
    LEVEL,
    LOAD,
    MADE,
    NEXT,
    NONE,
    OWNER,
    RATE,
    REACH,
    REACHED,
    RESOURCE,
    ROOM,
    SEEN,
    SLOT,
    STAMP,
    TOTAL,
    USES,
    VISITED,
    WEIGHT,
    Arrays,
    State,
    state_of,
)
from .solver import NO_LEVEL, Ints

# Rows of the room to work in, a column a member of one resource: the level from which on it counts as fixed, what it
# takes then, and its part of the filling and of what is wanted; and a heap of resources by the level to look at.
AT, TAKES, FILLS, WANTS = range(4)
KEY, ITEM = range(2)


LOOKS, PATIENCE = 1000, 4  # looks at uses that putting levels right may take, more for each use there is
Room = tuple[Ints, Ints]  # a Scratch, as Python hands it over


class Scratch(NamedTuple):
    """Room to work in: int64 [4, slots] and [2, several times the resources]."""

    members: Ints
    heap: Ints


@njit(cache=True)
def refill(arrays: Arrays, dirty: Ints, mark: int, found: Ints, room: Room, budget: int) -> tuple[int, int]:
    """Put all levels right after changes at the `dirty` resources, and list whom that may concern with their rates.

    Returns how many members and how many resources that began or ceased to be short; -1 members when it took more
    than `budget` looks at uses, and filling from nothing is better.
    """
    state = state_of(arrays)
    scratch = Scratch(room[0], room[1])
    touched = flipped = size = work = 0
    for r in dirty:
        row = state.resources[r]
        row[REACHED] = mark
        found[CONCERNED, touched] = r
        touched += 1
        if (row[TOTAL] > row[ROOM]) != (row[COUPLED] != 0):
            row[COUPLED] = 1 - row[COUPLED]
            found[FLIPPED, flipped] = r
            flipped += 1
        work += evaluate(state, r, scratch)
        size = queue(state, r, scratch, size)
    while size:
        key, r, size = pop(scratch, size)
        row = state.resources[r]
        old, new = row[LEVEL], row[MADE]
        if old == new or key != min(old, new):
            continue  # it has been put right since
        row[LEVEL] = new if new < old else NO_LEVEL
        if row[REACHED] != mark:
            row[REACHED] = mark
            found[CONCERNED, touched] = r
            touched += 1
        size = queue(state, r, scratch, size)
        size, more = spread(state, r, key, scratch, size)
        work += more
        if work > budget or size > scratch.heap.shape[1] // 2:
            return NONE, flipped
    return rates(state, touched, mark, found), flipped


@njit(cache=True)
def spread(state: State, resource: int, lowest: int, scratch: Scratch, size: int) -> tuple[int, int]:
    """Look again at who shares members with a resource whose level has changed, down to or up from `lowest`."""
    work = 0
    state.counts[STAMP] += 1
    stamp = state.counts[STAMP]
    state.resources[resource, SEEN] = stamp
    number = state.resources[resource, HEAD]
    while number != NONE:
        row = state.slots[state.nodes[number, OWNER]]
        number = state.nodes[number, NEXT]
        work += row[USES]
        for other in range(row[FIRST], row[FIRST] + row[USES]):
            r = state.nodes[other, RESOURCE]
            there = state.resources[r]
            if there[SEEN] == stamp:
                continue
            there[SEEN] = stamp
            if lowest < there[MADE] and there[TOTAL] > there[ROOM]:
                if size >= scratch.heap.shape[1]:
                    return size, 1 << 60  # more than any budget
                work += evaluate(state, r, scratch)
                size = queue(state, r, scratch, size)
    return size, work


@njit(cache=True)
def evaluate(state: State, resource: int, scratch: Scratch) -> int:
    """Work out the level that its members make of a resource; returns how many uses that looked at."""
    row = state.resources[resource]
    if row[TOTAL] <= row[ROOM]:
        row[MADE] = NO_LEVEL
        return 1
    count = work = 0
    number = row[HEAD]
    while number != NONE:
        node = state.nodes[number]
        member = state.slots[node[OWNER]]
        number = node[NEXT]
        elsewhere = NO_LEVEL
        for other in range(member[FIRST], member[FIRST] + member[USES]):
            r = state.nodes[other, RESOURCE]
            if r != resource and state.resources[r, LEVEL] < elsewhere:
                elsewhere = state.resources[r, LEVEL]
        work += member[USES]
        list_member(member, node, elsewhere, scratch, count)
        count += 1
    row[MADE] = local_level(row, count, scratch)
    return work


@njit(cache=True)
def list_member(member: Ints, node: Ints, elsewhere: int, scratch: Scratch, place: int) -> None:
    """A member of a resource: it is fixed at its bound, or elsewhere, which is seen only above that level."""
    weighted = node[COEFFICIENT] * member[WEIGHT]
    if member[REACH] <= elsewhere:
        scratch.members[AT, place], scratch.members[TAKES, place] = member[REACH], node[LOAD]
    else:
        scratch.members[AT, place], scratch.members[TAKES, place] = elsewhere + 1, weighted * elsewhere
    scratch.members[FILLS, place], scratch.members[WANTS, place] = weighted, node[LOAD]


@njit(cache=True)
def local_level(row: Ints, count: int, scratch: Scratch) -> int:
    """The level at which a resource is tight, given when each of its members is fixed otherwise; NO_LEVEL if never."""
    room, filling, wanted = row[ROOM], row[FILLING], row[TOTAL]
    while wanted > room:
        level = room // filling
        left = 0
        for i in range(count):
            if scratch.members[AT, i] <= level:
                room -= scratch.members[TAKES, i]
                filling -= scratch.members[FILLS, i]
                wanted -= scratch.members[WANTS, i]
            else:
                scratch.members[AT, left], scratch.members[TAKES, left] = (
                    scratch.members[AT, i],
                    scratch.members[TAKES, i],
                )
                scratch.members[FILLS, left], scratch.members[WANTS, left] = (
                    scratch.members[FILLS, i],
                    scratch.members[WANTS, i],
                )
                left += 1
        if left == count:
            return int(level)
        count = left
    return NO_LEVEL


@njit(cache=True)
def rates(state: State, touched: int, mark: int, found: Ints) -> int:
    """List the members of the touched resources, each with its rate and its holder; returns how many."""
    members = 0
    for t in range(touched):
        number = state.resources[found[CONCERNED, t], HEAD]
        while number != NONE:
            slot = state.nodes[number, OWNER]
            number = state.nodes[number, NEXT]
            row = state.slots[slot]
            if row[VISITED] == mark:
                continue
            row[VISITED] = mark
            level, holder = NO_LEVEL, NONE
            for other in range(row[FIRST], row[FIRST] + row[USES]):
                r = state.nodes[other, RESOURCE]
                here = state.resources[r, LEVEL]
                if here < level or (here == level and here != NO_LEVEL and r < holder):
                    level, holder = here, r
            found[SLOT, members] = slot
            if row[REACH] <= level:
                found[RATE, members], found[HELD_AT, members] = row[BOUND], NONE
            else:
                found[RATE, members], found[HELD_AT, members] = level * row[WEIGHT], holder
            members += 1
    return members


@njit(cache=True)
def learn(arrays: Arrays, members: int, short: int, found: Ints) -> None:
    """Read the levels off the rates that the solver has found, for `refill` to go on from; name holders by index."""
    state = state_of(arrays)
    for i in range(members):
        row = state.slots[found[SLOT, i]]
        bounded = found[HELD_AT, i] == NONE
        row[MADE] = NO_LEVEL if bounded else found[RATE, i] // row[WEIGHT]
        if not bounded:
            found[HELD_AT, i] = found[CONCERNED, found[HELD_AT, i]]


@njit(cache=True)
def learn_levels(arrays: Arrays, short: Ints, room: Room) -> None:
    """The level of each short resource, from the levels at which its members are held, there or elsewhere."""
    state = state_of(arrays)
    scratch = Scratch(room[0], room[1])
    for r in short:
        row = state.resources[r]
        count, number = 0, row[HEAD]
        while number != NONE:
            node = state.nodes[number]
            member = state.slots[node[OWNER]]
            list_member(member, node, member[MADE], scratch, count)
            count += 1
            number = node[NEXT]
        row[LEVEL] = row[MADE] = local_level(row, count, scratch)


@njit(cache=True)
def queue(state: State, resource: int, scratch: Scratch, size: int) -> int:
    """Remember to look at a resource whose level is not what its members make of it; returns the heap's size."""
    row = state.resources[resource]
    if row[LEVEL] == row[MADE] or size >= scratch.heap.shape[1]:
        return size
    key, place = min(row[LEVEL], row[MADE]), size
    while place > 0:
        parent = (place - 1) // 2
        if scratch.heap[KEY, parent] <= key:
            break
        scratch.heap[KEY, place], scratch.heap[ITEM, place] = scratch.heap[KEY, parent], scratch.heap[ITEM, parent]
        place = parent
    scratch.heap[KEY, place], scratch.heap[ITEM, place] = key, resource
    return size + 1


@njit(cache=True)
def pop(scratch: Scratch, size: int) -> tuple[int, int, int]:
    """Take the resource of the lowest key out of the heap; returns key, resource and the heap's size."""
    top_key, top_item = scratch.heap[KEY, 0], scratch.heap[ITEM, 0]
    size -= 1
    key, item, place = scratch.heap[KEY, size], scratch.heap[ITEM, size], 0
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        if child + 1 < size and scratch.heap[KEY, child + 1] < scratch.heap[KEY, child]:
            child += 1
        if scratch.heap[KEY, child] >= key:
            break
        scratch.heap[KEY, place], scratch.heap[ITEM, place] = scratch.heap[KEY, child], scratch.heap[ITEM, child]
        place = child
    scratch.heap[KEY, place], scratch.heap[ITEM, place] = key, item
    return top_key, top_item, size
