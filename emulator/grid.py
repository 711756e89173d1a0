"""A learned table of one kind's times on a grid of three sizes, read between its points in Numba.

Times never fall along any axis of the grid, nor do those between its points, whose logarithms are interpolated over
logarithms of sizes; so a corrected time never falls within the grid, nor within its limits of the physics.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import numpy as np
from numba import njit

from ..isa.errors import ConfigError
from .trees import LEAST, MOST, Array, digest_of, plain

SIZES = ("m", "n", "k")


class Grid(NamedTuple):
    """`rows`, `columns` and `depths` are the sizes m, n and k at the points, ascending; `log_ps` [rows, columns,
    depths] the logarithms of picoseconds there, and `log_ratio` what these are above the card's physics.

    Beyond its edges the ratio of the nearest edge counts. `dtypes` are the element types that it was learned on.
    """

    dtypes: tuple[str, ...]
    rows: Array
    columns: Array
    depths: Array
    log_ps: Array
    log_ratio: Array

    def ratio(self, sizes: Mapping[str, float], physics_ps: float) -> float:
        """What the physics of a product of these sizes is multiplied by, from LEAST to MOST."""
        place = np.array([sizes[name] for name in SIZES], np.float64)
        edges = self.rows, self.columns, self.depths
        inside = all(axis[0] <= x <= axis[-1] for axis, x in zip(edges, place.tolist(), strict=True))
        rows, columns, depths = (np.log(axis) for axis in edges)
        found = _between(np.log(place), rows, columns, depths, self.log_ps if inside else self.log_ratio)
        found -= np.log(physics_ps) if inside else 0.0
        return float(np.exp(min(np.log(MOST), max(np.log(LEAST), found))))

    @property
    def digest(self) -> str:
        """A digest of all that the grid is."""
        return digest_of(self.document())

    def document(self) -> dict[str, Any]:
        """Plain lists and numbers, as JSON holds them."""
        return plain(self)

    @classmethod
    def of_document(cls, document: Mapping[str, Any], where: object) -> Self:
        """The grid of a document; ConfigError where it is not one, or a time of it falls."""
        try:
            axes = [np.array(document[name], np.float64) for name in ("rows", "columns", "depths")]
            tables = [np.array(document[name], np.float64) for name in ("log_ps", "log_ratio")]
            found = cls(tuple(document["dtypes"]), *axes, *tables)
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"{where}: holds no grid: {error}") from None
        shape = tuple(map(len, axes))
        sound = all(table.shape == shape and np.isfinite(table).all() for table in tables) and min(shape) > 1
        if not sound or not all((axis[0] >= 1) and (np.diff(axis) > 0).all() for axis in axes) or found.falls():
            raise ConfigError(f"{where}: its grid is damaged; calibrate the card again")
        return found

    def falls(self) -> bool:
        """Whether a time falls along an axis."""
        return any(bool((np.diff(self.log_ps, axis=axis) < 0).any()) for axis in range(3))


@njit(cache=True)
def _cell(axis, x):  # type: ignore[no-untyped-def]
    """(index of the point below, how far on to the next) of a place on an axis, the nearest end beyond it."""
    index = min(max(np.searchsorted(axis, x) - 1, 0), axis.size - 2)
    part = (x - axis[index]) / (axis[index + 1] - axis[index])
    return index, min(max(part, 0.0), 1.0)


@njit(cache=True)
def _between(place, rows, columns, depths, table):  # type: ignore[no-untyped-def]
    """The table [rows, columns, depths] at a place [3], linearly between its points."""
    i, x = _cell(rows, place[0])
    j, y = _cell(columns, place[1])
    k, z = _cell(depths, place[2])
    total = 0.0
    for a in range(2):
        for b in range(2):
            for c in range(2):
                weight = (x if a else 1 - x) * (y if b else 1 - y) * (z if c else 1 - z)
                total += weight * table[i + a, j + b, k + c]
    return total
