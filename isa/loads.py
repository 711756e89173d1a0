"""Extents of many ranks: what all of them share, and tables with a row for each, read as tuples rank by rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .errors import ProgramError

Ints = np.ndarray[Any, np.dtype[Any]]
Values = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Table:
    """Values of an extent where ranks differ: those of rank r are `values[rows[r]]`.

    `values` is whole numbers [rows, n] of any width, as big tables need narrow ones, and `rows` int64 [ranks], so that
    ranks of one holder can share a row. A table is known by its identity: layers with equal loads name the very same
    one. ProgramError for rows that are not there.
    """

    values: Ints
    rows: Ints

    def __post_init__(self) -> None:
        whole = self.values.dtype.kind in "iu" and self.rows.dtype == np.int64
        if self.values.ndim != 2 or self.rows.ndim != 1 or not whole:
            raise ProgramError(
                f"a table needs whole values [rows, n] and int64 rows [ranks], not {self.values.dtype} "
                f"{self.values.shape} and {self.rows.dtype} {self.rows.shape}"
            )
        if self.rows.size and not (0 <= self.rows.min() and self.rows.max() < len(self.values)):
            raise ProgramError(f"a table of {len(self.values)} rows has no rows {self.rows.min()} to {self.rows.max()}")

    def of(self, rank: int) -> Values:
        """The values of a rank."""
        return tuple(self.values[self.rows[rank]].tolist())


class RankExtents(Mapping[str, Values]):
    """What one rank binds: `common`, which other ranks share by identity, and its values in `tables`, all ranks'.

    Equal ranks should share one object, as equal costs are found by identity first.
    """

    __slots__ = ("common", "tables", "rank")

    def __init__(self, common: Mapping[str, Values], tables: Mapping[str, Table], rank: int) -> None:
        self.common, self.tables, self.rank = common, tables, rank

    def __getitem__(self, name: str) -> Values:
        table = self.tables.get(name)
        return self.common[name] if table is None else table.of(self.rank)

    def __contains__(self, name: object) -> bool:
        return name in self.tables or name in self.common

    def __iter__(self) -> Iterator[str]:
        yield from self.tables
        yield from (name for name in self.common if name not in self.tables)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def rank_extents(
    commons: Sequence[Mapping[str, Values]], tables: Sequence[Mapping[str, Table]]
) -> list[Mapping[str, Values]]:
    """The extents of every rank, one object for ranks with the same `common` and `tables` (by identity), equal values.

    Without tables that is `common` itself.
    """
    classes = np.array([_number(commons), _number(tables)])
    classes = np.unique(classes, axis=1, return_inverse=True)[1].reshape(-1)
    distinct = {id(own): own for own in tables}.values()
    for table in {id(table): table for own in distinct for table in own.values()}.values():
        if classes.max(initial=-1) + 1 == len(classes):
            break  # no two ranks are equal
        rows = [row.tobytes() for row in table.values]
        first = {row: index for index, row in reversed(list(enumerate(rows)))}
        equal = np.array([first[row] for row in rows])[table.rows]
        classes = np.unique(classes * len(rows) + equal, return_inverse=True)[1]
    found: dict[int, Mapping[str, Values]] = {}
    for rank, class_ in enumerate(classes.tolist()):
        if class_ not in found:
            own = tables[rank]
            found[class_] = RankExtents(commons[rank], own, rank) if own else commons[rank]
    return [found[class_] for class_ in classes.tolist()]


def _number(items: Sequence[object]) -> list[int]:
    """Each item's number among the distinct ones, by identity."""
    numbers: dict[int, int] = {}
    return [numbers.setdefault(id(item), len(numbers)) for item in items]
