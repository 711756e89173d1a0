"""Learning what a physics fit leaves over, where cross-validation by groups says that it helps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ...emulator.grid import Grid
from ...emulator.spec import CardSpec
from ...emulator.trees import Trees
from .learn_grid import Free, fill
from .learn_trees import SHARES, grow
from .lessons import FOLDS, Lessons, lessons_of
from .tables import Floats, MeasuredTable

FEWEST_ROWS = 300
CHOOSING_ROWS = 6000
Learned = Trees | Grid
OF_A_GRID = ("matmul",)  # kinds whose three sizes say all; others are of trees


def learn(card: CardSpec, kind: str, tables: Sequence[MeasuredTable], seed: int) -> Learned | None:
    """A correction of the card's physics of a kind; None with fewer rows than FEWEST_ROWS, or where none would help.

    What is chosen among has the least error on groups left out in turn. ConfigError without LightGBM.
    """
    lessons = lessons_of(card, kind, tables, seed)
    if lessons is None or len(lessons.inputs) < FEWEST_ROWS:
        return None
    few = lessons.take(np.random.default_rng(seed).permutation(len(lessons.inputs))[:CHOOSING_ROWS])
    physics = float(np.average(few.errors(few.inputs[:, -1]), weights=few.weights))
    if kind in OF_A_GRID:
        error = left_out_error(few, lambda seen: Free(card, seen, seed).own_ps)
        return fill(card, lessons, seed) if error < physics else None
    errors = {share: left_out_error(few, lambda seen, a=share: grow(seen, a, seed).own_ps) for share in SHARES}  # type: ignore[misc]
    best = min(SHARES, key=lambda share: errors[share])
    return grow(lessons, best, seed) if errors[best] < physics else None


def relearn(first: Learned, card: CardSpec, kind: str, tables: Sequence[MeasuredTable], seed: int) -> Learned:
    """The same again, that also knows the rows which the first was judged on."""
    lessons = lessons_of(card, kind, tables, seed)
    assert lessons is not None, "the first was learned of some of these rows"
    if isinstance(first, Grid):
        return fill(card, lessons, seed) or first
    return grow(lessons, first.share, seed)


def left_out_error(lessons: Lessons, learned: Callable[[Lessons], Callable[[Floats], Floats]]) -> float:
    """The mean relative error on every fold of what is learned without it: from inputs to picoseconds."""
    errors = np.zeros(len(lessons.inputs))
    for fold in range(FOLDS):
        out = lessons.fold == fold
        if out.any() and not out.all():
            left = lessons.take(out)
            errors[out] = left.errors(learned(lessons.take(~out))(left.inputs))
    return float(np.average(errors, weights=lessons.weights))
