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
        m, n, k = sizes["m"], sizes["n"], sizes["k"]
        return float(_ratio(m, n, k, physics_ps, self.rows, self.columns, self.depths, self.log_ps, self.log_ratio))

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
            axes = [np.array(document[name], np.float64, ndmin=1) for name in ("rows", "columns", "depths")]
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
    """(index of the point below, how far on to the next by logarithms, whether within) of a size on an axis.

    Beyond it the nearest end.
    """
    index = min(max(np.searchsorted(axis, x) - 1, 0), axis.size - 2)
    part = np.log(x / axis[index]) / np.log(axis[index + 1] / axis[index])
    return index, min(max(part, 0.0), 1.0), axis[0] <= x <= axis[-1]


@njit(cache=True)
def _ratio(m, n, k, physics_ps, rows, columns, depths, log_ps, log_ratio):  # type: ignore[no-untyped-def]
    """`Grid.ratio` at sizes m, n, k: what stands between the points, linearly."""
    i, x, in_rows = _cell(rows, m)
    j, y, in_columns = _cell(columns, n)
    h, z, in_depths = _cell(depths, k)
    inside = in_rows and in_columns and in_depths
    table = log_ps if inside else log_ratio
    total = -np.log(physics_ps) if inside else 0.0
    for a in range(2):
        for b in range(2):
            for c in range(2):
                weight = (x if a else 1 - x) * (y if b else 1 - y) * (z if c else 1 - z)
                total += weight * table[i + a, j + b, h + c]
    return np.exp(min(np.log(MOST), max(np.log(LEAST), total)))
