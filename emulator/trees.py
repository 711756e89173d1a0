"""A learned correction of one kind's times as plain arrays: trees over logarithms of sizes, summed in Numba.

log time = share x log physics + trees(sizes, physics): with a share between 0 and 1 and trees that never fall in any
of their inputs, the corrected time never falls as sizes grow, and neither does it within its limits of the physics.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import numpy as np
from numba import njit

from ..isa.errors import ConfigError

LEAST, MOST = 0.7, 1.4  # times the physics
PHYSICS = "physics_ps"  # the last input, beside the sizes
Array = np.ndarray[Any, np.dtype[Any]]


class Trees(NamedTuple):
    """Boosted trees: `inputs` names their columns, each held to its `low` and `high`, the range they learned on.

    Nodes of all trees stand in one list: `column` [nodes] is -1 at a leaf, whose `value` counts; else rows whose
    column is at most `value` go to node `left`, all others to `right`. `roots` [trees]. `dtypes` are the element types
    that they learned on.
    """

    dtypes: tuple[str, ...]
    share: float
    start: float
    inputs: tuple[str, ...]
    low: Array
    high: Array
    roots: Array
    column: Array
    value: Array
    left: Array
    right: Array

    def ratio(self, sizes: Mapping[str, float], physics_ps: float) -> float:
        """What the physics of an instruction with these sizes is multiplied by, from LEAST to MOST."""
        row = np.array([[*[sizes[name] for name in self.inputs[:-1]], physics_ps]], np.float64)
        return float(self.ratios(row)[0])

    def ratios(self, rows: Array) -> Array:
        """`ratio` of many rows of inputs, float64 [rows, inputs]: float64 [rows]."""
        logs = np.log(np.minimum(np.maximum(rows, self.low), self.high) + 1.0)
        trees = _sum_rows(logs, self.column, self.value, self.left, self.right, self.roots)
        found: Array = np.exp(np.clip(self.start + (self.share - 1) * logs[:, -1] + trees, *np.log([LEAST, MOST])))
        return found

    def own_ps(self, rows: Array) -> Array:
        """Corrected picoseconds [rows] of rows of inputs, the last of which is physics."""
        found: Array = rows[:, -1] * self.ratios(rows)
        return found

    @property
    def digest(self) -> str:
        """A digest of all that the trees are."""
        return digest_of(self.document())

    def document(self) -> dict[str, Any]:
        """Plain lists and numbers, as JSON holds them."""
        return plain(self)

    @classmethod
    def of_document(cls, document: Mapping[str, Any], where: object) -> Self:
        """The trees of a document; ConfigError where it is not one, or a node leads nowhere."""
        try:
            floats = {key: np.array(document[key], np.float64, ndmin=1) for key in ("low", "high", "value")}
            whole = {key: np.array(document[key], np.int64, ndmin=1) for key in ("roots", "column", "left", "right")}
            found = cls(
                tuple(document["dtypes"]), float(document["share"]), float(document["start"]),
                tuple(document["inputs"]), floats["low"], floats["high"], whole["roots"], whole["column"],
                floats["value"], whole["left"], whole["right"],
            )  # fmt: skip
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"{where}: holds no trees: {error}") from None
        if not found._is_sound():
            raise ConfigError(f"{where}: its trees are damaged; calibrate the card again")
        return found

    def _is_sound(self) -> bool:
        """Whether every walk from a root ends at a leaf: children stand behind their parent, and lists agree."""
        nodes, inputs = len(self.column), len(self.inputs)
        lists = {len(self.value), len(self.left), len(self.right)} == {nodes}
        if not lists or {len(self.low), len(self.high)} != {inputs} or not inputs or self.inputs[-1] != PHYSICS:
            return False
        inner = np.flatnonzero(self.column >= 0)
        ahead = [(held[inner] > inner).all() and (held[inner] < nodes).all() for held in (self.left, self.right)]
        rooted = (self.roots >= 0).all() and (self.roots < nodes).all() and (self.column < inputs).all()
        return bool(all(ahead) and rooted and 0 < self.share < 1 and np.isfinite(self.value).all())


def plain(learned: Any) -> dict[str, Any]:
    """The fields of a named tuple of arrays as plain lists and numbers."""
    return {key: held.tolist() if isinstance(held, np.ndarray) else held for key, held in learned._asdict().items()}


def digest_of(document: Mapping[str, Any]) -> str:
    """A digest of what was learned."""
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:16]


@njit(cache=True)
def _sum_rows(rows, column, value, left, right, roots):  # type: ignore[no-untyped-def]
    """The sums [rows] of the leaves that each row [rows, inputs] comes to."""
    found = np.zeros(rows.shape[0])
    for index in range(rows.shape[0]):
        for root in roots:
            node = root
            while column[node] >= 0:
                node = left[node] if rows[index, column[node]] <= value[node] else right[node]
            found[index] += value[node]
    return found
