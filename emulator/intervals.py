"""Intervals of time in arrays: what several of them cover together, and what each adds to those before it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .calendar.solver import Ints


def gained_ps(starts: Ints, ends: Ints, since_ps: int) -> Ints:
    """Picoseconds of each interval from `since_ps` on that none before it covers; they are sorted by their starts."""
    reached = np.maximum.accumulate(np.concatenate(([since_ps], ends[:-1])))
    return np.maximum(0, ends - np.maximum(starts, reached))


def covered_ps(intervals: Ints | Sequence[tuple[int, int]]) -> int:
    """Picoseconds that at least one (start, end) covers."""
    pairs = np.asarray(intervals, np.int64).reshape(-1, 2)
    if not len(pairs):
        return 0
    starts, ends = pairs[np.argsort(pairs[:, 0], kind="stable")].T
    return int(gained_ps(starts, ends, int(starts[0])).sum())
