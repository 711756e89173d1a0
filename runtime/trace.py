"""A run as a Chrome trace that Perfetto opens: a process a card, a row a queue, a counter of its HBM, and the steps."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TextIO

from .report import Report, StepReport, siltwin_version

Event = dict[str, Any]
MemoryHistory = Iterable[tuple[int, int, str]]

STEPS_PID = 1
FIRST_CARD_PID = 2  # Perfetto takes pid 0 and tid 0 for the idle task of a Linux kernel
ROWS_PER_PROCESS = 1000  # keeps thread ids apart over all processes, which Perfetto wants
PS_PER_US = 1_000_000


class TracedSpan(Protocol):
    """What the trace reads of a span; times in picoseconds, `late` the rank that a group waited for, or -1."""

    @property
    def card(self) -> int: ...
    @property
    def queue(self) -> str: ...
    @property
    def call(self) -> int: ...
    @property
    def position(self) -> int: ...
    @property
    def mnemonic(self) -> str: ...
    @property
    def issue_ps(self) -> int: ...
    @property
    def start_ps(self) -> int: ...
    @property
    def end_ps(self) -> int: ...
    @property
    def bound(self) -> str: ...
    @property
    def late(self) -> int: ...


NamedSpan = tuple[TracedSpan, str, str]  # a span, the block it belongs to, and its instruction as text


@dataclass(frozen=True)
class TraceNames:
    """What stands beside the spans: a label a rank, and the steps."""

    cards: Mapping[int, str]
    steps: Sequence[StepReport]

    @classmethod
    def of(cls, report: Report) -> TraceNames:
        """The names that a report gives."""
        labels = {card.rank: f"card {card.rank}: {report.card.name}, stage {card.stage}" for card in report.cards}
        return cls(labels, report.steps)


def chrome_trace(
    spans: Iterable[NamedSpan], memory_histories: Mapping[int, MemoryHistory], names: TraceNames
) -> dict[str, Any]:
    """The trace as one JSON object; see `trace_events` for what is in it."""
    return {
        "displayTimeUnit": "ns",
        "otherData": {"siltwin_version": siltwin_version()},
        "traceEvents": list(trace_events(spans, memory_histories, names)),
    }


def write_trace(
    file: TextIO, spans: Iterable[NamedSpan], memory_histories: Mapping[int, MemoryHistory], names: TraceNames
) -> None:
    """Write the same JSON object an event a line, without holding it in memory."""
    other = json.dumps({"siltwin_version": siltwin_version()})
    file.write(f'{{"displayTimeUnit": "ns", "otherData": {other}, "traceEvents": [')
    separator = "\n"
    for event in trace_events(spans, memory_histories, names):
        file.write(separator + json.dumps(event, separators=(",", ":")))
        separator = ",\n"
    file.write("\n]}\n")


def trace_events(
    spans: Iterable[NamedSpan], memory_histories: Mapping[int, MemoryHistory], names: TraceNames
) -> Iterator[Event]:
    """The events of a trace, one after the other.

    A span is a complete event in its queue's row, from the start of its activity; what it waited before stands in its
    arguments. `ts` and `dur` are microseconds, as the format wants; arguments in picoseconds are exact at any length.
    `memory_histories` holds (ps, bytes gained or given back, tag) a rank, in time order, as Hbm.history() gives them.
    """
    yield from _step_events(names.steps)
    rows: dict[tuple[int, str], int] = {}
    named: set[int] = set()
    for span, block, instruction in spans:
        if span.card not in named:
            named.add(span.card)
            yield from _card_metadata(span.card, names)
        row = rows.get((span.card, span.queue))
        if row is None:
            used = sum(1 for card, _ in rows if card == span.card)
            row = rows[span.card, span.queue] = _tid(_pid(span.card), used)
            yield from _row_metadata(_pid(span.card), row, span.queue, used)
        yield _span_event(span, row, block, instruction)
    for rank, history in sorted(memory_histories.items()):
        if rank not in named:
            yield from _card_metadata(rank, names)
        yield from _memory_events(rank, list(history))


def _pid(rank: int) -> int:
    return FIRST_CARD_PID + rank


def _tid(pid: int, row: int) -> int:
    return pid * ROWS_PER_PROCESS + row


def _us(picoseconds: int) -> float:
    return picoseconds / PS_PER_US


def _metadata(what: str, pid: int, tid: int | None = None, **args: object) -> Event:
    event: Event = {"ph": "M", "name": what, "pid": pid, "args": args}
    return event if tid is None else {**event, "tid": tid}


def _card_metadata(rank: int, names: TraceNames) -> Iterator[Event]:
    yield _metadata("process_name", _pid(rank), name=names.cards.get(rank, f"card {rank}"))
    yield _metadata("process_sort_index", _pid(rank), sort_index=_pid(rank))


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


def _span_event(span: TracedSpan, tid: int, block: str, instruction: str) -> Event:
    args: Event = {
        "block": block,
        "instruction": instruction,
        "call": span.call,
        "position": span.position,
        "bound": span.bound,
        "issue_ps": span.issue_ps,
        "waited_ps": span.start_ps - span.issue_ps,
    }
    if span.late >= 0:
        args["waited_for_card"] = span.late
    return _complete(span.mnemonic, span.bound, _pid(span.card), tid, (span.start_ps, span.end_ps), args)


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
                yield _counter(rank, now_ps, peak)
            yield _counter(rank, now_ps, live)
            highest, peak = total, {}


def _counter(rank: int, now_ps: int, live: Mapping[str, int]) -> Event:
    return {"ph": "C", "name": "HBM bytes", "pid": _pid(rank), "ts": _us(now_ps), "args": dict(live)}
