"""Learning what a physics fit leaves over: boosted trees (LightGBM) that never let a time fall as sizes grow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...emulator.calibrated import is_plain, sizes_of
from ...emulator.spec import CardSpec
from ...emulator.trees import PHYSICS, Trees
from ...isa.errors import ConfigError
from .predict import Instructions
from .splits import folds
from .tables import Array, Floats, MeasuredTable
from .works import can_stand_for

lightgbm: Any
try:
    import lightgbm
except ImportError:  # an optional dependency, which a card that has learned runs without
    lightgbm = None

FEWEST_ROWS = 300
UNORDERED = ("head_dim",)  # no length and no batch: a time may fall as it grows
FOLDS = 4
SHARES = (0.6, 0.8, 0.9)  # of log physics, among which cross-validation chooses
CHOOSING_ROWS = 6000
ROUNDS = 300
SETTINGS = {
    "objective": "huber", "alpha": 0.1, "learning_rate": 0.06, "num_leaves": 31, "min_data_in_leaf": 8,
    "monotone_constraints_method": "intermediate", "feature_fraction": 0.9, "bagging_fraction": 0.8, "bagging_freq": 1,
    "lambda_l2": 1.0, "num_threads": 1, "deterministic": True, "force_row_wise": True, "verbosity": -1,
}  # fmt: skip


class Lessons(NamedTuple):
    """Rows to learn from: inputs float64 [rows, sizes and physics] by name, times measured, weights, folds, types."""

    names: tuple[str, ...]
    inputs: Floats
    measured_ps: Floats
    weights: Floats
    fold: Array
    dtypes: tuple[str, ...]

    def take(self, rows: Array) -> Lessons:
        """Some of the rows."""
        inputs, measured, weights, fold = (held[rows] for held in self[1:5])
        return Lessons(self.names, inputs, measured, weights, fold, self.dtypes)


def learn(card: CardSpec, kind: str, tables: Sequence[MeasuredTable], seed: int) -> Trees | None:
    """Trees over the card's physics of a kind; None with fewer rows than FEWEST_ROWS, or where none would help.

    The share of physics is the one with the least error on groups left out in turn. ConfigError without LightGBM.
    """
    lessons = lessons_of(card, kind, tables, seed)
    if lessons is None or len(lessons.inputs) < FEWEST_ROWS:
        return None
    rng = np.random.default_rng(seed)
    few = rng.permutation(len(lessons.inputs))[:CHOOSING_ROWS]
    judged = {share: _left_out_error(lessons.take(few), share, seed) for share in SHARES}
    best = min(SHARES, key=lambda share: judged[share])
    physics = np.abs(lessons.inputs[few, -1] / lessons.measured_ps[few] - 1)
    if judged[best] >= float(np.average(physics, weights=lessons.weights[few])):
        return None
    return grow(lessons, best, seed)


def relearn(trees: Trees, card: CardSpec, kind: str, tables: Sequence[MeasuredTable], seed: int) -> Trees:
    """Trees of the same share that also know the rows which the first were judged on."""
    lessons = lessons_of(card, kind, tables, seed)
    assert lessons is not None, "trees were grown of some of these rows"
    return grow(lessons, trees.share, seed)


def lessons_of(card: CardSpec, kind: str, tables: Sequence[MeasuredTable], seed: int) -> Lessons | None:
    """The rows that are one plain instruction of the kind, with sizes and the physics; None where there are none.

    Sizes that all rows share teach nothing and are left out.
    """
    rows, measured, weights, fold, dtypes = [], [], [], [], dict[str, None]()
    names: tuple[str, ...] = ()
    for table in tables:
        if not can_stand_for(table.op):
            continue
        predictor = Instructions.of(table)
        found = list(_of_kind(predictor, kind))
        if not found:
            continue
        where, sizes, types = (list(each) for each in zip(*found, strict=True))
        names = tuple(sizes[0])
        physics = predictor.take(where).ps(card)
        rows.append(np.array([[*each.values(), ps] for each, ps in zip(sizes, physics, strict=True)]))
        measured.append(table.latency_ps[where])
        weights.append(table.weights[where])
        fold.append(folds(table, seed + 1, FOLDS)[where])
        dtypes |= dict.fromkeys(types)
    if not rows:
        return None
    inputs = np.concatenate(rows)
    varied = [*np.flatnonzero(np.ptp(inputs[:, :-1], axis=0) > 0), inputs.shape[1] - 1]
    names = tuple((*names, PHYSICS)[column] for column in varied)
    times, weigh, folded = (np.concatenate(held) for held in (measured, weights, fold))
    return Lessons(names, inputs[:, varied], times, weigh, folded, tuple(dtypes))


def _of_kind(predictor: Instructions, kind: str) -> Iterator[tuple[int, dict[str, float], str]]:
    """(row, sizes, element type) of every row that is a single instruction of the kind."""
    for row, works in enumerate(predictor.works):
        found = sizes_of(works[0]) if len(works) == 1 and is_plain(works[0]) else None
        if found is not None and found[0] == kind and works[0].dtype is not None:
            yield row, found[1], works[0].dtype.name


def _left_out_error(lessons: Lessons, share: float, seed: int) -> float:
    """The mean relative error on every fold of trees that were grown without it."""
    errors = np.zeros(len(lessons.inputs))
    for fold in range(FOLDS):
        out = lessons.fold == fold
        if out.any() and not out.all():
            trees = grow(lessons.take(~out), share, seed)
            errors[out] = np.abs(corrected(trees, lessons.inputs[out]) / lessons.measured_ps[out] - 1)
    return float(np.average(errors, weights=lessons.weights))


def corrected(trees: Trees, inputs: Floats) -> Floats:
    """The times of rows after what was learned: float64 picoseconds [rows]."""
    found: Floats = inputs[:, -1] * trees.ratios(inputs)
    return found


def grow(lessons: Lessons, share: float, seed: int) -> Trees:
    """Trees with this share of physics."""
    low, high = lessons.inputs.min(axis=0), lessons.inputs.max(axis=0)
    logs = np.log(lessons.inputs + 1)
    left = np.log(lessons.measured_ps) - share * logs[:, -1]
    start = float(np.median(left))
    if lightgbm is None:
        raise ConfigError("--fit full needs LightGBM: pip install siltwin[calibrate], or use --fit physics")
    rising = [0 if name in UNORDERED else 1 for name in lessons.names]
    settings = {**SETTINGS, "monotone_constraints": rising, "seed": seed}
    data = lightgbm.Dataset(logs, left - start, weight=lessons.weights, params={"verbosity": -1})
    model = lightgbm.train(settings, data, num_boost_round=ROUNDS)
    return _plain(model.dump_model(), lessons, share, start, low, high)


def _plain(model: dict[str, Any], lessons: Lessons, share: float, start: float, low: Floats, high: Floats) -> Trees:
    """A LightGBM model as plain arrays; a tree's nodes stand one after the other, parents first."""
    nodes: list[list[float]] = []  # column, value, left, right

    def place(node: dict[str, Any]) -> int:
        here = len(nodes)
        if "leaf_value" in node:
            nodes.append([-1, node["leaf_value"], -1, -1])
            return here
        nodes.append([node["split_feature"], node["threshold"], 0, 0])
        nodes[here][2:] = [place(node["left_child"]), place(node["right_child"])]
        return here

    roots = np.array([place(tree["tree_structure"]) for tree in model["tree_info"]], np.int64)
    column, value, left, right = np.array(nodes).T
    whole = (held.astype(np.int64) for held in (column, left, right))
    columns, lefts, rights = whole
    names = lessons.names
    return Trees(lessons.dtypes, share, start, names, low, high, roots, columns, value.copy(), lefts, rights)
