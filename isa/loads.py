"""Extents of many ranks: what all of them share, and tables with a row for each, read as tuples rank by rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .errors import ProgramError

Ints = np.ndarray[Any, np.dtype[np.int64]]
Values = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Table:
    """Values of an extent where ranks differ: those of rank r are `values[rows[r]]`.

    `values` is int64 [rows, n] and `rows` int64 [ranks], so that ranks of one holder can share a row. A table is known
    by its identity: layers with equal loads name the very same one. ProgramError for rows that are not there.
    """

    values: Ints
    rows: Ints

    def __post_init__(self) -> None:
        if self.values.ndim != 2 or self.values.dtype != np.int64 or self.rows.ndim != 1 or self.rows.dtype != np.int64:
            raise ProgramError(
                f"a table needs int64 values [rows, n] and rows [ranks], not {self.values.dtype} {self.values.shape} "
                f"and {self.rows.dtype} {self.rows.shape}"
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


def rank_extents(commons: Sequence[Mapping[str, Values]], tables: Mapping[str, Table]) -> list[Mapping[str, Values]]:
    """The extents of every rank, one object for ranks with the same `common` (by identity) and equal values.

    Without tables that is `common` itself.
    """
    if not tables:
        return list(commons)
    distinct = [
        np.unique(table.values, axis=0, return_inverse=True)[1].reshape(-1)[table.rows] for table in _each(tables)
    ]
    found: dict[tuple[int, bytes], Mapping[str, Values]] = {}
    keys = np.stack(distinct, axis=1)
    extents = []
    for rank, common in enumerate(commons):
        key = (id(common), keys[rank].tobytes())
        if key not in found:
            found[key] = RankExtents(common, tables, rank)
        extents.append(found[key])
    return extents


def _each(tables: Mapping[str, Table]) -> list[Table]:
    """Tables, each once."""
    return list({id(table): table for table in tables.values()}.values())
