"""A grid of times of products: trees are free to learn them, and what they say at its points is made to never fall."""

from __future__ import annotations

import itertools

import numpy as np
from scipy.optimize import isotonic_regression

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
TILES = ((64, 64), (64, 128), (128, 128), (128, 256))  # rows and columns, whose waves over the cores trees are told
PASSES = 12  # over the axes, when times are made to fall along none
DIGITS = 6  # kept of a logarithm
LIMITS = np.log([LEAST, MOST])


class Free:
    """Trees that give the ratio of time to physics by sizes, physics and a card's cores, bound by no law."""

    def __init__(self, card: CardSpec, lessons: Lessons, seed: int) -> None:
        self.cores = card.cores.count
        target = np.clip(np.log(lessons.own_ps / lessons.inputs[:, -1]), *LIMITS)
        inputs = features(lessons.inputs, self.cores)
        self.model = boosted(inputs, target, lessons.weights, ROUNDS, {**SETTINGS, "seed": seed})

    def log_ratios(self, inputs: Floats) -> Floats:
        """Logarithms of ratios [rows] of rows with the columns of the lessons."""
        found: Floats = np.clip(self.model.predict(features(inputs, self.cores)), *LIMITS)
        return found

    def own_ps(self, inputs: Floats) -> Floats:
        """Picoseconds of the kernels."""
        found: Floats = inputs[:, -1] * np.exp(self.log_ratios(inputs))
        return found


def features(inputs: Floats, cores: int) -> Floats:
    """What trees look at, float64 [rows, features], of inputs [rows, (m, n, k, picoseconds)].

    Beside the inputs these are elements of the operands and products, and how full the waves of usual tiles are: a
    tree cuts one feature at a time, and what such a cut finds holds of pairs of n and k that were not measured.
    """
    m, n, k, _ = inputs.T
    found = [*inputs.T, m * n, n * k, m * k, m * n * k]
    for rows, columns in TILES:
        waves = np.ceil(m / rows) * np.ceil(n / columns) / cores
        found += [waves, np.ceil(waves) / waves]
    logs: Floats = np.log(np.column_stack(found))
    return logs


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
    times = _never_falling((log_physics + Free(card, lessons, seed).log_ratios(inputs)).reshape(shape)).round(DIGITS)
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
    """The nearest table by squares that falls along no axis, nearly: Dykstra's projections on one axis after another.

    What they leave falling is closed by the mean of the least table above and the greatest below.
    """
    found, moved = table, [np.zeros_like(table) for _ in range(table.ndim)]
    for axis in PASSES * tuple(range(table.ndim)):
        before = found + moved[axis]
        found = np.apply_along_axis(_rising, axis, before)
        moved[axis] = before - found
    above, below = found.copy(), found.copy()
    for axis in range(table.ndim):
        above = np.maximum.accumulate(above, axis=axis)
        below = np.flip(np.minimum.accumulate(np.flip(below, axis), axis=axis), axis)
    return np.asarray((above + below) / 2)


def _rising(values: Floats) -> Floats:
    return values if (np.diff(values) >= 0).all() else np.asarray(isotonic_regression(values).x)
