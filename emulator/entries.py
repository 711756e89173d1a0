"""Entries: what every queue of a card executes of one program, as columns built block by block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..isa.control import HALT, SIGNAL, WAIT
from ..isa.errors import ProgramError
from ..isa.program import Block, Program
from .calendar.solver import Ints

OTHER, WAITS, SIGNALS, HALTS = range(4)  # what an instruction is to its semaphores
NONE = -1
MOST_SIGNALS = 1 << 62


class Entries(NamedTuple):
    """The instructions of all queues, queue by queue and there in order; each column is int64 [entries].

    `parts` [queues, 2] are the first and the last but one of every queue of the program. `own` is the semaphore of the
    entry's queue; `semaphore` and `counts` are those of a WAIT (absolute) or a SIGNAL (what it adds), NONE and 0
    elsewhere. `asked` [waits, 2] are (semaphore, count since submission), `wait_count` of them from `first_wait` on.
    Waits that an earlier entry of the queue has already seen satisfied are left out.
    """

    parts: Ints
    call: Ints
    position: Ints
    site: Ints
    own: Ints
    semaphore: Ints
    counts: Ints
    first_wait: Ints
    wait_count: Ints
    asked: Ints


class _Body(NamedTuple):
    """A block's instructions [n, 4]: queue, kind, semaphore, count; its waits [m, 4]: position, semaphore, count, kind.

    Waits of the kind WAITS are those of WAIT instructions. `signals` is what a call adds to every semaphore.
    """

    issues: Ints
    waits: Ints
    signals: Ints


def _body_of(block: Block, index: dict[str, int]) -> _Body:
    issues: list[tuple[int, int, int, int]] = []
    waits: list[tuple[int, int, int, int]] = []
    for position, issue in enumerate(block.body):
        instruction, kind, semaphore, count = issue.instruction, OTHER, NONE, 0
        waits += [(position, index[name], need, OTHER) for name, need in issue.waits]
        if isinstance(instruction, WAIT | SIGNAL):
            kind = WAITS if isinstance(instruction, WAIT) else SIGNALS
            semaphore, count = index[instruction.semaphore], instruction.count
        elif isinstance(instruction, HALT):
            kind = HALTS
        if kind == WAITS:
            waits.append((position, semaphore, count, WAITS))
        issues.append((index[issue.queue], kind, semaphore, count))
    signals = np.zeros(len(index), np.int64)
    for name, total in block.signals.items():
        signals[index[name]] = total
    return _Body(_table(issues), _table(waits), signals)


def _table(rows: Sequence[tuple[int, int, int, int]]) -> Ints:
    return np.array(rows, np.int64).reshape(-1, 4)


def entries_of(program: Program, semaphores: Sequence[str], rows: Sequence[Ints]) -> Entries:
    """The entries of a legal program; `rows[call]` are the sites of a call by position.

    `semaphores` begin with the program's queues. A queue ends with its first HALT.
    """
    index = {name: n for n, name in enumerate(semaphores)}
    called = dict.fromkeys(call.block for call in program.calls)
    bodies = {name: _body_of(program.block[name], index) for name in called}
    order = [bodies[call.block] for call in program.calls]
    bases = _bases(order, semaphores)
    lengths = np.array([len(body.issues) for body in order], np.int64)
    starts = np.cumsum(lengths) - lengths
    call = np.repeat(np.arange(len(order)), lengths)
    issues = _stacked([body.issues for body in order])
    queue, kind, semaphore, count = issues.T
    count = count + np.where(kind == WAITS, bases[call, semaphore] if len(call) else 0, 0)
    kept = _before_halts(queue, kind, len(program.queues))
    place = np.argsort(queue, kind="stable")  # entries queue by queue
    place = place[kept[place]]
    sizes = np.bincount(queue[kept], minlength=len(program.queues))
    stops = np.cumsum(sizes)
    row = np.full(len(call), NONE, np.int64)
    row[place] = np.arange(len(place))
    asked, wait_count = _asked(order, bases, starts, queue, row, stops - sizes, len(place))
    return Entries(
        np.stack((stops - sizes, stops), axis=1),
        call[place],
        (np.arange(len(call)) - starts[call])[place],
        np.concatenate(rows)[place] if rows else np.zeros(0, np.int64),
        queue[place],
        semaphore[place],
        count[place],
        np.cumsum(wait_count) - wait_count,
        wait_count,
        asked,
    )


def _stacked(tables: Sequence[Ints]) -> Ints:
    return np.concatenate([_table(()), *tables])


def _bases(order: Sequence[_Body], semaphores: Sequence[str]) -> Ints:
    """What the calls before each call have added to every semaphore: [calls, semaphores]."""
    signals = np.array([body.signals for body in order], np.int64).reshape(-1, len(semaphores))
    totals = signals.sum(axis=0, dtype=np.float64)
    if (totals >= MOST_SIGNALS).any():
        name = semaphores[int(totals.argmax())]
        raise ProgramError(
            f"semaphore {name!r} is signalled {totals.max():.3g} times in all; counts must stay below 2^62"
        )
    return np.cumsum(signals, axis=0) - signals


def _before_halts(queue: Ints, kind: Ints, queues: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which instructions do not stand behind a HALT of their queue."""
    last = np.full(queues, len(queue), np.int64)
    halts = np.flatnonzero(kind == HALTS)
    np.minimum.at(last, queue[halts], halts)
    kept: np.ndarray[tuple[int], np.dtype[np.bool_]] = np.arange(len(queue)) <= last[queue]
    return kept


def _asked(
    order: Sequence[_Body], bases: Ints, starts: Ints, queue: Ints, row: Ints, firsts: Ints, entries: int
) -> tuple[Ints, Ints]:
    """Every entry's waits that an earlier one of its queue has not seen satisfied, and how many each entry has.

    `row` is the entry of each instruction, or NONE; `firsts` the first entry of each queue.
    """
    waits = _stacked([body.waits for body in order])
    call = np.repeat(np.arange(len(order)), [len(body.waits) for body in order])
    at = starts[call] + waits[:, 0]
    here = row[at] != NONE
    waits, at, call = waits[here], at[here], call[here]
    semaphore, own = waits[:, 1], queue[at]
    need = waits[:, 2] + bases[call, semaphore]
    seen = _seen_before(own * bases.shape[1] + semaphore, need)
    ended = row[at] - firsts[own]  # in its own queue everything before it has ended
    seen = np.where(semaphore == own, np.maximum(seen, ended), seen)
    new = (need > seen) & (waits[:, 3] != WAITS)
    rows = row[at[new]]
    by_entry = np.argsort(rows, kind="stable")
    asked = np.stack((semaphore[new], need[new]), axis=1)[by_entry]
    return asked, np.bincount(rows, minlength=entries)


def _seen_before(key: Ints, need: Ints) -> Ints:
    """The largest need that stands before each with its key, 0 if there is none."""
    by_key = np.argsort(key, kind="stable")
    values, rank = np.unique(np.maximum(need, 0), return_inverse=True)
    packed = key[by_key] * (len(values) + 1) + rank.reshape(-1)[by_key]
    highest = np.maximum.accumulate(packed)[:-1]
    before = np.zeros(len(key), np.int64)
    same = key[by_key][1:] == key[by_key][:-1]
    before[1:][same] = values[(highest % (len(values) + 1))[same]] if len(values) else 0
    seen = np.zeros(len(key), np.int64)
    seen[by_key] = before
    return seen
