"""Activities cut short in the compiled calendar: a submission that is taken back, or one whose activity fails.

Numba's cache does not see changes in other files.
"""

from __future__ import annotations

from numba import njit

from ..calendar import flows as f
from ..calendar.solver import Ints
from . import activities as a
from . import loop, sharing
from . import machine as c
from . import queues as q
from .machine import Machine

NONE = -1


@njit(cache=True)
def cut_ticket(m: Machine, ticket: int) -> None:
    """A submission is taken back: what it executes is cut short, and it issues nothing more."""
    mem = m.mem
    fail_ticket(m, ticket)
    for slot in range(m.flows[0].shape[0]):
        if mem[mem[c.ACTIVITY] + slot * c.ACTIVITY_COLUMNS + c.PHASE] != c.IDLE and ticket_of(mem, slot) == ticket:
            cut(m, slot)


@njit(cache=True)
def fail_queue(m: Machine, queue: int) -> None:
    """What a queue executes fails, and its submission with it."""
    slot = executes(m.mem, queue)
    fail_ticket(m, ticket_of(m.mem, queue))
    cut(m, slot)


@njit(cache=True)
def ticket_of(mem: Ints, queue: int) -> int:
    """The submission that a queue works on; of an activity of a group, its owner's queue waits for it."""
    run = mem[mem[c.QUEUES] + queue * c.QUEUE_COLUMNS + c.RUN]
    return int(mem[mem[c.RUNS] + run * c.RUN_COLUMNS + c.R_TICKET])


@njit(cache=True)
def executes(mem: Ints, queue: int) -> int:
    """The slot of what a queue executes now, alone or with its peers; NONE if it is idle or waits."""
    row = mem[c.QUEUES] + queue * c.QUEUE_COLUMNS
    if mem[row + c.RUN] == NONE:
        return NONE
    if mem[row + c.STEP] == c.MEETING:
        meeting = mem[c.MEETINGS] + meeting_at(mem, queue) * c.MEETING_COLUMNS
        return NONE if mem[meeting + c.STARTED] == NONE else int(mem[meeting + c.SLOT])
    is_under_way = mem[row + c.STEP] == c.EXECUTING or mem[row + c.STEP] == c.DISPATCHING
    return queue if is_under_way else NONE


@njit(cache=True)
def meeting_at(mem: Ints, queue: int) -> int:
    """The meeting that a queue stands at."""
    row = mem[c.QUEUES] + queue * c.QUEUE_COLUMNS
    run = mem[c.RUNS] + mem[row + c.RUN] * c.RUN_COLUMNS
    return loop.meeting_of(mem, run, mem[c.ENTRIES] + mem[row + c.PC] * c.ENTRY_COLUMNS)


@njit(cache=True)
def fail_ticket(m: Machine, ticket: int) -> None:
    """Nothing more of a submission is issued, and all who wait for a semaphore or a peer of it leave."""
    mem = m.mem
    mem[mem[c.TICKETS] + ticket * c.TICKET_COLUMNS + c.HAS_FAILED] = 1
    for queue in range(m.flows[0].shape[0]):  # a slot is a queue
        row = mem[c.QUEUES] + queue * c.QUEUE_COLUMNS
        if mem[row + c.RUN] == NONE or ticket_of(mem, queue) != ticket:
            continue
        if mem[row + c.BLOCKED_ON] != NONE:
            mem[mem[c.SEMAPHORES] + 2 * mem[row + c.BLOCKED_ON] + c.FIRST_BLOCKED] = NONE  # all there are of this run
            q.abandon(mem, queue)
        elif mem[row + c.STEP] == c.MEETING:
            meeting = mem[c.MEETINGS] + meeting_at(mem, queue) * c.MEETING_COLUMNS
            if mem[meeting + c.STARTED] == NONE:
                part(mem, meeting)


@njit(cache=True)
def ends_now(m: Machine, slot: int) -> bool:
    """Whether an activity ends at this picosecond by itself."""
    activity = m.mem[c.ACTIVITY] + slot * c.ACTIVITY_COLUMNS
    phase, now = m.mem[activity + c.PHASE], m.mem[c.NOW]
    if phase == c.IS_JOINED:
        return bool(m.flows[0][slot, f.DUE] == now)
    flows = phase == c.IS_FRESH or (phase == c.IN_FIXED and m.mem[activity + c.A_ALONE] == 0)
    return bool(flows and m.mem[activity + c.DUE] == now)


@njit(cache=True)
def cut(m: Machine, slot: int) -> None:
    """End an activity now; those who wait for its end leave. One that ends now by itself ends well."""
    mem = m.mem
    activity = mem[c.ACTIVITY] + slot * c.ACTIVITY_COLUMNS
    phase = mem[activity + c.PHASE]
    if ends_now(m, slot):
        if phase == c.IS_JOINED:
            loop.end_joined(m, slot)
        else:
            loop.come_due(mem, slot)
        return
    if phase == c.IS_JOINED:
        sharing.leave(m, slot)
    elif phase == c.IS_FRESH:
        a.leave_fresh(mem, slot)
    elif phase == c.AWAITS_UNIT:
        sharing.wait_no_more(m, slot)
    mem[activity + c.PHASE] = c.IDLE
    if mem[activity + c.KIND] == c.GROUP_WORK:
        part(mem, mem[c.MEETINGS] + mem[activity + c.A_MEETING] * c.MEETING_COLUMNS)
    else:
        q.abandon(mem, slot)


@njit(cache=True)
def part(mem: Ints, meeting: int) -> None:
    """All who have come to a meeting (its address) leave it."""
    queue = mem[meeting + c.FIRST_MEMBER]
    mem[meeting + c.FIRST_MEMBER] = NONE
    while queue != NONE:
        after = mem[mem[c.QUEUES] + queue * c.QUEUE_COLUMNS + c.NEXT_BLOCKED]
        q.abandon(mem, queue)
        queue = after
