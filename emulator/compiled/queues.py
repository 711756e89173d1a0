"""Queues of the compiled calendar: what makes one ready, how semaphores wake it, and which program it is in.

Numba's cache does not see changes in other files.
"""

from __future__ import annotations

from numba import njit

from ..calendar.solver import Ints
from . import machine as c

NONE = -1


@njit(cache=True)
def make_ready(mem: Ints, queue: int) -> None:
    """A queue may go on."""
    row = mem[c.QUEUES] + queue * c.QUEUE_COLUMNS
    if not mem[row + c.IS_READY]:
        mem[row + c.IS_READY] = 1
        mem[mem[c.READY_LIST] + mem[c.READY]] = queue
        mem[c.READY] += 1


@njit(cache=True)
def finish_entry(mem: Ints, queue: int, start: int, bound: int, late: int) -> None:
    """The instruction that a queue is at has ended: write its span, signal, go on to the next."""
    row = mem[c.QUEUES] + queue * c.QUEUE_COLUMNS
    run, pc = mem[c.RUNS] + mem[row + c.RUN] * c.RUN_COLUMNS, mem[row + c.PC]
    span = mem[c.SPANS] + (mem[run + c.R_SPANS] + pc - mem[run + c.R_FIRST]) * c.SPAN_COLUMNS
    mem[span + c.S_ISSUED], mem[span + c.S_START] = mem[row + c.ISSUED], start
    mem[span + c.S_END], mem[span + c.S_BOUND], mem[span + c.S_LATE] = mem[c.NOW], bound, late
    signal(mem, mem[run + c.R_SEMAPHORES] + mem[mem[c.ENTRIES] + pc * c.ENTRY_COLUMNS + c.OWN], 1)
    mem[row + c.PC] = pc + 1
    mem[row + c.STEP], mem[row + c.WAITED] = c.FETCH, 0


@njit(cache=True)
def signal(mem: Ints, semaphore: int, count: int) -> None:
    """Raise a semaphore, and wake the queues whose wait that satisfies."""
    at = mem[c.SEMAPHORES] + 2 * semaphore
    mem[at + c.VALUE] += count
    queue, kept = mem[at + c.FIRST_BLOCKED], NONE
    while queue != NONE:
        row = mem[c.QUEUES] + queue * c.QUEUE_COLUMNS
        after = mem[row + c.NEXT_BLOCKED]
        if mem[row + c.NEED] <= mem[at + c.VALUE]:
            mem[row + c.BLOCKED_ON] = NONE
            make_ready(mem, queue)
        else:
            mem[row + c.NEXT_BLOCKED] = kept
            kept = queue
        queue = after
    mem[at + c.FIRST_BLOCKED] = kept


@njit(cache=True)
def blocks(mem: Ints, queue: int, semaphore: int, need: int) -> bool:
    """Whether a semaphore is too low yet; the queue is then woken when it is not."""
    at = mem[c.SEMAPHORES] + 2 * semaphore
    if mem[at + c.VALUE] >= need:
        return False
    row = mem[c.QUEUES] + queue * c.QUEUE_COLUMNS
    mem[row + c.NEED], mem[row + c.BLOCKED_ON] = need, semaphore
    mem[row + c.NEXT_BLOCKED] = mem[at + c.FIRST_BLOCKED]
    mem[at + c.FIRST_BLOCKED] = queue
    return True


@njit(cache=True)
def take_run(mem: Ints, queue: int) -> bool:
    """Begin with the next program in the inbox; False if there is none."""
    row = mem[c.QUEUES] + queue * c.QUEUE_COLUMNS
    run = mem[row + c.INBOX]
    if run == NONE:
        return False
    after = mem[mem[c.RUNS] + run * c.RUN_COLUMNS + c.R_AFTER]
    if after != NONE and mem[mem[c.RUNS] + after * c.RUN_COLUMNS + c.R_LEFT]:
        return False  # its end makes this queue ready
    queues = mem[c.QUEUES_A_CARD]
    number = queue % queues
    part = mem[c.PARTS] + 2 * (run * queues + number)
    mem[row + c.INBOX] = mem[mem[c.INBOXES] + run * queues + number]
    mem[row + c.RUN], mem[row + c.STEP], mem[row + c.WAITED] = run, c.FETCH, 0
    mem[row + c.PC], mem[row + c.END] = mem[part], mem[part + 1]
    return True


@njit(cache=True)
def has_failed(mem: Ints, run: int) -> bool:
    """Whether the submission of a run (its address) has failed: nothing more of it is issued."""
    return bool(mem[mem[c.TICKETS] + c.TICKET_COLUMNS * mem[run + c.R_TICKET] + c.HAS_FAILED])


@njit(cache=True)
def abandon(mem: Ints, queue: int) -> None:
    """A queue leaves its program where it stands; of what it had issued, only that stays."""
    row = mem[c.QUEUES] + queue * c.QUEUE_COLUMNS
    if mem[row + c.STEP] != c.FETCH:
        run = mem[c.RUNS] + mem[row + c.RUN] * c.RUN_COLUMNS
        span = mem[c.SPANS] + (mem[run + c.R_SPANS] + mem[row + c.PC] - mem[run + c.R_FIRST]) * c.SPAN_COLUMNS
        mem[span + c.S_ISSUED] = mem[row + c.ISSUED]
    mem[row + c.PC], mem[row + c.STEP], mem[row + c.WAITED] = mem[row + c.END], c.FETCH, 0
    mem[row + c.BLOCKED_ON] = mem[row + c.NEXT_BLOCKED] = NONE
    make_ready(mem, queue)


@njit(cache=True)
def end_run(mem: Ints, queue: int) -> None:
    """A queue has executed all it had to of a program."""
    row = mem[c.QUEUES] + queue * c.QUEUE_COLUMNS
    run = mem[c.RUNS] + mem[row + c.RUN] * c.RUN_COLUMNS
    ticket = mem[c.TICKETS] + c.TICKET_COLUMNS * mem[run + c.R_TICKET]
    mem[row + c.RUN] = NONE
    mem[run + c.R_LEFT] -= 1
    if mem[run + c.R_LEFT] == 0:  # programs that go in turn wait for this one
        first = queue - queue % mem[c.QUEUES_A_CARD]
        for other in range(first, first + mem[c.QUEUES_A_CARD]):
            if mem[mem[c.QUEUES] + other * c.QUEUE_COLUMNS + c.RUN] == NONE:
                make_ready(mem, other)
    mem[ticket + c.LEFT] -= 1
    if mem[ticket + c.LEFT] == 0:
        mem[ticket + c.DONE] = mem[c.NOW]
