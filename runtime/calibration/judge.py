"""How far a card's times lie from measured ones, on rows that no fit of it saw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...emulator.calibrated import Errors
from ...emulator.spec import CardSpec
from .predict import Predictor, predictor_of
from .tables import Array, Floats, MeasuredTable
from .usable import relevant

NOTHING = Errors(rows=0, mean=0, median=0, p90=0)


class Judged(NamedTuple):
    """Errors of all rows, and of those that models mostly ask."""

    every: Errors
    usual: Errors


class Judge:
    """Rows that are held out, and what predicts them."""

    def __init__(self, tables: Sequence[MeasuredTable]) -> None:
        self.tables = [table for table in tables if len(table)]
        self.predictors: list[Predictor] = [predictor_of(table) for table in self.tables]
        found = [table.noise for table in self.tables if table.noise is not None]
        self.noise = float(np.mean(found)) if found else None

    def errors(self, card: CardSpec) -> Judged:
        """Relative errors of a card; all nothing where no rows are held out."""
        if not self.tables:
            return Judged(NOTHING, NOTHING)
        pairs = zip(self.tables, self.predictors, strict=True)
        ape = np.concatenate([np.abs(predictor.ps(card) / table.latency_ps - 1) for table, predictor in pairs])
        weights = np.concatenate([table.weights for table in self.tables])
        usual = np.concatenate([relevant(table) for table in self.tables])
        return Judged(self._summed(ape, weights), self._summed(ape[usual], weights[usual]))

    def _summed(self, ape: Floats, weights: Array) -> Errors:
        if not len(ape):
            return NOTHING
        median, p90 = (float(value) for value in np.quantile(ape, [0.5, 0.9]))
        mean = float(np.average(ape, weights=weights))
        return Errors(rows=len(ape), mean=mean, median=median, p90=p90, noise=self.noise)
