"""A grid of times of products: trees are free to learn them, and what they say at its points is made to never fall."""

from __future__ import annotations

import itertools

import numpy as np

from ...emulator.grid import Grid
from ...emulator.spec import CardSpec
from ...emulator.trees import LEAST, MOST
from .boost import boosted
from .lessons import Lessons
from .predict import Instructions
from .tables import Array, Floats
from .works import gemm_works

MOST_POINTS = 40_000
ROUNDS = 600
SETTINGS = {"num_leaves": 63, "min_data_in_leaf": 5}
DIGITS = 6  # kept of a logarithm
LIMITS = np.log([LEAST, MOST])


class Free:
    """Trees that give the ratio of time to physics by sizes and physics, bound by no law."""

    def __init__(self, lessons: Lessons, seed: int) -> None:
        target = np.clip(np.log(lessons.own_ps / lessons.inputs[:, -1]), *LIMITS)
        logs = np.log(lessons.inputs + 1)
        self.model = boosted(logs, target, lessons.weights, ROUNDS, {**SETTINGS, "seed": seed})

    def log_ratios(self, inputs: Floats) -> Floats:
        """Logarithms of ratios [rows] of rows with the columns of the lessons."""
        found: Floats = np.clip(self.model.predict(np.log(inputs + 1)), *LIMITS)
        return found

    def own_ps(self, inputs: Floats) -> Floats:
        """Picoseconds of the kernels."""
        found: Floats = inputs[:, -1] * np.exp(self.log_ratios(inputs))
        return found


def fill(card: CardSpec, lessons: Lessons, seed: int) -> Grid | None:
    """The grid over all sizes that were measured; None where one of them was measured at a single value."""
    axes = _axes(lessons)
    if min(map(len, axes)) < 2:
        return None
    shape = tuple(map(len, axes))
    points = list(itertools.product(*(axis.astype(int).tolist() for axis in axes)))
    physics = Instructions(gemm_works(lessons.dtype, *point) for point in points).ps(card)
    inputs = np.column_stack([np.array(points, float), physics])
    log_physics = np.log(physics)
    times = _never_falling((log_physics + Free(lessons, seed).log_ratios(inputs)).reshape(shape)).round(DIGITS)
    ratios = (times - log_physics.reshape(shape)).round(DIGITS)
    rows, columns, depths = axes
    return Grid((lessons.dtype,), rows, columns, depths, times, ratios)


def _axes(lessons: Lessons) -> list[Array]:
    """The sizes that were measured; some of them, evenly by rank, where the grid would have too many points."""
    axes = [np.unique(column) for column in lessons.inputs[:, :-1].T]
    most = max(map(len, axes))
    while np.prod([len(axis) for axis in axes]) > MOST_POINTS:
        most -= 1
        axes = [
            axis[np.unique(np.linspace(0, len(axis) - 1, min(len(axis), most)).round().astype(int))] for axis in axes
        ]
    return axes


def _never_falling(table: Floats) -> Floats:
    """The mean of the least table above and the greatest below that fall along no axis."""
    above, below = table.copy(), table.copy()
    for axis in range(table.ndim):
        above = np.maximum.accumulate(above, axis=axis)
        below = np.flip(np.minimum.accumulate(np.flip(below, axis), axis=axis), axis)
    found: Floats = (above + below) / 2
    return found
