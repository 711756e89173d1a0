"""Few points that tell much: rows that stand for clusters of rows, and sizes to measure next."""

from __future__ import annotations

import warnings

import numpy as np
from scipy.cluster.vq import kmeans2

from .schema import KINDS
from .tables import Array, Floats, MeasuredTable


def representative(table: MeasuredTable, count: int, seed: int) -> Array:
    """Places of `count` rows that stand for as many clusters of all rows, by the logarithms of their sizes."""
    sizes = _log_sizes(table)
    if len(table) <= count:
        return np.arange(len(table))
    with warnings.catch_warnings(action="ignore"):  # an empty cluster's centre stands for its nearest row
        centres, _ = kmeans2(sizes, count, minit="++", rng=np.random.default_rng(seed))
    chosen: dict[int, None] = {}
    for centre in centres:
        for row in np.argsort(((sizes - centre) ** 2).sum(axis=1), kind="stable").tolist():
            if row not in chosen:
                chosen[row] = None
                break
    return np.array(sorted(chosen))


def _log_sizes(table: MeasuredTable) -> Floats:
    """Sizes of each row, each scaled to one standard deviation: float64 [rows, sizes]."""
    counts = {column.name for kind in KINDS for column in kind.columns if column.kind == "count"}
    logs = [np.log2(1.0 + values) for name, values in table.columns.items() if name in counts]
    varied = [values for values in logs if values.std() > 0] or logs[:1]
    scaled: Floats = np.stack([values / (values.std() or 1.0) for values in varied], axis=1)
    return scaled
