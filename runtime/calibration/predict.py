"""What a card takes for the rows of a measured table: its own units, asked as the calendar asks them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

import numpy as np

from ...emulator.spec import CardSpec
from ...emulator.units.demand import demand
from ...isa.work import Work
from .tables import Floats, MeasuredTable
from .works import works_of

_demand = demand.__wrapped__  # a fit asks each Work once of each of many cards: nothing to remember


class Predictor:
    """The instructions of a table's rows, whose times may be asked of many cards."""

    def __init__(self, works: Iterable[tuple[Work, ...]]) -> None:
        self.works = tuple(works)

    @classmethod
    def of(cls, table: MeasuredTable) -> Self:
        """UnsupportedError where no instruction does what a row measured."""
        return cls(works_of(table))

    def take(self, rows: Iterable[int]) -> Self:
        """Some of the rows."""
        return type(self)(self.works[row] for row in rows)

    def ps(self, card: CardSpec) -> Floats:
        """Picoseconds of each row's instructions alone on the card, one after the other: float64 [rows]."""
        return np.array([alone_ps(works, card) for works in self.works], float)


def predicted_ps(table: MeasuredTable, card: CardSpec) -> Floats:
    """Picoseconds that each row takes on the card: float64 [rows].

    UnsupportedError where the card, or siltwin, has nothing that does such a row.
    """
    return Predictor.of(table).ps(card)


def alone_ps(works: Iterable[Work], card: CardSpec) -> int:
    """Picoseconds of instructions one after the other on a card with nothing else to do."""
    asked = [_demand(work, card) for work in works]
    return sum(each.fixed_ps + each.alone_ps for each in asked)
