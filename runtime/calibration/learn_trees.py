"""Trees over a physics fit that never let a time fall as sizes grow: for kernels that more than three sizes tell."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...emulator.trees import Trees
from .boost import boosted
from .lessons import Lessons

SHARES = (0.6, 0.8, 0.9)  # of log physics, among which cross-validation chooses
ROUNDS = 300
SETTINGS = {"num_leaves": 31, "min_data_in_leaf": 8, "monotone_constraints_method": "intermediate"}


def grow(lessons: Lessons, share: float, seed: int) -> Trees:
    """Trees with this share of physics."""
    logs = np.log(lessons.inputs + 1)
    left = np.log(lessons.own_ps) - share * logs[:, -1]
    start = float(np.median(left))
    settings = {**SETTINGS, "monotone_constraints": [1] * logs.shape[1], "seed": seed}
    model = boosted(logs, left - start, lessons.weights, ROUNDS, settings)
    return _plain(model.dump_model(), lessons, share, start)


def _plain(model: dict[str, Any], lessons: Lessons, share: float, start: float) -> Trees:
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
    columns, lefts, rights = (held.astype(np.int64) for held in (column, left, right))
    low, high = lessons.inputs.min(axis=0), lessons.inputs.max(axis=0)
    return Trees((lessons.dtype,), share, start, lessons.names, low, high, roots, columns, value.copy(), lefts, rights)
