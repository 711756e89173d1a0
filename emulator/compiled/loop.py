"""The compiled calendar's loop: queues fetch, wait, execute and signal, and time goes from one end to the next.

The rules are those of the SimPy engine (`calendar.engine`, `card_queue`, `exchange`): at a timestamp all that ends,
signals and issues runs to a fixpoint, then resources are divided anew, once a round. Numba's cache does not see changes
in other files: after one in a file it calls, clear it.
"""

from __future__ import annotations

from numba import njit

from ..calendar import flows as f
from ..calendar.solver import Ints
from . import activities as a
from . import machine as c
from . import queues as q
from . import sharing
from .machine import Machine

NONE = -1


@njit(cache=True)
def run_until(m: Machine, ticket: int, until_ps: int) -> int:
    """Let time pass until a ticket is done (NONE: no ticket) or the clock stands at `until_ps` (NONE: no such time).

    Returns why it stopped: TICKET_DONE, REACHED, DRY when nothing can happen any more, GROW when the caller must make
    room for stretches, TOO_MANY when a resource (`FAULT`) has more members than can be counted.
    """
    mem, counts = m.mem, m.flows[6]
    done = mem[c.TICKETS] + c.TICKET_COLUMNS * ticket + c.DONE
    while True:
        while mem[c.READY]:
            mem[c.READY] -= 1
            queue = mem[mem[c.READY_LIST] + mem[c.READY]]
            mem[mem[c.QUEUES] + queue * c.QUEUE_COLUMNS + c.IS_READY] = 0
            advance(mem, queue)
        if mem[c.FAULT] != NONE:
            return c.TOO_MANY
        if ticket != NONE and mem[done] != NONE:
            return c.TICKET_DONE
        due, slot = a.first_pending(mem)
        if counts[f.IN_HEAP]:
            other = m.flows[5][0]
            if due == NONE or m.flows[0][other, f.DUE] <= due:
                due, slot = m.flows[0][other, f.DUE], other
        if mem[c.ROUND_DUE] and due != mem[c.NOW]:
            if counts[f.USED_HELD] + 3 * m.flows[0].shape[0] > m.flows[4].shape[0]:
                return c.GROW
            sharing.round_of(m)
            continue
        if until_ps != NONE and (due == NONE or due >= until_ps):
            mem[c.NOW] = until_ps
            return c.REACHED
        if due == NONE:
            return c.DRY
        mem[c.NOW] = due
        if mem[mem[c.ACTIVITY] + slot * c.ACTIVITY_COLUMNS + c.PHASE] == c.IS_JOINED:
            end_joined(m, slot)
        else:
            come_due(mem, slot)


@njit(cache=True)
def come_due(mem: Ints, slot: int) -> None:
    """The fixed part of an activity is over, or all of it, with nothing in its way."""
    activity = mem[c.ACTIVITY] + slot * c.ACTIVITY_COLUMNS
    if mem[activity + c.PHASE] == c.IN_FIXED:
        if a.arrive(mem, slot):
            end(mem, slot, mem[activity + c.A_BOUND])
        return
    a.leave_fresh(mem, slot)
    end(mem, slot, bound_of(mem, activity))


@njit(cache=True)
def end_joined(m: Machine, slot: int) -> None:
    """An activity that shared resources is done: somebody may have held it."""
    mem = m.mem
    sharing.leave(m, slot)
    end(mem, slot, bound_of(mem, mem[c.ACTIVITY] + slot * c.ACTIVITY_COLUMNS))


@njit(cache=True)
def bound_of(mem: Ints, activity: int) -> int:
    """What would have to be better for an activity to end sooner."""
    holder = mem[activity + c.HELD]
    if holder == NONE:
        return int(mem[activity + c.A_BOUND])
    if mem[activity + c.A_FIXED] > mem[c.NOW] - mem[activity + c.FLOWED]:
        return int(mem[activity + c.A_BOUND]) if mem[activity + c.KIND] == c.GROUP_WORK else c.DISPATCH_BOUND
    return int(mem[mem[c.RESOURCES] + holder * c.RESOURCE_COLUMNS + c.KIND_BOUND])


@njit(cache=True)
def end(mem: Ints, slot: int, bound: int) -> None:
    """An activity is done: those go on who waited for it."""
    activity = mem[c.ACTIVITY] + slot * c.ACTIVITY_COLUMNS
    mem[activity + c.PHASE] = c.IDLE
    mem[c.ACTIVITIES] += 1
    if mem[activity + c.KIND] == c.GROUP_WORK:
        end_meeting(mem, mem[activity + c.A_MEETING], bound)
        return
    row = mem[c.QUEUES] + slot * c.QUEUE_COLUMNS
    if mem[row + c.STEP] == c.DISPATCHING:  # of a control instruction, or of the sum of an eager message
        mem[row + c.STEP] = c.DISPATCHED
    else:
        q.finish_entry(mem, slot, mem[row + c.ISSUED], bound, NONE)
    q.make_ready(mem, slot)


@njit(cache=True)
def advance(mem: Ints, queue: int) -> None:
    """Let a queue go on until it must wait."""
    row = mem[c.QUEUES] + queue * c.QUEUE_COLUMNS
    while mem[row + c.BLOCKED_ON] == NONE:
        if mem[row + c.RUN] == NONE and not q.take_run(mem, queue):
            return
        if mem[row + c.PC] == mem[row + c.END]:
            q.end_run(mem, queue)
            continue
        run = mem[c.RUNS] + mem[row + c.RUN] * c.RUN_COLUMNS
        entry = mem[c.ENTRIES] + mem[row + c.PC] * c.ENTRY_COLUMNS
        step = mem[row + c.STEP]
        if step == c.FETCH:
            if q.has_failed(mem, run):
                q.abandon(mem, queue)
                continue
            while mem[row + c.WAITED] < mem[entry + c.WAIT_COUNT]:
                wait = mem[c.WAITS] + 2 * (mem[entry + c.FIRST_WAIT] + mem[row + c.WAITED])
                if q.blocks(mem, queue, mem[run + c.R_SEMAPHORES] + mem[wait + c.INDEX], mem[wait + c.REACH]):
                    return
                mem[row + c.WAITED] += 1
            mem[row + c.ISSUED] = mem[c.NOW]
            if not issue(mem, queue, run, entry):
                return
        elif step == c.RECEIVED:
            receive(mem, queue, run, entry)
        elif step != c.DISPATCHED or not dispatched(mem, queue, run, entry):
            return


@njit(cache=True)
def issue(mem: Ints, queue: int, run: int, entry: int) -> bool:
    """Start what an entry says; whether the queue may go on at once."""
    row, action = mem[c.QUEUES] + queue * c.QUEUE_COLUMNS, mem[entry + c.ACTION]
    op = mem[c.OPS] + (mem[run + c.R_OPS] + mem[entry + c.SITE]) * c.OP_COLUMNS
    if action == c.COLLECTIVE:
        mem[row + c.STEP] = c.MEETING
        come_to_collective(mem, queue, meeting_of(mem, run, entry))
        return False
    if action == c.SEND or action == c.RECEIVE:
        mem[row + c.STEP] = c.MEETING
        return come_to_transfer(mem, queue, meeting_of(mem, run, entry), action == c.SEND)
    if action != c.FLOW and mem[op + c.FIXED] == 0:
        mem[row + c.STEP] = c.DISPATCHED
        return True
    mem[row + c.STEP] = c.EXECUTING if action == c.FLOW else c.DISPATCHING
    start_own(mem, queue, run, op)
    return bool(mem[row + c.STEP] != c.EXECUTING and mem[row + c.STEP] != c.DISPATCHING)


@njit(cache=True)
def meeting_of(mem: Ints, run: int, entry: int) -> int:
    """The meeting that an entry of a run comes to."""
    return int(mem[mem[c.LINKS] + mem[run + c.R_LINKS] + mem[entry + c.LINK]])


@njit(cache=True)
def start_own(mem: Ints, queue: int, run: int, op: int) -> None:
    """Start the activity of an instruction that concerns its card alone."""
    at = mem[c.ACTIVITY] + queue * c.ACTIVITY_COLUMNS
    mem[at + c.KIND], mem[at + c.A_SHARE], mem[at + c.A_BASE] = c.OWN_WORK, mem[op + c.SHARE], mem[run + c.R_BASE]
    mem[at + c.A_FIXED], mem[at + c.A_ALONE], mem[at + c.A_BOUND] = (
        mem[op + c.FIXED],
        mem[op + c.ALONE],
        mem[op + c.BOUND],
    )
    mem[at + c.A_WEIGHT], mem[at + c.A_PRIORITY] = mem[run + c.R_WEIGHT], mem[run + c.R_PRIORITY]
    mem[at + c.A_ORDER] = mem[run + c.R_ORDER] + queue % mem[c.QUEUES_A_CARD]
    mem[at + c.NODES] = queue * a.OWN_NODES
    start(mem, queue)


@njit(cache=True)
def start(mem: Ints, slot: int) -> None:
    """Begin the fixed part of an activity, or what follows where it has none."""
    at = mem[c.ACTIVITY] + slot * c.ACTIVITY_COLUMNS
    mem[c.SEQUENCE] += 1
    mem[at + c.STARTED_AS], mem[at + c.HELD], mem[at + c.FLOWED] = mem[c.SEQUENCE], NONE, NONE
    if mem[at + c.A_FIXED]:
        mem[at + c.PHASE] = c.IN_FIXED
        a.expect(mem, slot, mem[c.NOW] + mem[at + c.A_FIXED])
    elif a.arrive(mem, slot):
        end(mem, slot, mem[at + c.A_BOUND])


@njit(cache=True)
def dispatched(mem: Ints, queue: int, run: int, entry: int) -> bool:
    """A control instruction after its dispatch, or a receive after its sum: whether it has ended."""
    row, action = mem[c.QUEUES] + queue * c.QUEUE_COLUMNS, mem[entry + c.ACTION]
    issued = mem[row + c.ISSUED]
    if action == c.RECEIVE:
        meeting = mem[c.MEETINGS] + meeting_of(mem, run, entry) * c.MEETING_COLUMNS
        q.finish_entry(mem, queue, max(issued, mem[meeting + c.STARTED]), c.DEPENDENCY, mem[meeting + c.LATE])
        return True
    semaphore = mem[run + c.R_SEMAPHORES] + mem[entry + c.SEMAPHORE]
    if action == c.WAIT:
        if q.has_failed(mem, run) and mem[mem[c.SEMAPHORES] + 2 * semaphore] < mem[entry + c.COUNT]:
            q.abandon(mem, queue)
            return True
        if q.blocks(mem, queue, semaphore, mem[entry + c.COUNT]):
            return False
    if action == c.SIGNAL:
        q.signal(mem, semaphore, mem[entry + c.COUNT])
    op = mem[c.OPS] + (mem[run + c.R_OPS] + mem[entry + c.SITE]) * c.OP_COLUMNS
    q.finish_entry(mem, queue, issued, mem[op + c.BOUND], NONE)
    return True


@njit(cache=True)
def receive(mem: Ints, queue: int, run: int, entry: int) -> None:
    """A message is there: add it, if that is left to do."""
    row = mem[c.QUEUES] + queue * c.QUEUE_COLUMNS
    op = mem[c.OPS] + (mem[run + c.R_OPS] + mem[entry + c.SITE]) * c.OP_COLUMNS
    if mem[op + c.ADDS]:
        mem[row + c.STEP] = c.DISPATCHING
        start_own(mem, queue, run, op)
    else:
        mem[row + c.STEP] = c.DISPATCHED


# meetings


@njit(cache=True)
def join_members(mem: Ints, queue: int, meeting: int) -> None:
    """A queue waits for the end of a meeting."""
    mem[mem[c.QUEUES] + queue * c.QUEUE_COLUMNS + c.NEXT_BLOCKED] = mem[meeting + c.FIRST_MEMBER]
    mem[meeting + c.FIRST_MEMBER] = queue


@njit(cache=True)
def attend(mem: Ints, queue: int, meeting: int) -> None:
    """A member has come to a meeting, and waits there for its end."""
    rank, now = queue // mem[c.QUEUES_A_CARD], mem[c.NOW]
    if mem[meeting + c.ARRIVED] == 0:
        mem[meeting + c.EARLIEST] = now
    if mem[meeting + c.ARRIVED] == 0 or now > mem[meeting + c.LATEST]:
        mem[meeting + c.LATEST], mem[meeting + c.LATE] = now, rank
    elif rank < mem[meeting + c.LATE]:
        mem[meeting + c.LATE] = rank
    mem[meeting + c.ARRIVED] += 1
    join_members(mem, queue, meeting)


@njit(cache=True)
def come_to_collective(mem: Ints, queue: int, number: int) -> None:
    """A member has come; the last one starts it."""
    meeting = mem[c.MEETINGS] + number * c.MEETING_COLUMNS
    attend(mem, queue, meeting)
    if mem[meeting + c.ARRIVED] == mem[meeting + c.MEMBERS]:
        start_meeting(mem, number, mem[meeting + c.M_FIXED], mem[meeting + c.M_BOUND])


@njit(cache=True)
def come_to_transfer(mem: Ints, queue: int, number: int, sends: bool) -> bool:
    """One end has come: an eager message starts with its sender, any other with both. Whether the queue may go on."""
    meeting = mem[c.MEETINGS] + number * c.MEETING_COLUMNS
    if mem[meeting + c.STARTED] != NONE and not sends:  # an eager message was sent before
        if mem[meeting + c.ENDED] == NONE:
            join_members(mem, queue, meeting)
            return False
        mem[mem[c.QUEUES] + queue * c.QUEUE_COLUMNS + c.STEP] = c.RECEIVED
        return True
    attend(mem, queue, meeting)
    if mem[meeting + c.ARRIVED] == 2:
        start_meeting(mem, number, mem[meeting + c.BOTH_FIXED], mem[meeting + c.BOTH_BOUND])
    elif sends and mem[meeting + c.IS_EAGER]:
        start_meeting(mem, number, mem[meeting + c.M_FIXED], mem[meeting + c.M_BOUND])
    return False


@njit(cache=True)
def start_meeting(mem: Ints, number: int, fixed: int, bound: int) -> None:
    """All have come that it waits for: the group's activity begins."""
    meeting = mem[c.MEETINGS] + number * c.MEETING_COLUMNS
    mem[meeting + c.STARTED] = mem[c.NOW]
    if mem[meeting + c.EARLIEST] == mem[meeting + c.LATEST]:
        mem[meeting + c.LATE] = NONE
    slot = mem[meeting + c.SLOT]
    at = mem[c.ACTIVITY] + slot * c.ACTIVITY_COLUMNS
    mem[at + c.KIND], mem[at + c.A_SHARE], mem[at + c.A_BASE] = c.GROUP_WORK, mem[meeting + c.M_SHARE], 0
    mem[at + c.A_FIXED], mem[at + c.A_ALONE], mem[at + c.A_BOUND] = fixed, mem[meeting + c.M_ALONE], bound
    mem[at + c.A_WEIGHT], mem[at + c.A_PRIORITY] = mem[meeting + c.M_WEIGHT], mem[meeting + c.M_PRIORITY]
    mem[at + c.A_ORDER], mem[at + c.A_MEETING] = mem[meeting + c.M_ORDER], number
    mem[at + c.NODES] = mem[meeting + c.M_NODES]
    start(mem, slot)


@njit(cache=True)
def end_meeting(mem: Ints, number: int, bound: int) -> None:
    """The group's activity is over: every member that waits goes on."""
    meeting, now = mem[c.MEETINGS] + number * c.MEETING_COLUMNS, mem[c.NOW]
    mem[meeting + c.ENDED] = now
    started, late = mem[meeting + c.STARTED], mem[meeting + c.LATE]
    queue = mem[meeting + c.FIRST_MEMBER]
    mem[meeting + c.FIRST_MEMBER] = NONE
    while queue != NONE:
        row = mem[c.QUEUES] + queue * c.QUEUE_COLUMNS
        after = mem[row + c.NEXT_BLOCKED]
        if mem[mem[c.ENTRIES] + mem[row + c.PC] * c.ENTRY_COLUMNS + c.ACTION] == c.RECEIVE:
            mem[row + c.STEP] = c.RECEIVED
        else:
            held = c.DEPENDENCY if started - mem[row + c.ISSUED] > now - started else bound
            q.finish_entry(mem, queue, started, held, late)
        q.make_ready(mem, queue)
        queue = after
