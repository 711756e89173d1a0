"""Blocks: the largest magnitude of each block of a matrix, and a value per block spread over its elements."""

from __future__ import annotations

import numpy as np

from .elements import Array
from .scheme import QuantScheme, Shape, matrix_of


def block_reduce(values: Array, scheme: QuantScheme, reduce: np.ufunc) -> Array:
    """[..., row blocks, column blocks]: `reduce` (np.maximum, np.minimum) over each block, with 0 among its values."""
    rows, cols = matrix_of(values.shape)
    block_rows, block_cols = scheme.block_of(values.shape)
    lead = values.shape[:-2]
    padding = [(0, 0)] * len(lead) + [(0, -rows % block_rows), (0, -cols % block_cols)]
    whole = np.pad(values.reshape(*lead, rows, cols), padding)
    cells = whole.reshape(*lead, whole.shape[-2] // block_rows, block_rows, whole.shape[-1] // block_cols, block_cols)
    result: Array = reduce.reduce(cells, axis=(-3, -1), initial=0)
    return result


def spread(per_block: Array, scheme: QuantScheme, shape: Shape) -> Array:
    """[..., rows, cols] of `shape`: every element's block value, from [..., row blocks, column blocks]."""
    rows, cols = matrix_of(shape)
    block_rows, block_cols = scheme.block_of(shape)
    by_row = np.repeat(per_block, block_rows, axis=-2)[..., :rows, :]
    return np.repeat(by_row, block_cols, axis=-1)[..., :cols].reshape(shape)
