"""What a card takes for the rows of a measured table: its own units and links, asked as the calendar asks them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, Self

import numpy as np

from ...emulator.spec import CardSpec
from ...emulator.units.demand import demand
from ...isa.dtype import parse_dtype
from ...isa.work import Work
from ..node import collective_times_ps
from .schema import COLLECTIVES
from .tables import Array, Floats, MeasuredTable
from .works import works_of

_demand = demand.__wrapped__  # a fit asks each Work once of each of many cards: nothing to remember


class Predictor(Protocol):
    """The rows of a table, whose times may be asked of many cards."""

    def ps(self, card: CardSpec) -> Floats:
        """Picoseconds of each row alone on the card, or on cards of its node: float64 [rows]."""


class Instructions:
    """Rows that one card's instructions stand for, one after the other."""

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
        """Picoseconds of each row's instructions with nothing else to do: float64 [rows]."""
        return np.array([_alone_ps(works, card) for works in self.works], float)


class Collectives:
    """Rows that time a collective of all cards of a node."""

    def __init__(self, table: MeasuredTable) -> None:
        self.collective, self.rows = table.op, len(table)
        columns = table.columns
        self.sizes = columns["message_size"] * _bytes(columns["nccl_dtype"])
        pairs = list(zip(columns["num_gpus"].tolist(), columns["nccl_dtype"].tolist(), strict=True))
        self.alike = {pair: np.flatnonzero([other == pair for other in pairs]) for pair in dict.fromkeys(pairs)}

    def ps(self, card: CardSpec) -> Floats:
        """Picoseconds of each row's collective in the card's own node: float64 [rows]."""
        found = np.zeros(self.rows)
        for (ranks, dtype), rows in self.alike.items():
            sizes, inverse = np.unique(self.sizes[rows], return_inverse=True)
            times = collective_times_ps(card, self.collective, ranks, sizes.tolist(), parse_dtype(dtype))
            found[rows] = times[inverse]
        return found


def predictor_of(table: MeasuredTable) -> Predictor:
    """What predicts a table's rows; UnsupportedError where nothing does what a row measured."""
    return Collectives(table) if table.op in COLLECTIVES.values() else Instructions.of(table)


def predicted_ps(table: MeasuredTable, card: CardSpec) -> Floats:
    """Picoseconds that each row takes on the card: float64 [rows].

    UnsupportedError where the card, or siltwin, has nothing that does such a row.
    """
    return predictor_of(table).ps(card)


def _alone_ps(works: Iterable[Work], card: CardSpec) -> int:
    asked = [_demand(work, card) for work in works]
    return sum(each.fixed_ps + each.alone_ps for each in asked)


def _bytes(dtypes: Array) -> Array:
    """Bytes of an element, for each name of a type."""
    sizes = {name: parse_dtype(name).itemsize_bytes for name in dict.fromkeys(dtypes.tolist())}
    return np.array([sizes[name] for name in dtypes.tolist()], np.int64)
