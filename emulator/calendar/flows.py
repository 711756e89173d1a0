"""Compiled steps over the activities that flow: who joins and leaves, whom a change reaches, and at what speed they go.

An activity is a row of `slots`, each of its uses of a resource a row of `nodes`; the uses of one resource form a list
both ways. Those whose end is expected stand in a heap by (time, order of start). Numba's cache does not see changes in
other files, so the helpers stand here.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from .solver import NO_LEVEL, Ints, Members

Floats = np.ndarray[Any, np.dtype[np.float64]]

NONE = -1  # the index of nothing: no resource, no node, no place in the heap
NOT_EXPECTED = -1  # a time that will not come before something changes
HORIZON_PS = 1 << 62  # 53 days; an end that lies beyond is not expected

# Columns of a slot, of its floats, of a node, of a resource, and of a stretch for which a resource held an activity.
FIRST, USES, BOUND, WEIGHT, REACH, PRIORITY, SEQUENCE, SINCE, DUE, HOLDER, HELD_SINCE, HELD, VISITED, PLACE = range(14)
SPEED, REMAINING = range(2)
OWNER, RESOURCE, COEFFICIENT, LOAD, NEXT, PREVIOUS = range(6)
ROOM, TOTAL, FILLING, COUPLED, REACHED, HEAD, LOCAL, LEVEL, SEEN = range(9)
MADE = 14  # of a slot: the level at which it is held; of a resource: the level that its members make of it
HELD_BY, HELD_PS, HELD_NEXT = range(3)
IN_HEAP, FREE_HELD, USED_HELD, STAMP = range(4)  # counts
# Rows of what a division finds: each member's slot, rate and holder; resources that it concerns, and those that began
# or ceased to be short.
SLOT, RATE, HELD_AT, CONCERNED, FLIPPED = range(5)
SLOT_COLUMNS = RESOURCE_COLUMNS = MADE + 1


class State(NamedTuple):
    """All that flows: int64 rows of slots, nodes, resources and stretches, and float64 [slots, 2]."""

    slots: Ints
    floats: Floats
    nodes: Ints
    resources: Ints
    held: Ints
    heap: Ints
    counts: Ints


Uses = tuple[Ints, Ints, Ints]  # resource, coefficient and load of each
Arrays = tuple[Ints, Floats, Ints, Ints, Ints, Ints, Ints]  # a State, as Python hands it over: three times as fast


@njit(cache=True)
def state_of(arrays: Arrays) -> State:
    """The state whose arrays these are."""
    return State(arrays[0], arrays[1], arrays[2], arrays[3], arrays[4], arrays[5], arrays[6])


class Columns(NamedTuple):
    """What the solver reads of a division, gathered; only the leading entries count."""

    members: Members
    room: Ints


@njit(cache=True)
def join(
    arrays: Arrays,
    slot: int,
    uses: Uses,
    share: tuple[int, int, int, int, int],
    due: int,
    since: int,
    remaining: float,
) -> None:
    """An activity flows at full speed: link its uses, expect its end.

    `uses` are resource, coefficient and load of each; `share` is first node, bound, weight, priority, sequence.
    """
    state = state_of(arrays)
    row = state.slots[slot]
    row[FIRST], row[BOUND], weight, row[PRIORITY], row[SEQUENCE] = share
    # A weight over the bound changes nothing but the size of the numbers: the member is full at level 1.
    row[WEIGHT] = weight = min(weight, row[BOUND])
    row[REACH] = (row[BOUND] + weight - 1) // weight
    row[USES], row[SINCE], row[DUE], row[VISITED] = uses[0].size, since, due, 0
    row[HOLDER], row[HELD_SINCE], row[HELD], row[PLACE] = NONE, 0, NONE, NONE
    state.floats[slot, SPEED], state.floats[slot, REMAINING] = 1.0, remaining
    for k in range(uses[0].size):
        number, r = share[0] + k, uses[0][k]
        node, after = state.nodes[number], state.resources[r, HEAD]
        node[OWNER], node[RESOURCE], node[COEFFICIENT], node[LOAD] = slot, r, uses[1][k], uses[2][k]
        node[NEXT], node[PREVIOUS] = after, NONE
        if after != NONE:
            state.nodes[after, PREVIOUS] = number
        state.resources[r, HEAD] = number
        state.resources[r, TOTAL] += uses[2][k]
        state.resources[r, FILLING] += uses[1][k] * weight
    expect(state, slot, due)


@njit(cache=True)
def leave(arrays: Arrays, slot: int, now: int) -> tuple[int, int]:
    """An activity flows no more; returns its first node, and its first stretch, which stay until they are reused."""
    state = state_of(arrays)
    first = state.slots[slot, FIRST]
    hold(state, slot, NONE, now)
    for number in range(first, first + state.slots[slot, USES]):
        node = state.nodes[number]
        before, after, r = node[PREVIOUS], node[NEXT], node[RESOURCE]
        if before == NONE:
            state.resources[r, HEAD] = after
        else:
            state.nodes[before, NEXT] = after
        if after != NONE:
            state.nodes[after, PREVIOUS] = before
        state.resources[r, TOTAL] -= node[LOAD]
        state.resources[r, FILLING] -= node[COEFFICIENT] * state.slots[slot, WEIGHT]
    expect(state, slot, NOT_EXPECTED)
    return first, state.slots[slot, HELD]


@njit(cache=True)
def gather(arrays: Arrays, dirty: Ints, mark: int, found: Ints, columns: Columns) -> tuple[int, int, int]:
    """Whom changes at the `dirty` resources reach; returns how many members, short resources and flipped ones.

    Another resource that holds nobody back, before or after, joins nothing. `mark` is new in every round.
    """
    state = state_of(arrays)
    resources, reached, members = columns.room, 0, 0  # the queue of resources stands where their rooms will
    for r in dirty:
        state.resources[r, REACHED] = mark
        resources[reached] = r
        reached += 1
    place = 0
    while place < reached:
        number = state.resources[resources[place], HEAD]
        place += 1
        while number != NONE:
            slot = state.nodes[number, OWNER]
            number = state.nodes[number, NEXT]
            row = state.slots[slot]
            if row[VISITED] == mark:
                continue
            row[VISITED] = mark
            found[SLOT, members] = slot
            members += 1
            for other in range(row[FIRST], row[FIRST] + row[USES]):
                r = state.nodes[other, RESOURCE]
                if state.resources[r, REACHED] != mark and couples(state, r):
                    state.resources[r, REACHED] = mark
                    resources[reached] = r
                    reached += 1
    short = flipped = 0
    for r in resources[:reached]:
        now_short = is_short(state, r)
        if now_short:
            found[CONCERNED, short] = r
            short += 1
        else:
            state.resources[r, LEVEL] = state.resources[r, MADE] = NO_LEVEL
        if now_short != state.resources[r, COUPLED]:
            state.resources[r, COUPLED] = now_short
            found[FLIPPED, flipped] = r
            flipped += 1
    if short:
        found[CONCERNED, :short].sort()
        write_columns(state, members, short, found, columns)
    return members, short, flipped


@njit(cache=True)
def is_short(state: State, r: int) -> bool:
    """Whether a resource's members together would take more than it has."""
    return bool(state.resources[r, TOTAL] > state.resources[r, ROOM])


@njit(cache=True)
def couples(state: State, r: int) -> bool:
    """Whether a resource's members' speeds hang together, before this division or after."""
    return state.resources[r, COUPLED] != 0 or is_short(state, r)


@njit(cache=True)
def write_columns(state: State, members: int, short: int, found: Ints, gathered: Columns) -> None:
    """Write what the solver reads: members in the order they were found, and their uses of short resources."""
    for n in range(short):
        r = found[CONCERNED, n]
        gathered.room[n] = state.resources[r, ROOM]
        state.resources[r, LOCAL] = n
    columns, uses = gathered.members, 0
    for i in range(members):
        row = state.slots[found[SLOT, i]]
        columns.priority[i], columns.bound[i] = row[PRIORITY], row[BOUND]
        columns.weight[i] = row[WEIGHT]
        columns.first[i] = uses
        for number in range(row[FIRST], row[FIRST] + row[USES]):
            r = state.nodes[number, RESOURCE]
            if state.resources[r, COUPLED]:
                columns.resource[uses] = state.resources[r, LOCAL]
                columns.coefficient[uses] = state.nodes[number, COEFFICIENT]
                uses += 1
    columns.first[members] = uses


@njit(cache=True)
def apply(arrays: Arrays, found: Ints, members: int, now: int) -> None:
    """Give the members the speeds and holders that were found."""
    state = state_of(arrays)
    for i in range(members):
        slot = found[SLOT, i]
        hold(state, slot, found[HELD_AT, i], now)
        set_speed(state, slot, found[RATE, i] / state.slots[slot, BOUND], now)


@njit(cache=True)
def hold(state: State, slot: int, resource: int, now: int) -> None:
    """From `now` on a resource, or none, holds this activity below its alone speed."""
    row = state.slots[slot]
    if row[HOLDER] == resource:
        return
    if row[HOLDER] != NONE and now > row[HELD_SINCE]:
        stretch = row[HELD]
        while stretch != NONE and state.held[stretch, HELD_BY] != row[HOLDER]:
            stretch = state.held[stretch, HELD_NEXT]
        if stretch == NONE:
            stretch = new_stretch(state)
            state.held[stretch, HELD_BY], state.held[stretch, HELD_PS] = row[HOLDER], 0
            state.held[stretch, HELD_NEXT], row[HELD] = row[HELD], stretch
        state.held[stretch, HELD_PS] += now - row[HELD_SINCE]
    row[HOLDER], row[HELD_SINCE] = resource, now


@njit(cache=True)
def new_stretch(state: State) -> int:
    """A free row of `held`; the caller of `apply` sees that there are enough."""
    free = state.counts[FREE_HELD]
    if free != NONE:
        state.counts[FREE_HELD] = state.held[free, HELD_NEXT]
        return int(free)
    state.counts[USED_HELD] += 1
    return int(state.counts[USED_HELD]) - 1


@njit(cache=True)
def forget(arrays: Arrays, slot: int) -> None:
    """Free the stretches of an activity that has left."""
    state = state_of(arrays)
    stretch = state.slots[slot, HELD]
    while stretch != NONE:
        after = state.held[stretch, HELD_NEXT]
        state.held[stretch, HELD_NEXT], state.counts[FREE_HELD] = state.counts[FREE_HELD], stretch
        stretch = after
    state.slots[slot, HELD] = NONE


@njit(cache=True)
def set_speed(state: State, slot: int, speed: float, now: int) -> None:
    """Change a speed; one that stays is not touched, not even to bring its account up to date."""
    floats = state.floats[slot]
    if floats[SPEED] == speed:
        return
    row = state.slots[slot]
    floats[REMAINING] -= floats[SPEED] * (now - row[SINCE])
    row[SINCE], floats[SPEED] = now, speed
    if floats[REMAINING] <= 0:
        expect(state, slot, now)
    elif speed > 0 and floats[REMAINING] / speed < HORIZON_PS - now:
        expect(state, slot, now + int(np.ceil(floats[REMAINING] / speed)))
    else:
        expect(state, slot, NOT_EXPECTED)


# the heap of ends


@njit(cache=True)
def expect(state: State, slot: int, due: int) -> None:
    """The end of an activity is expected then, and at no other time."""
    row, counts = state.slots[slot], state.counts
    row[DUE] = due
    place = row[PLACE]
    if due == NOT_EXPECTED:
        if place != NONE:
            row[PLACE] = NONE
            counts[IN_HEAP] -= 1
            last = state.heap[counts[IN_HEAP]]
            if last != slot:
                put(state, rise(state, last, place), last)
                put(state, sink(state, last, state.slots[last, PLACE]), last)
        return
    if place == NONE:
        place = counts[IN_HEAP]
        counts[IN_HEAP] += 1
    put(state, rise(state, slot, place), slot)
    put(state, sink(state, slot, row[PLACE]), slot)


@njit(cache=True)
def put(state: State, place: int, slot: int) -> None:
    """An activity stands at this place of the heap."""
    state.heap[place] = slot
    state.slots[slot, PLACE] = place


@njit(cache=True)
def is_before(state: State, slot: int, other: int) -> bool:
    """Whether an activity ends before another, or started before it where they end at one time."""
    mine, theirs = state.slots[slot], state.slots[other]
    return bool(mine[DUE] < theirs[DUE] or (mine[DUE] == theirs[DUE] and mine[SEQUENCE] < theirs[SEQUENCE]))


@njit(cache=True)
def rise(state: State, slot: int, place: int) -> int:
    """The place to which an activity rises from `place`; those above it come down."""
    while place > 0:
        parent = (place - 1) // 2
        if not is_before(state, slot, state.heap[parent]):
            break
        put(state, place, state.heap[parent])
        place = parent
    return place


@njit(cache=True)
def sink(state: State, slot: int, place: int) -> int:
    """The place to which an activity sinks from `place`; those below it come up."""
    while True:
        child = 2 * place + 1
        if child >= state.counts[IN_HEAP]:
            return place
        if child + 1 < state.counts[IN_HEAP] and is_before(state, state.heap[child + 1], state.heap[child]):
            child += 1
        if not is_before(state, state.heap[child], slot):
            return place
        put(state, place, state.heap[child])
        place = child
