"""What a card takes for the rows of a measured table: its own units, asked as the calendar asks them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ...emulator.spec import CardSpec
from ...emulator.units.demand import demand
from ...isa.work import Work
from .tables import Floats, MeasuredTable
from .works import works_of


def predicted_ps(table: MeasuredTable, card: CardSpec) -> Floats:
    """Picoseconds of each row's instructions alone on the card, one after the other: float64 [rows].

    UnsupportedError where the card, or siltwin, has nothing that does such a row.
    """
    return np.array([alone_ps(works, card) for works in works_of(table)], float)


def alone_ps(works: Iterable[Work], card: CardSpec) -> int:
    """Picoseconds of instructions one after the other on a card with nothing else to do."""
    asked = [demand(work, card) for work in works]
    return sum(each.fixed_ps + each.alone_ps for each in asked)
