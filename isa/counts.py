"""Counts of rows: what Work is computed from where loads are uneven, of one card or of many in lanes.

In lanes a count is an array of one value a card, and so is all that is computed from it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .instruction import Instruction, require


def check_total(
    instruction: Instruction, extent: str, counts: Sequence[int], rows: int, held: str = "there are"
) -> None:
    """Raise ProgramError for a count below 0, or counts that pass `rows`; lanes have no counts below 0."""
    in_lanes = bool(counts) and isinstance(counts[0], np.ndarray)
    if not in_lanes and min(counts, default=0) < 0:
        require(False, instruction, f"{extent} is {list(counts)}: a count is 0 or more")
    total = np.max(sum(counts), initial=0) if in_lanes else sum(counts)
    if total > rows:
        require(False, instruction, f"{extent} counts {total} rows, and {held} {rows}")


def at_least(least: int, value: int) -> int:
    """The larger of two, lane by lane."""
    return np.maximum(least, value) if isinstance(value, np.ndarray) else max(least, value)
