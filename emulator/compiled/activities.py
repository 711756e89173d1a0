"""Activities that nothing hinders: their fixed part, their flow at full speed, and when each of them ends.

One that starts to flow is fresh until resources are divided anew, and costs nothing more if it ends before. Numba's
cache does not see changes in other files.
"""

from __future__ import annotations

from numba import njit

from ..calendar.solver import Ints
from . import machine as c

NONE = -1
OWN_NODES = 8  # resources that an instruction of a card alone may use
LOAD_LIMIT = (1 << 63) - 1


@njit(cache=True)
def arrive(mem: Ints, slot: int) -> bool:
    """The fixed part of an activity is over; whether that is all there is of it."""
    activity = mem[c.ACTIVITY] + slot * c.ACTIVITY_COLUMNS
    if mem[activity + c.A_ALONE] == 0:
        mem[activity + c.FLOWED] = mem[c.NOW]
        return True
    if mem[mem[c.SHARES] + mem[activity + c.A_SHARE] * c.SHARE_COLUMNS + c.UNIT_COUNT]:
        mem[activity + c.PHASE], mem[activity + c.ARRIVAL] = c.AWAITS_UNIT, mem[c.NOW]
        mem[mem[c.WAITING_LIST] + mem[c.WAITERS]] = slot
        mem[c.WAITERS] += 1
        mem[c.ROUND_DUE] = 1
    else:
        flow(mem, slot)
    return False


@njit(cache=True)
def flow(mem: Ints, slot: int) -> None:
    """The flowing part begins, at full speed; if a resource gets short by that, the round corrects it."""
    activity, now = mem[c.ACTIVITY] + slot * c.ACTIVITY_COLUMNS, mem[c.NOW]
    share, base = mem[c.SHARES] + mem[activity + c.A_SHARE] * c.SHARE_COLUMNS, mem[activity + c.A_BASE]
    mem[activity + c.PHASE], mem[activity + c.FLOWED] = c.IS_FRESH, now
    use = mem[c.USES] + mem[share + c.FIRST_USE] * c.USE_COLUMNS
    for _ in range(mem[share + c.USE_COUNT]):
        resource = mem[use + c.RESOURCE] + base
        there = mem[c.RESOURCES] + resource * c.RESOURCE_COLUMNS
        if mem[there + c.TOTAL] > LOAD_LIMIT - mem[use + c.LOAD]:
            mem[c.FAULT] = resource
            return
        mem[there + c.TOTAL] += mem[use + c.LOAD]
        if mem[there + c.COUPLED] or mem[there + c.TOTAL] > mem[there + c.ROOM]:
            touch(mem, resource)
        use += c.USE_COLUMNS
    mem[activity + c.FRESH_AT] = mem[c.FRESH]
    mem[mem[c.FRESH_LIST] + mem[c.FRESH]] = slot
    mem[c.FRESH] += 1
    expect(mem, slot, now + mem[activity + c.A_ALONE])


@njit(cache=True)
def leave_fresh(mem: Ints, slot: int) -> None:
    """An activity that nothing has hindered flows no more."""
    activity = mem[c.ACTIVITY] + slot * c.ACTIVITY_COLUMNS
    place, fresh = mem[activity + c.FRESH_AT], mem[c.FRESH_LIST]
    mem[c.FRESH] -= 1
    last = mem[fresh + mem[c.FRESH]]
    mem[fresh + place] = last
    mem[mem[c.ACTIVITY] + last * c.ACTIVITY_COLUMNS + c.FRESH_AT] = place
    release(mem, activity)


@njit(cache=True)
def release(mem: Ints, activity: int) -> None:
    """Leave resources and units to others."""
    share, base = mem[c.SHARES] + mem[activity + c.A_SHARE] * c.SHARE_COLUMNS, mem[activity + c.A_BASE]
    use = mem[c.USES] + mem[share + c.FIRST_USE] * c.USE_COLUMNS
    for _ in range(mem[share + c.USE_COUNT]):
        resource = mem[use + c.RESOURCE] + base
        there = mem[c.RESOURCES] + resource * c.RESOURCE_COLUMNS
        mem[there + c.TOTAL] -= mem[use + c.LOAD]
        if mem[there + c.COUPLED]:
            touch(mem, resource)
        use += c.USE_COLUMNS
    unit = mem[c.UNITS] + mem[share + c.FIRST_UNIT]
    for k in range(mem[share + c.UNIT_COUNT]):
        mem[mem[c.RESOURCES] + (mem[unit + k] + base) * c.RESOURCE_COLUMNS + c.OWNER] = NONE
    if mem[c.WAITERS]:
        mem[c.ROUND_DUE] = 1


@njit(cache=True)
def touch(mem: Ints, resource: int) -> None:
    """This resource's members may have to share it otherwise than before."""
    there = mem[c.RESOURCES] + resource * c.RESOURCE_COLUMNS
    if not mem[there + c.IS_DIRTY]:
        mem[there + c.IS_DIRTY] = 1
        mem[mem[c.DIRTY_LIST] + mem[c.DIRTY]] = resource
        mem[c.DIRTY] += 1
        mem[c.ROUND_DUE] = 1


# the heap of what is expected of activities that do not share


@njit(cache=True)
def expect(mem: Ints, slot: int, due: int) -> None:
    """The next thing befalls an activity then."""
    activity = mem[c.ACTIVITY] + slot * c.ACTIVITY_COLUMNS
    mem[activity + c.VERSION] += 1
    mem[activity + c.DUE] = due
    heap, place = mem[c.PENDING_HEAP], mem[c.PENDING]
    mem[c.PENDING] += 1
    while place > 0:
        parent = (place - 1) // 2
        above, here = heap + parent * c.PENDING_COLUMNS, heap + place * c.PENDING_COLUMNS
        if mem[above + c.P_DUE] <= due:
            break
        for k in range(c.PENDING_COLUMNS):
            mem[here + k] = mem[above + k]
        place = parent
    here = heap + place * c.PENDING_COLUMNS
    mem[here + c.P_DUE], mem[here + c.P_SLOT], mem[here + c.P_VERSION] = due, slot, mem[activity + c.VERSION]


@njit(cache=True)
def first_pending(mem: Ints) -> tuple[int, int]:
    """(when, which activity) of what comes first, after taking what is void off the heap; (NONE, NONE) if nothing."""
    heap = mem[c.PENDING_HEAP]
    while mem[c.PENDING]:
        slot = mem[heap + c.P_SLOT]
        activity = mem[c.ACTIVITY] + slot * c.ACTIVITY_COLUMNS
        phase = mem[activity + c.PHASE]
        if (phase == c.IN_FIXED or phase == c.IS_FRESH) and mem[activity + c.VERSION] == mem[heap + c.P_VERSION]:
            return mem[heap + c.P_DUE], slot
        drop_first(mem)
    return NONE, NONE


@njit(cache=True)
def drop_first(mem: Ints) -> None:
    """Take the first off the heap."""
    heap = mem[c.PENDING_HEAP]
    mem[c.PENDING] -= 1
    count = mem[c.PENDING]
    last, place = heap + count * c.PENDING_COLUMNS, 0
    due = mem[last + c.P_DUE]
    while True:
        child = 2 * place + 1
        if child >= count:
            break
        below = heap + child * c.PENDING_COLUMNS
        if child + 1 < count and mem[below + c.PENDING_COLUMNS + c.P_DUE] < mem[below + c.P_DUE]:
            child += 1
            below += c.PENDING_COLUMNS
        if mem[below + c.P_DUE] >= due:
            break
        here = heap + place * c.PENDING_COLUMNS
        for k in range(c.PENDING_COLUMNS):
            mem[here + k] = mem[below + k]
        place = child
    here = heap + place * c.PENDING_COLUMNS
    for k in range(c.PENDING_COLUMNS):
        mem[here + k] = mem[last + k]
