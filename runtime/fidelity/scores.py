"""Errors of predicted times against measured ones, as fractions of what was measured."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...isa.instruction import Array

CLOSE = 0.05


@dataclass(frozen=True)
class Score:
    """Errors of `n` rows as fractions: |predicted / measured - 1|, in which a key measured r times weighs 1/r each.

    `time_weighted_ape` is the sum of |predicted - measured| over the sum of what was measured: long rows count more.
    `bias` is the mean of predicted / measured - 1, its sign kept.
    """

    n: int
    mean_ape: float
    median_ape: float
    p90_ape: float
    within_5pct: float
    time_weighted_ape: float
    bias: float


def score(predicted: Array, measured: Array, weights: Array) -> Score:
    """The score of rows [rows] in any one unit of time; there must be one at least."""
    ratios = predicted / measured - 1
    errors = np.abs(ratios)
    total = weights.sum()
    median, p90 = np.quantile(errors, (0.5, 0.9), weights=weights, method="inverted_cdf")
    return Score(
        n=len(errors),
        mean_ape=float(weights @ errors / total),
        median_ape=float(median),
        p90_ape=float(p90),
        within_5pct=float(weights @ (errors <= CLOSE) / total),
        time_weighted_ape=float(weights @ np.abs(predicted - measured) / (weights @ measured)),
        bias=float(weights @ ratios / total),
    )
