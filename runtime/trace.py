"""A run as a Chrome trace that Perfetto opens: a process a card, a row a queue, a counter of its HBM, and the steps."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

import numpy as np

from ..emulator.span import BOUNDS
from ..emulator.span_columns import CardColumns
from .power_curve import Curve
from .report import Report, StepReport
from .report_document import siltwin_version
from .terminal import ranges

Event = dict[str, Any]
MemoryHistory = Iterable[tuple[int, int, str]]

STEPS_PID = 1
FIRST_CARD_PID = 2  # Perfetto takes pid 0 and tid 0 for the idle task of a Linux kernel
ROWS_PER_PROCESS = 1000  # keeps thread ids apart over all processes, which Perfetto wants
PS_PER_US = 1_000_000
MOST_SETS = 4  # of cards that one stands for in different steps, in its name


@dataclass(frozen=True)
class TraceNames:
    """What stands beside the spans: the name of a card and of a stage by rank, and the steps."""

    cards: Mapping[int, str]
    steps: Sequence[StepReport]

    @classmethod
    def of(cls, report: Report) -> TraceNames:
        """The names that a report gives."""
        labels = {card.rank: f"{report.card.name}, stage {card.stage}" for card in report.cards}
        return cls(labels, report.steps)


def write_trace(
    file: TextIO,
    steps: Sequence[Sequence[CardColumns]],
    memory_histories: Mapping[int, MemoryHistory],
    names: TraceNames,
    curves: Mapping[int, Curve] | None = None,
) -> None:
    """Write the trace as one JSON object, an event a line, without holding it in memory.

    A span is a complete event in its queue's row, from the start of its activity; what it waited before stands in its
    arguments. `ts` and `dur` are microseconds, as the format wants; arguments in picoseconds are exact at any length.
    A card that stands for others says so in its name. `memory_histories` holds (ps, bytes gained or given back, tag) a
    rank, in time order, as Hbm.history() gives them; `curves` the watts and the clock of a rank.
    """
    other = json.dumps({"siltwin_version": siltwin_version()})
    file.write(f'{{"displayTimeUnit": "ns", "otherData": {other}, "traceEvents": [')
    separator = "\n"
    for line in _lines(steps, memory_histories, names, curves or {}):
        file.write(separator + line)
        separator = ",\n"
    file.write("\n]}\n")


def _lines(
    steps: Sequence[Sequence[CardColumns]],
    memory_histories: Mapping[int, MemoryHistory],
    names: TraceNames,
    curves: Mapping[int, Curve],
) -> Iterator[str]:
    yield from map(_text, _step_events(names.steps))
    standing = _standing(steps)
    for rank in sorted({*standing, *memory_histories}):
        yield from map(_text, _card_metadata(rank, names, standing.get(rank, {})))
    rows: dict[tuple[int, str], int] = {}
    for step in steps:
        for card in step:
            for queue in np.unique(card.queues).tolist():
                name = card.queue_names[queue]
                if (card.rank, name) not in rows:
                    used = sum(1 for rank, _ in rows if rank == card.rank)
                    tid = rows[card.rank, name] = _tid(_pid(card.rank), used)
                    yield from map(_text, _row_metadata(_pid(card.rank), tid, name, used))
            yield from _span_lines(card, [rows.get((card.rank, name), 0) for name in card.queue_names])
    for rank, history in sorted(memory_histories.items()):
        yield from map(_text, _memory_events(rank, list(history)))
    for rank, curve in sorted(curves.items()):
        yield from map(_text, _power_events(rank, curve))


def _text(event: Event) -> str:
    return json.dumps(event, separators=(",", ":"))


def _standing(steps: Sequence[Sequence[CardColumns]]) -> dict[int, dict[tuple[int, ...], list[int]]]:
    """For each card the sets of cards that it stands for, and in which steps it does."""
    found: dict[int, dict[tuple[int, ...], list[int]]] = {}
    for number, step in enumerate(steps):
        for card in step:
            found.setdefault(card.rank, {}).setdefault(card.ranks, []).append(number)
    return found


def _span_lines(card: CardColumns, tids: Sequence[int]) -> Iterator[str]:
    """The spans of a card as events; what a site's all have in common is written once."""
    pid, heads = _pid(card.rank), _Heads(card)
    columns = (card.sites, card.queues, card.calls, card.positions, card.issued_ps, card.start_ps, card.end_ps)
    for site, queue, call, position, issued, start, end, bound, late in zip(
        *(column.tolist() for column in (*columns, card.bounds, card.late)), strict=True
    ):
        name, said = heads[site]
        waited_for = f',"waited_for_card":{late}' if late >= 0 else ""
        held = BOUNDS[bound]
        yield (
            f'{{"ph":"X","name":{name},"cat":"{held}","pid":{pid},"tid":{tids[queue]},"ts":{_us(start)!r},'
            f'"dur":{_us(end - start)!r},"args":{{{said},"call":{call},"position":{position},"bound":"{held}",'
            f'"issue_ps":{issued},"waited_ps":{start - issued}{waited_for},"start_ps":{start},"end_ps":{end}}}}}'
        )


class _Heads(dict[int, tuple[str, str]]):
    """(mnemonic, block and instruction) of a card's sites as JSON, made when they are first asked for."""

    def __init__(self, card: CardColumns) -> None:
        self._sites = card.timeline.sites

    def __missing__(self, number: int) -> tuple[str, str]:
        site = self._sites[number]
        said = f'"block":{json.dumps(site.block.name)},"instruction":{json.dumps(str(site.instruction))}'
        found = self[number] = json.dumps(site.instruction.mnemonic), said
        return found


def _pid(rank: int) -> int:
    return FIRST_CARD_PID + rank


def _tid(pid: int, row: int) -> int:
    return pid * ROWS_PER_PROCESS + row


def _us(picoseconds: int) -> float:
    return picoseconds / PS_PER_US


def _metadata(what: str, pid: int, tid: int | None = None, **args: object) -> Event:
    event: Event = {"ph": "M", "name": what, "pid": pid, "args": args}
    return event if tid is None else {**event, "tid": tid}


def _card_metadata(rank: int, names: TraceNames, standing: Mapping[tuple[int, ...], Sequence[int]]) -> Iterator[Event]:
    label = f"card {rank}{_stands_for(standing)}" + (f": {names.cards[rank]}" if rank in names.cards else "")
    yield _metadata("process_name", _pid(rank), name=label)
    yield _metadata("process_sort_index", _pid(rank), sort_index=_pid(rank))


def _stands_for(standing: Mapping[tuple[int, ...], Sequence[int]]) -> str:
    """Which cards did the very same, and in which steps where that changes."""
    if all(len(ranks) == 1 for ranks in standing):
        return ""
    sets = [
        (f"in steps {ranges(at)} for " if len(standing) > 1 else "for ") + f"{len(ranks)} cards: {ranges(ranks)}"
        for ranks, at in standing.items()
        if len(ranks) > 1
    ]
    more = f"; and {len(sets) - MOST_SETS} more sets" if len(sets) > MOST_SETS else ""
    return f" (stands {'; '.join(sets[:MOST_SETS])}{more})"


def _row_metadata(pid: int, tid: int, name: str, order: int) -> Iterator[Event]:
    yield _metadata("thread_name", pid, tid, name=name)
    yield _metadata("thread_sort_index", pid, tid, sort_index=order)


def _complete(name: str, category: str, pid: int, tid: int, times_ps: tuple[int, int], args: Event) -> Event:
    start_ps, end_ps = times_ps
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "pid": pid,
        "tid": tid,
        "ts": _us(start_ps),
        "dur": _us(end_ps - start_ps),
        "args": {**args, "start_ps": start_ps, "end_ps": end_ps},
    }


def _step_events(steps: Sequence[StepReport]) -> Iterator[Event]:
    yield _metadata("process_name", STEPS_PID, name="steps")
    yield _metadata("process_sort_index", STEPS_PID, sort_index=STEPS_PID)
    yield from _row_metadata(STEPS_PID, _tid(STEPS_PID, 0), "steps", 0)
    ends = [0]  # of the last step in each row: steps in flight together stand in rows of their own
    for step in steps:
        row = next((row for row, end in enumerate(ends) if end <= step.start_ps), len(ends))
        if row == len(ends):
            ends.append(0)
            yield from _row_metadata(STEPS_PID, _tid(STEPS_PID, row), f"steps {row}", row)
        ends[row] = step.end_ps
        args = {"tokens": step.tokens, "sequences": step.sequences, "bound": step.bound}
        name, times_ps = f"{step.kind} {step.index}", (step.start_ps, step.end_ps)
        yield _complete(name, step.kind, STEPS_PID, _tid(STEPS_PID, row), times_ps, args)


def _memory_events(rank: int, history: list[tuple[int, int, str]]) -> Iterator[Event]:
    """One counter event an instant, and before it the instant's highest state where that is higher."""
    live = {tag: 0 for _, _, tag in history}
    total = highest = 0
    peak: dict[str, int] = {}
    for index, (now_ps, delta, tag) in enumerate(history):
        live[tag] += delta
        total += delta
        if total > highest:
            highest, peak = total, dict(live)
        if index + 1 == len(history) or history[index + 1][0] != now_ps:
            if peak and highest > total:
                yield _counter(rank, "HBM bytes", now_ps, peak)
            yield _counter(rank, "HBM bytes", now_ps, live)
            highest, peak = total, {}


def _power_events(rank: int, curve: Curve) -> Iterator[Event]:
    """Watts and megahertz of every bin, from its start; a bin in which nothing ran has no clock."""
    for number, (watts, clock_hz) in enumerate(zip(curve.watts, curve.clock_hz, strict=True)):
        start_ps = number * curve.bin_ps
        yield _counter(rank, "watts", start_ps, {"watts": watts})
        if clock_hz is not None:
            yield _counter(rank, "clock MHz", start_ps, {"MHz": clock_hz // 10**6})


def _counter(rank: int, name: str, now_ps: int, values: Mapping[str, float]) -> Event:
    return {"ph": "C", "name": name, "pid": _pid(rank), "ts": _us(now_ps), "args": dict(values)}
