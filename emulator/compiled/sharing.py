"""Activities of the compiled calendar that share: units one at a time, all else divided by max-min fairness.

The division itself is `calendar.division`'s, compiled: the same steps over the same arrays. Numba's cache does not see
changes in other files.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from ..calendar import flows as f
from ..calendar import refill as r
from ..calendar.solver import Ints, Members, solve
from . import activities as a
from . import machine as c
from .machine import Machine

NONE = -1


@njit(cache=True)
def round_of(m: Machine) -> None:
    """Grant units, then divide anew whatever a change reaches."""
    mem = m.mem
    if mem[c.WAITERS]:
        grant(m)
    mem[c.ROUND_DUE] = 0
    for k in range(mem[c.FRESH]):
        join(m, mem[mem[c.FRESH_LIST] + k])
    mem[c.FRESH] = 0
    divide(m)


@njit(cache=True)
def join(m: Machine, slot: int) -> None:
    """From now on the division keeps the account of an activity that has flowed at full speed so far."""
    mem, state = m.mem, f.state_of(m.flows)
    activity = mem[c.ACTIVITY] + slot * c.ACTIVITY_COLUMNS
    share, base = mem[c.SHARES] + mem[activity + c.A_SHARE] * c.SHARE_COLUMNS, mem[activity + c.A_BASE]
    bound, weight = mem[share + c.RATE_BOUND], min(mem[activity + c.A_WEIGHT], mem[share + c.RATE_BOUND])
    mem[activity + c.PHASE] = c.IS_JOINED
    row, first = state.slots[slot], mem[activity + c.NODES]
    row[f.FIRST], row[f.USES], row[f.BOUND], row[f.WEIGHT] = first, mem[share + c.USE_COUNT], bound, weight
    row[f.REACH] = (bound + weight - 1) // weight
    row[f.PRIORITY], row[f.SEQUENCE] = mem[activity + c.A_PRIORITY], mem[activity + c.STARTED_AS]
    row[f.SINCE], row[f.VISITED], row[f.PLACE] = mem[activity + c.FLOWED], 0, NONE
    state.floats[slot, f.SPEED], state.floats[slot, f.REMAINING] = 1.0, float(mem[activity + c.A_ALONE])
    use = mem[c.USES] + mem[share + c.FIRST_USE] * c.USE_COLUMNS
    for number in range(first, first + mem[share + c.USE_COUNT]):
        resource = mem[use + c.RESOURCE] + base
        node, there = state.nodes[number], state.resources[resource]
        node[f.OWNER], node[f.RESOURCE] = slot, resource
        node[f.COEFFICIENT], node[f.LOAD] = mem[use + c.COEFFICIENT], mem[use + c.LOAD]
        node[f.NEXT], node[f.PREVIOUS] = there[f.HEAD], NONE
        if there[f.HEAD] != NONE:
            state.nodes[there[f.HEAD], f.PREVIOUS] = number
        there[f.HEAD] = number
        there[f.TOTAL] += mem[use + c.LOAD]
        there[f.FILLING] += mem[use + c.COEFFICIENT] * weight
        use += c.USE_COLUMNS
    count_priority(mem, mem[activity + c.A_PRIORITY], 1)
    f.expect(state, slot, mem[activity + c.DUE])


@njit(cache=True)
def leave(m: Machine, slot: int) -> None:
    """The flowing part of a joined activity is over: say who held it longest, leave its resources to others."""
    mem, state = m.mem, f.state_of(m.flows)
    activity = mem[c.ACTIVITY] + slot * c.ACTIVITY_COLUMNS
    f.leave(m.flows, slot, mem[c.NOW])
    mem[activity + c.HELD] = held_longest(state, slot)
    if state.slots[slot, f.HELD] != NONE:
        f.forget(m.flows, slot)
    count_priority(mem, mem[activity + c.A_PRIORITY], -1)
    a.release(mem, activity)


@njit(cache=True)
def held_longest(state: f.State, slot: int) -> int:
    """The resource that held an activity longest below its alone speed (ties: the lowest), or NONE if none did."""
    best, longest, stretch = NONE, 0, state.slots[slot, f.HELD]
    while stretch != NONE:
        by, length = state.held[stretch, f.HELD_BY], state.held[stretch, f.HELD_PS]
        if length > longest or (length == longest and by < best):
            best, longest = by, length
        stretch = state.held[stretch, f.HELD_NEXT]
    return best


@njit(cache=True)
def count_priority(mem: Ints, priority: int, count: int) -> None:
    """Count an activity of a priority in or out; the list's first rows, `PRIORITIES` of them, are those in use."""
    row = mem[c.PRIORITY_LIST]
    for _ in range(mem[c.PRIORITIES]):
        if mem[row + c.PRIORITY] == priority:
            mem[row + c.IN_USE] += count
            if mem[row + c.IN_USE] == 0:
                mem[c.PRIORITIES] -= 1
                last = mem[c.PRIORITY_LIST] + 2 * mem[c.PRIORITIES]
                mem[row + c.PRIORITY], mem[row + c.IN_USE] = mem[last + c.PRIORITY], mem[last + c.IN_USE]
            return
        row += 2
    mem[row + c.PRIORITY], mem[row + c.IN_USE] = priority, count
    mem[c.PRIORITIES] += 1


@njit(cache=True)
def grant(m: Machine) -> None:
    """Give units that serve one at a time to those who wait, by arrival, then priority, then order."""
    mem, state = m.mem, f.state_of(m.flows)
    count, now, waiting = mem[c.WAITERS], mem[c.NOW], mem[c.WAITING_LIST]
    sort_waiting(mem, count)
    mem[c.WAITERS] = 0
    mem[c.CLAIM] += 1
    for k in range(count):
        slot = mem[waiting + k]
        activity = mem[c.ACTIVITY] + slot * c.ACTIVITY_COLUMNS
        share, base = mem[c.SHARES] + mem[activity + c.A_SHARE] * c.SHARE_COLUMNS, mem[activity + c.A_BASE]
        first, taken = mem[c.UNITS] + mem[share + c.FIRST_UNIT], NONE
        for n in range(mem[share + c.UNIT_COUNT]):
            unit = mem[c.RESOURCES] + (mem[first + n] + base) * c.RESOURCE_COLUMNS
            if mem[unit + c.OWNER] != NONE or mem[unit + c.CLAIMED] == mem[c.CLAIM]:
                taken = mem[first + n] + base
                break
        f.hold(state, slot, taken, now)
        for n in range(mem[share + c.UNIT_COUNT]):
            unit = mem[c.RESOURCES] + (mem[first + n] + base) * c.RESOURCE_COLUMNS
            if taken == NONE:
                mem[unit + c.OWNER] = slot
            else:
                mem[unit + c.CLAIMED] = mem[c.CLAIM]
        if taken == NONE:
            a.flow(mem, slot)
        else:
            mem[waiting + mem[c.WAITERS]] = slot
            mem[c.WAITERS] += 1


@njit(cache=True)
def wait_no_more(m: Machine, slot: int) -> None:
    """An activity that waits for a unit is not to have it any more."""
    mem, state = m.mem, f.state_of(m.flows)
    waiting = mem[c.WAITING_LIST]
    mem[c.WAITERS] -= 1
    for k in range(mem[c.WAITERS]):
        if mem[waiting + k] == slot:
            mem[waiting + k] = mem[waiting + mem[c.WAITERS]]
            break
    f.hold(state, slot, NONE, mem[c.NOW])
    if state.slots[slot, f.HELD] != NONE:
        f.forget(m.flows, slot)
    if mem[c.WAITERS]:
        mem[c.ROUND_DUE] = 1


@njit(cache=True)
def sort_waiting(mem: Ints, count: int) -> None:
    """By arrival, then the highest priority, then order."""
    waiting = mem[c.WAITING_LIST]
    for k in range(1, count):
        slot, place = mem[waiting + k], k
        while place > 0 and is_before(mem, slot, mem[waiting + place - 1]):
            mem[waiting + place] = mem[waiting + place - 1]
            place -= 1
        mem[waiting + place] = slot


@njit(cache=True)
def is_before(mem: Ints, slot: int, other: int) -> bool:
    """Whether an activity is served before another."""
    mine, theirs = mem[c.ACTIVITY] + slot * c.ACTIVITY_COLUMNS, mem[c.ACTIVITY] + other * c.ACTIVITY_COLUMNS
    if mem[mine + c.ARRIVAL] != mem[theirs + c.ARRIVAL]:
        return bool(mem[mine + c.ARRIVAL] < mem[theirs + c.ARRIVAL])
    if mem[mine + c.A_PRIORITY] != mem[theirs + c.A_PRIORITY]:
        return bool(mem[mine + c.A_PRIORITY] > mem[theirs + c.A_PRIORITY])
    return bool(mem[mine + c.A_ORDER] < mem[theirs + c.A_ORDER])


@njit(cache=True)
def divide(m: Machine) -> None:
    """Give everybody whom a change at the dirty resources reaches its speed, from now on (`calendar.division`)."""
    mem, found = m.mem, m.found
    changed = mem[mem[c.DIRTY_LIST] : mem[c.DIRTY_LIST] + mem[c.DIRTY]].copy()
    for resource in changed:
        mem[mem[c.RESOURCES] + resource * c.RESOURCE_COLUMNS + c.IS_DIRTY] = 0
    mem[c.DIRTY] = 0
    mem[c.MARK] += 1
    if mem[c.PRIORITIES] > 1:
        mem[c.LEVELS_KNOWN] = 0
        members = fill(m, changed)
    elif not mem[c.LEVELS_KNOWN]:
        mem[c.LEVELS_KNOWN] = 1
        members = fill(m, np.flatnonzero(m.flows[3][:, f.TOTAL]))
    else:
        budget = r.LOOKS + r.PATIENCE * m.flows[2].shape[0]
        members, flipped = r.refill(m.flows, changed, mem[c.MARK], found, m.scratch, budget)
        flip(m, flipped)
        if members < 0:
            mem[c.MARK] += 1
            members = fill(m, changed)
    if members:
        f.apply(m.flows, found, members, mem[c.NOW])


@njit(cache=True)
def fill(m: Machine, changed: Ints) -> int:
    """Divide from nothing among all that hang together with the changed resources; returns how many members."""
    found, slots = m.found, m.flows[0]
    members, short, flipped = f.gather(m.flows, changed, m.mem[c.MARK], found, m.columns)
    flip(m, flipped)
    if not short:
        for k in range(members):
            found[f.RATE, k], found[f.HELD_AT, k] = slots[found[f.SLOT, k], f.BOUND], NONE
        return members
    given = m.columns.members
    columns = Members(
        given.priority[:members], given.weight, given.bound[:members], given.first, given.resource, given.coefficient
    )
    solve(columns, m.columns.room[:short], found[f.RATE], found[f.HELD_AT])
    r.learn(m.flows, members, short, found)
    if m.mem[c.LEVELS_KNOWN]:
        r.learn_levels(m.flows, found[f.CONCERNED, :short], m.scratch)
    return members


@njit(cache=True)
def flip(m: Machine, count: int) -> None:
    """Let resources know that they began or ceased to be short."""
    for k in range(count):
        resource = m.found[f.FLIPPED, k]
        coupled = m.flows[3][resource, f.COUPLED]
        m.mem[m.mem[c.RESOURCES] + resource * c.RESOURCE_COLUMNS + c.COUPLED] = coupled
