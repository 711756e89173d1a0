"""Comparing: the rows of every measured table beside what the emulated card takes for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ...emulator.spec import CardSpec
from ...isa.errors import ConfigError, UnsupportedError
from ..calibration.predict import predicted_ps
from ..calibration.tables import MeasuredTable, read_measured
from .cards import StandIn, stand_in
from .report import Comparison, FidelityReport
from .subsets import SUBSETS

Progress = Callable[[int, int | None, str], None]


@dataclass(frozen=True)
class Task:
    """The rows of one table that some subset wants, and the card that predicts them."""

    table: MeasuredTable
    stand_in: StandIn


@dataclass
class Notes:
    """What a reader must know, each line once."""

    lines: dict[str, None] = field(default_factory=dict)

    def add(self, line: str) -> None:
        """One more line, unless it is there already."""
        self.lines[line] = None


def compare(data: Path, asked: CardSpec | None = None, progress: Progress | None = None) -> FidelityReport:
    """Every subset of every device in a folder laid out as calibration reads it.

    `asked` is the card to compare, None for the shipped card of each device. ConfigError where nothing can be compared.
    """
    notes = Notes()
    tasks = list(_tasks(read_measured(data), asked, notes))
    found: list[Comparison] = []
    for done, task in enumerate(tasks):
        if progress is not None:
            progress(done, len(tasks), f"{task.stand_in.card.name} {task.table.op}")
        found += _comparisons(task, notes)
    if not found:
        raise ConfigError(f"{data}: no row can be compared; {'; '.join(notes.lines) or 'no table has such rows'}")
    order = [subset.name for subset in SUBSETS]
    found.sort(key=lambda each: (each.card, order.index(each.subset)))
    return FidelityReport(tuple(found), tuple(notes.lines))


def _tasks(tables: Sequence[MeasuredTable], asked: CardSpec | None, notes: Notes) -> Iterator[Task]:
    for table in tables:
        chosen = stand_in(table.card_name, asked)
        if chosen is None:
            notes.add(f"{table.device}: left out, as {_why_none(table, asked)}")
            continue
        kernels = chosen.card.kernels
        if table.library not in ("", kernels):
            notes.add(f"{table.device}: kernels of {table.library} left out, as the card emulates those of {kernels}")
            continue
        wanted = [subset.keeps(table.columns) for subset in SUBSETS if subset.op == table.op]
        if np.any(wanted):
            yield Task(table.take(np.logical_or.reduce(wanted)), chosen)


def _why_none(table: MeasuredTable, asked: CardSpec | None) -> str:
    if asked is None:
        return f"no shipped card is called {table.card_name}"
    return f"{asked.name} has no constants fitted by measurements that {table.card_name} could take over"


def _comparisons(task: Task, notes: Notes) -> Iterator[Comparison]:
    card, table = task.stand_in.card, task.table
    try:
        predicted = predicted_ps(table, card)
    except UnsupportedError as error:
        notes.add(f"{table.device}: {table.op} left out: {error}")
        return
    for subset in SUBSETS:
        if subset.op != table.op or not (inside := subset.keeps(table.columns)).any():
            continue
        rows = table.take(inside)
        yield Comparison(
            card=card.name,
            op=table.op,
            subset=subset.name,
            library=table.library,
            rests_on=task.stand_in.rests_on,
            columns=rows.columns,
            predicted_ps=predicted[inside],
            measured_ps=rows.latency_ps,
            weights=rows.weights,
            floor=rows.noise,
        )
