"""Comparing: the rows of every measured table beside what the emulated card takes for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...emulator.spec import CardSpec
from ...isa.errors import ConfigError, UnsupportedError
from ...isa.instruction import Array
from ..calibration.predict import predicted_ps
from ..calibration.schema import KINDS
from ..calibration.tables import MeasuredTable, card_name_of, measured_files, read_measured
from .cards import StandIn, stand_in
from .report import Comparison, FidelityReport
from .seen import NOTHING
from .subsets import SUBSETS
from .tpot import compare_servers, read_servers

OPS = {kind.op for kind in KINDS if kind.op_column or kind.op in {subset.op for subset in SUBSETS}}  # of files
Progress = Callable[[int, int | None, str], None]


def silent(done: int, total: int | None, text: str) -> None:
    """No progress is shown."""


@dataclass(frozen=True)
class Task:
    """The rows of one table that some subset wants, and the card that predicts them."""

    table: MeasuredTable
    stand_in: StandIn


def compare(
    data: Path, asked: CardSpec | None = None, seen: Array = NOTHING, progress: Progress = silent
) -> FidelityReport:
    """Every subset of every device in a folder laid out as calibration reads it.

    `asked` is the card to compare, None for the shipped card of each device. Rows whose hash is among `seen` are left
    out. ConfigError where nothing can be compared, or nothing of a table as all of it was seen.
    """
    notes: list[str] = []
    rows = read_servers(data, notes)

    def wants(device: str, op: str, library: str) -> bool:
        return op in OPS and _chosen(device, library, asked, notes) is not None

    tables = [] if rows and not measured_files(data) else read_measured(data, wants)
    return _report(tables, compare_servers(rows, asked, notes), asked, seen, notes, progress)


def compare_tables(
    tables: Sequence[MeasuredTable], asked: CardSpec | None = None, seen: Array = NOTHING
) -> FidelityReport:
    """As `compare`, of tables."""
    return _report(tables, (), asked, seen, [], silent)


def _report(
    tables: Sequence[MeasuredTable],
    servers: Iterable[Comparison],
    asked: CardSpec | None,
    seen: Array,
    notes: list[str],
    progress: Progress,
) -> FidelityReport:
    tasks = _unseen(list(_tasks(tables, asked, notes)), seen, notes)
    found: list[Comparison] = []
    for done, task in enumerate(tasks):
        progress(done, len(tasks), f"{task.stand_in.card.name} {task.table.op}")
        found += _comparisons(task, notes)
    progress(len(tasks), None, "whole models")
    found += servers
    told = tuple(dict.fromkeys(notes))
    if not found:
        raise ConfigError(f"no row can be compared; {'; '.join(told) or 'no table has rows of any subset'}")
    return FidelityReport(in_order(found), told)


def in_order(comparisons: Sequence[Comparison]) -> tuple[Comparison, ...]:
    """By card and subset."""
    order = [subset.name for subset in SUBSETS]
    return tuple(sorted(comparisons, key=lambda each: (each.card, order.index(each.subset))))


def _tasks(tables: Sequence[MeasuredTable], asked: CardSpec | None, notes: list[str]) -> Iterator[Task]:
    for table in tables:
        chosen = _chosen(table.device, table.library, asked, notes)
        wanted = [subset.keeps(table.columns) for subset in SUBSETS if subset.op == table.op]
        if chosen is not None and np.any(wanted):
            notes += [f"{table.device}/{told}" for told in table.told]
            yield Task(table.take(np.logical_or.reduce(wanted)), chosen)


def _chosen(device: str, library: str, asked: CardSpec | None, notes: list[str]) -> StandIn | None:
    """The card that is compared with a device's tables of a library; None, and a note, where they are left out."""
    name = card_name_of(device)
    chosen = stand_in(name, asked)
    if chosen is None:
        notes.append(f"{device}: left out, as {_why_none(name, asked)}")
    elif library not in ("", chosen.card.kernels):
        kernels = chosen.card.kernels
        notes.append(f"{device}: kernels of {library} left out, as the card emulates those of {kernels}")
        return None
    return chosen


def _why_none(name: str, asked: CardSpec | None) -> str:
    if asked is None:
        return f"no shipped card is called {name}"
    return f"{asked.name} has no constants fitted by measurements that {name} could take over"


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
