"""Comparing: the rows of every measured table beside what the emulated card takes for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...emulator.spec import CardSpec
from ...isa.errors import ConfigError, UnsupportedError
from ...isa.instruction import Array
from ..calibration.predict import predicted_ps
from ..calibration.tables import MeasuredTable, read_measured
from .cards import StandIn, stand_in
from .report import Comparison, FidelityReport
from .seen import NOTHING
from .subsets import SUBSETS
from .tpot import compare_servers, read_servers

Progress = Callable[[int, int | None, str], None]


@dataclass(frozen=True)
class Task:
    """The rows of one table that some subset wants, and the card that predicts them."""

    table: MeasuredTable
    stand_in: StandIn


def compare(
    data: Path, asked: CardSpec | None = None, seen: Array = NOTHING, progress: Progress | None = None
) -> FidelityReport:
    """Every subset of every device in a folder laid out as calibration reads it.

    `asked` is the card to compare, None for the shipped card of each device. Rows whose hash is among `seen` are left
    out. ConfigError where nothing can be compared, or nothing of a table as all of it was seen.
    """
    if progress is not None:
        progress(0, None, "whole models")
    notes: list[str] = []
    servers = list(compare_servers(read_servers(data, notes), asked, notes))
    kernels = compare_tables(read_measured(data), asked, seen, progress)
    return FidelityReport(in_order([*kernels.comparisons, *servers]), (*kernels.notes, *notes))


def compare_tables(
    tables: Sequence[MeasuredTable],
    asked: CardSpec | None = None,
    seen: Array = NOTHING,
    progress: Progress | None = None,
) -> FidelityReport:
    """As `compare`, of tables."""
    notes: list[str] = []
    tasks = _unseen(list(_tasks(tables, asked, notes)), seen, notes)
    found: list[Comparison] = []
    for done, task in enumerate(tasks):
        if progress is not None:
            progress(done, len(tasks), f"{task.stand_in.card.name} {task.table.op}")
        found += _comparisons(task, notes)
    if not found:
        raise ConfigError(
            f"no row can be compared; {'; '.join(dict.fromkeys(notes)) or 'no table has rows of any subset'}"
        )
    return FidelityReport(in_order(found), tuple(dict.fromkeys(notes)))


def in_order(comparisons: Sequence[Comparison]) -> tuple[Comparison, ...]:
    """By card and subset."""
    order = [subset.name for subset in SUBSETS]
    return tuple(sorted(comparisons, key=lambda each: (each.card, order.index(each.subset))))


def _tasks(tables: Sequence[MeasuredTable], asked: CardSpec | None, notes: list[str]) -> Iterator[Task]:
    for table in tables:
        chosen = stand_in(table.card_name, asked)
        if chosen is None:
            notes.append(f"{table.device}: left out, as {_why_none(table, asked)}")
            continue
        kernels = chosen.card.kernels
        if table.library not in ("", kernels):
            notes.append(
                f"{table.device}: kernels of {table.library} left out, as the card emulates those of {kernels}"
            )
            continue
        wanted = [subset.keeps(table.columns) for subset in SUBSETS if subset.op == table.op]
        if np.any(wanted):
            yield Task(table.take(np.logical_or.reduce(wanted)), chosen)


def _why_none(table: MeasuredTable, asked: CardSpec | None) -> str:
    if asked is None:
        return f"no shipped card is called {table.card_name}"
    return f"{asked.name} has no constants fitted by measurements that {table.card_name} could take over"


def _unseen(tasks: Sequence[Task], hashes: Array, notes: list[str]) -> list[Task]:
    """The tasks without the rows of these hashes, which a fit saw; ConfigError where a table has no others."""
    kept, refused = [], []
    for task in tasks:
        seen = np.isin(task.table.row_hashes, hashes)
        name = f"{task.table.device}/{task.table.path.name}"
        if seen.all():
            refused.append(f"{name} ({len(seen):,} rows of {task.table.op})")
        elif seen.any():
            notes.append(f"{name}: {seen.sum():,} of {len(seen):,} rows left out: the card was fitted on them")
        kept.append(Task(task.table.take(~seen), task.stand_in))
    if refused:
        raise ConfigError(
            f"the card was calibrated on every row of {', '.join(refused)}, so that errors there would mean nothing; "
            "give --data with rows it has not seen, or --training-rows to compare all the same"
        )
    return kept


def _comparisons(task: Task, notes: list[str]) -> Iterator[Comparison]:
    card, table = task.stand_in.card, task.table
    try:
        predicted = predicted_ps(table, card)
    except UnsupportedError as error:
        notes.append(f"{table.device}: {table.op} left out: {error}")
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
