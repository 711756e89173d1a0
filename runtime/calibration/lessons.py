"""What there is to learn from: rows with the sizes of their kernel, its physics, and the time left for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ...emulator.calibrated import Sizes, is_plain, sizes_of
from ...emulator.spec import CardSpec
from ...emulator.trees import PHYSICS
from ...isa.work import Work
from .predict import Instructions
from .splits import folds
from .tables import Array, Floats, MeasuredTable
from .usable import relevant
from .works import can_stand_for

FOLDS = 4
INPUTS = {"prefill": ("longest", "items"), "decode": ("longest", "items"), "matmul": ("m", "n", "k")}
USUAL_WEIGHT = 3.0  # of the rows that models mostly ask, against all others
LEAST_LEFT = 0.3  # of a row's time: where other instructions take more, it tells little of the kernel


class Lessons(NamedTuple):
    """Rows of one kind of kernel, all of one element type.

    `inputs` float64 [rows, sizes and physics] by `names`; `own_ps` is what was measured less `beside_ps`, what the
    row's other instructions take; `fold` of its group.
    """

    names: tuple[str, ...]
    inputs: Floats
    own_ps: Floats
    beside_ps: Floats
    weights: Floats
    fold: Array
    dtype: str

    def take(self, rows: Array) -> Lessons:
        """Some of the rows."""
        inputs, own, beside, weights, fold = (held[rows] for held in self[1:6])
        return Lessons(self.names, inputs, own, beside, weights, fold, self.dtype)

    def errors(self, own_ps: Floats) -> Floats:
        """Relative errors [rows] of the whole times, where the kernels take so long."""
        found: Floats = np.abs(own_ps - self.own_ps) / (self.own_ps + self.beside_ps)
        return found


class _Row(NamedTuple):
    place: int
    sizes: Sizes
    kernel: Work
    beside: tuple[Work, ...]


def lessons_of(card: CardSpec, kind: str, tables: Sequence[MeasuredTable], seed: int) -> Lessons | None:
    """The rows of plain kernels of a kind, of the type that models mostly ask; None where there are none.

    Few sizes are told, that what is learned of some shapes holds of others: physics knows the rest.
    """
    if kind not in INPUTS:
        return None
    found = [(table, list(_rows(table, kind))) for table in tables if can_stand_for(table.op)]
    usual = [(relevant(table), rows) for table, rows in found]
    types = Counter(str(row.kernel.dtype) for mask, rows in usual for row in rows if mask[row.place])
    if not types:
        return None
    dtype = max(types, key=lambda name: types[name])
    parts = []
    for table, rows in found:
        rows = [row for row in rows if str(row.kernel.dtype) == dtype]
        if rows:
            parts.append(_part(card, table, rows, INPUTS[kind], seed))
    inputs, own, beside, weights, fold = (np.concatenate(held) for held in zip(*parts, strict=True))
    lessons = Lessons((*INPUTS[kind], PHYSICS), inputs, own, beside, weights, fold, dtype)
    return lessons.take(own > LEAST_LEFT * (own + beside))


def _rows(table: MeasuredTable, kind: str) -> Iterator[_Row]:
    """The rows in which one instruction is a plain kernel of the kind."""
    for place, works in enumerate(Instructions.of(table).works):
        for index, work in enumerate(works):
            found = sizes_of(work)
            if found is not None and found[0] == kind and is_plain(work):
                yield _Row(place, found[1], work, (*works[:index], *works[index + 1 :]))
                break


def _part(
    card: CardSpec, table: MeasuredTable, rows: list[_Row], names: tuple[str, ...], seed: int
) -> tuple[Floats, Floats, Floats, Floats, Array]:
    where = [row.place for row in rows]
    physics = Instructions((row.kernel,) for row in rows).ps(card)
    beside = Instructions(row.beside for row in rows).ps(card)
    inputs = np.array([[*(row.sizes[name] for name in names), ps] for row, ps in zip(rows, physics, strict=True)])
    weights = table.weights[where] * np.where(relevant(table)[where], USUAL_WEIGHT, 1.0)
    return inputs, table.latency_ps[where] - beside, beside, weights, folds(table, seed + 1, FOLDS)[where]
