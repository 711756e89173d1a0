"""Counts of rows: what Work is computed from where loads are uneven, of one card or of many in lanes.

In lanes a count is an array of one value a card, and so is all that is computed from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .instruction import Instruction, require


class LaneCounts(tuple[Any, ...]):
    """Counts in lanes: the rows of an int64 array [counts, lanes], which are 0 or more, and their sum."""

    total: Any

    def __new__(cls, rows: np.ndarray[Any, np.dtype[np.int64]]) -> LaneCounts:
        counts = super().__new__(cls, rows)
        counts.total = rows.sum(axis=0)
        return counts


def total_of(counts: Sequence[int]) -> int:
    """The sum of counts, lane by lane."""
    return counts.total if isinstance(counts, LaneCounts) else sum(counts)


def check_total(
    instruction: Instruction, extent: str, counts: Sequence[int], rows: int, held: str = "there are"
) -> None:
    """Raise ProgramError for a count below 0, or counts that pass `rows`."""
    if not isinstance(counts, LaneCounts) and min(counts, default=0) < 0:
        require(False, instruction, f"{extent} is {list(counts)}: a count is 0 or more")
    total = np.max(counts.total, initial=0) if isinstance(counts, LaneCounts) else sum(counts)
    if total > rows:
        require(False, instruction, f"{extent} counts {total} rows, and {held} {rows}")


def at_least(least: int, value: int) -> int:
    """The larger of two, lane by lane."""
    return np.maximum(least, value) if isinstance(value, np.ndarray) else max(least, value)
