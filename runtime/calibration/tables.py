"""Reading measured tables: folders of CSV files, every row checked, repeats weighted, identical rows dropped."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ...emulator.calendar.solver import Ints
from ...emulator.card_family import card_names
from ...emulator.spec import load_card
from ...isa.errors import ConfigError
from .faults import refuse
from .plausible import check_plausible
from .schema import COLLECTIVES, KINDS, Column, TableKind, canonical, table_kind
from .shapes import check_shapes

Array = np.ndarray[Any, np.dtype[Any]]
Floats = np.ndarray[Any, np.dtype[np.float64]]
MOST_APART = 2.0  # two measurements of one key further apart than this are no repeats
LONGEST_MS = 1e7  # hours: no kernel takes as long


Wants = Callable[[str, str, str], bool]  # (device, operation as of a `TableKind`, library) of a file


def everything(device: str, op: str, library: str) -> bool:
    """Any file."""
    return True


@dataclass(frozen=True, eq=False)
class MeasuredTable:
    """The rows of one file that measure one operation on one device.

    `columns` hold int64 or text [rows] by the names of `schema`, defaults filled in; `latency_ps` float64 [rows];
    `weights` 1/n for each of n measurements of one key; `row_hashes` uint64 of a row's content, the same wherever the
    row stands; `lines` the line in the file. `notes` say what was dropped or assumed.
    """

    device: str
    card_name: str
    op: str
    library: str
    columns: dict[str, Array]
    latency_ps: Floats
    weights: Floats
    row_hashes: np.ndarray[Any, np.dtype[np.uint64]]
    lines: Ints
    path: Path
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.latency_ps)

    def take(self, rows: Array) -> MeasuredTable:
        """The rows at these places, or where a mask is true."""
        return replace(
            self,
            columns={name: values[rows] for name, values in self.columns.items()},
            latency_ps=self.latency_ps[rows],
            weights=self.weights[rows],
            row_hashes=self.row_hashes[rows],
            lines=self.lines[rows],
        )

    @property
    def told(self) -> list[str]:
        """The notes with the file that they are of."""
        return [f"{self.path.name}: {note}" for note in self.notes]

    @property
    def noise(self) -> float | None:
        """The mean relative distance of a repeated measurement from the mean of its key; None without repeats."""
        repeated = self.weights < 1
        if not repeated.any():
            return None
        _, groups = np.unique(_keys(self.columns), axis=0, return_inverse=True)
        total = np.bincount(groups, self.latency_ps)
        mean = total[groups] / np.bincount(groups)[groups]
        return float(np.mean(np.abs(self.latency_ps / mean - 1)[repeated]))


def read_measured(path: Path, wants: Wants = everything) -> list[MeasuredTable]:
    """Every table of a device's folder, or of a folder of such (`a100_sxm/gemm.csv`, `h100_sxm/nccl.csv.gz`, ...).

    Files that `wants` refuses are not opened. ConfigError where there is none at all, and for any row that is no
    measurement, or none that the shipped card could have made which its folder is named after, with file, line and
    reason.
    """
    files = measured_files(path)
    if not files:
        stems = ", ".join(kind.stem.replace("(?P<library>[a-z0-9]+)", "LIBRARY") for kind in KINDS)
        raise ConfigError(f"{path}: no measured tables here or one folder deeper; known files: {stems} (.csv, .csv.gz)")
    found = [table for file in files if _is_wanted(file, wants) for table in read_table(file)]
    for table in found:
        if table.card_name in names_of_cards():
            check_plausible(table, load_card(table.card_name))
    return found


def measured_files(path: Path) -> list[Path]:
    """The files of known tables in a folder and those in it; ConfigError where there is no such folder."""
    if not path.is_dir():
        raise ConfigError(f"{path}: no such folder; measured tables lie in folders, one a device")
    folders = [path, *sorted(child for child in path.iterdir() if child.is_dir())]
    files = [file for folder in folders for file in _table_files(folder)]
    known: dict[tuple[str, str], Path] = {}
    for file in files:
        twin = known.setdefault((_device_name(file), _stem(file)), file)
        if twin is not file:
            raise ConfigError(
                f"{file}: {twin} holds {_stem(file)} of the same card; give one of them, or join their rows"
            )
    return files


def _device_name(file: Path) -> str:
    """The one name of the card that a file's rows were measured on."""
    name = card_name_of(device_of(file))
    return load_card(name).name if name in names_of_cards() else name


def _is_wanted(file: Path, wants: Wants) -> bool:
    known = table_kind(_stem(file))
    return known is not None and wants(device_of(file), known[0].op, known[1])


@lru_cache(maxsize=1)
def names_of_cards() -> frozenset[str]:
    """All names by which a shipped card may be called."""
    return frozenset(name for card in map(load_card, card_names()) for name in (card.name, *card.aliases))


def device_of(file: Path) -> str:
    """The device that a file's rows were measured on: its folder's name."""
    return file.parent.resolve().name


def card_name_of(device: str) -> str:
    """The name of the card that a device's folder is about: `h100_sxm` is h100-sxm."""
    return device.lower().replace("_", "-")


def read_table(path: Path) -> list[MeasuredTable]:
    """The tables of one file: one, or one for each collective in it."""
    kind, library = table_kind(_stem(path)) or (None, "")
    if kind is None:
        raise ConfigError(f"{path}: not the name of a table; see docs/calibration.md")
    header, lines, rows = cells(path)
    notes: list[str] = []
    columns = {column.name: _column(path, column, header, lines, rows, notes) for column in kind.columns}
    check_shapes(path, columns, lines)
    times = _times(path, kind, header, lines, rows) * kind.unit_ps
    rungs: list[tuple[str, Array]] = [(kind.op, np.ones(len(rows), bool))]
    if kind.op_column is not None:
        spelled = columns.pop(kind.op_column)
        rungs = [
            (op, np.isin(spelled, [text for text, meant in COLLECTIVES.items() if meant == op]))
            for op in dict.fromkeys(COLLECTIVES.values())
        ]
    where = np.array(lines, np.int64)
    return [
        _table(path, op, library, {k: v[mask] for k, v in columns.items()}, times[mask], where[mask], tuple(notes))
        for op, mask in rungs
        if mask.any()
    ]


def _table_files(folder: Path) -> list[Path]:
    files = sorted(file for file in folder.iterdir() if file.name.endswith((".csv", ".csv.gz")))
    return [file for file in files if table_kind(_stem(file)) is not None]


def _stem(path: Path) -> str:
    return path.name.removesuffix(".gz").removesuffix(".csv")


def cells(path: Path) -> tuple[dict[str, int], list[int], list[list[str]]]:
    """(place of each column by name, line of each row, cells of each row); empty lines aside."""
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if path.name.endswith(".gz") else raw).decode("utf-8-sig")
        reader = csv.reader(io.StringIO(text))
        header = {name.strip(): place for place, name in enumerate(next(reader, []))}
        found = [(reader.line_num, row) for row in reader if row]
    except (OSError, EOFError, UnicodeDecodeError, zlib.error, csv.Error) as error:
        raise ConfigError(f"{path}: cannot be read as CSV: {error}") from None
    lines, rows = [line for line, _ in found], [row for _, row in found]
    if not rows:
        raise ConfigError(f"{path}: has no rows under its header")
    width = len(header)
    refuse(path, ((line, f"has {len(row)} cells, the header {width}") for line, row in zip(lines, rows, strict=True)
                  if len(row) != width))  # fmt: skip
    return header, lines, rows


def _column(
    path: Path, column: Column, header: dict[str, int], lines: list[int], rows: list[list[str]], notes: list[str]
) -> Array:
    """The values of a column; its default, and a note, where the file has none."""
    if column.name not in header:
        if column.default is None:
            raise ConfigError(
                f"{path}: the column {column.name} ({column.about}) is missing; there are: {', '.join(header)}"
            )
        if column.default != "":
            notes.append(f"{column.name} is not told: {column.default} is taken")
        return np.full(len(rows), column.default)
    place = header[column.name]
    cells = [row[place] for row in rows]
    if column.kind == "text":
        spelled = {cell: canonical(column, cell) for cell in set(cells)}
        legal = ", ".join(column.choices)
        refuse(path, ((line, f"{column.name}={cell!r}; known: {legal}") for line, cell in zip(lines, cells, strict=True)
                      if legal and spelled[cell] not in column.choices))  # fmt: skip
        return np.array([spelled[cell] for cell in cells])
    numbers = np.array([_number(cell) for cell in cells])
    bad = ~(np.isfinite(numbers) & (numbers == np.round(numbers)) & (numbers >= column.least) & (numbers < 2**53))
    refuse(path, ((lines[row], f"{column.name}={cells[row]!r} is not a whole number of at least {column.least}")
                  for row in np.flatnonzero(bad)))  # fmt: skip
    return numbers.astype(np.int64)


def _number(cell: str) -> float:
    try:
        return float("nan") if "_" in cell else float(cell)
    except ValueError:
        return float("nan")


def _times(path: Path, kind: TableKind, header: dict[str, int], lines: list[int], rows: list[list[str]]) -> Floats:
    """The measured times [rows] in the unit of their column."""
    if kind.time not in header:
        near = [name for name in header if any(word in name.lower() for word in ("time", "latency", "dur"))]
        hint = f"; {', '.join(near)} would have to be converted and renamed" if near else ""
        raise ConfigError(f"{path}: the column {kind.time} is missing{hint}; there are: {', '.join(header)}")
    cells = [row[header[kind.time]] for row in rows]
    times = np.array([_number(cell) for cell in cells])
    bad = ~((times > 0) & (times < LONGEST_MS))
    refuse(path, ((lines[row], f"{kind.time}={cells[row]!r} is not a time above 0 and below {LONGEST_MS:g}")
                  for row in np.flatnonzero(bad)))  # fmt: skip
    return times


def _table(
    path: Path, op: str, library: str, columns: dict[str, Array], times_ps: Floats, lines: Ints, notes: tuple[str, ...]
) -> MeasuredTable:
    """A table without identical rows, repeats weighted; ConfigError for repeats that cannot be ones."""
    device = device_of(path)
    hashes = _hashes(op, library, columns, times_ps)
    _, first = np.unique(hashes, return_index=True)
    kept = np.sort(first)
    if len(kept) < len(hashes):
        dropped = sorted(set(range(len(hashes))) - set(kept.tolist()))
        notes += (f"{len(dropped)} identical rows dropped (the first: line {lines[dropped[0]]})",)
    columns = {name: values[kept] for name, values in columns.items()}
    times_ps, lines = times_ps[kept], lines[kept]
    _, groups, counts = np.unique(_keys(columns), axis=0, return_inverse=True, return_counts=True)
    _refuse_far_repeats(path, groups, counts, times_ps, lines)
    weights = 1 / counts[groups]
    return MeasuredTable(
        device, card_name_of(device), op, library, columns, times_ps, weights, hashes[kept], lines, path, notes
    )


def _keys(columns: dict[str, Array]) -> Ints:
    """The key of each row as numbers: int64 [rows, columns]."""
    coded = [
        values if values.dtype.kind == "i" else np.unique(values, return_inverse=True)[1] for values in columns.values()
    ]
    keys: Ints = np.stack(coded, axis=1).astype(np.int64)
    return keys


def _refuse_far_repeats(path: Path, groups: Ints, counts: Ints, times_ps: Floats, lines: Ints) -> None:
    low, high = np.full(len(counts), np.inf), np.zeros(len(counts))
    np.minimum.at(low, groups, times_ps)
    np.maximum.at(high, groups, times_ps)
    far = np.flatnonzero(high > MOST_APART * low)
    faults = []
    for group in far:
        own = np.flatnonzero(groups == group)
        slow, fast = own[times_ps[own].argmax()], own[times_ps[own].argmin()]
        times = f"took {high[group] / low[group]:.3g} times as long; repeats may differ by {MOST_APART:g}"
        faults.append((int(lines[slow]), f"the same key as line {lines[fast]} {times}"))
    refuse(path, faults)


def _hashes(op: str, library: str, columns: dict[str, Array], times_ps: Floats) -> Any:
    """uint64 [rows]: what a row measures and how long it took, whatever the file, its columns' order and spelling."""
    names = sorted(columns)
    cells = [columns[name].tolist() for name in names]
    digests = bytearray()
    for time_ps, *values in zip(np.round(times_ps).astype(np.int64).tolist(), *cells, strict=True):
        told = "|".join(f"{name}={value}" for name, value in zip(names, values, strict=True))
        digests += hashlib.blake2b(f"{op}|{library}|{told}|{time_ps}".encode(), digest_size=8).digest()
    return np.frombuffer(bytes(digests), np.uint64)
