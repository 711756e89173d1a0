"""GATHER, SCATTER, EMBEDDING and the conversions of COPY and CAST: moves of whole rows, bounds checked."""

# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import numpy as np

from .inline import converted, kernel


@kernel
def _move_row(out, row):
    for i in range(out.size):
        out[i] = converted(out, row[i])


@kernel
def cast(dst, dst0, x, x0, cols, first, last):
    """Rows first..last of dst = x, rounded to dst's dtype."""
    for r in range(first, last):
        _move_row(dst[r, dst0 : dst0 + cols], x[r, x0 : x0 + cols])
    return -1


@kernel
def gather(dst, dst0, src, src0, cols, index, first, last):
    """Rows first..last of dst = src[index]; returns the row whose index is out of range, or -1."""
    for n in range(first, last):
        entry = index[n]
        if entry < 0 or entry >= src.shape[0]:
            return n
        _move_row(dst[n, dst0 : dst0 + cols], src[entry, src0 : src0 + cols])
    return -1


@kernel
def check_scatter(index, limit):
    """(the first index beyond the last row, or -1; the first that repeats an earlier one, or -1).

    Negative indices skip their row and are fine.
    """
    for n in range(index.size):
        if index[n] >= limit:
            return n, -1
    if index.size < 2:
        return -1, -1
    taken = np.zeros(limit, np.uint8)
    for n in range(index.size):
        if index[n] >= 0:
            if taken[index[n]]:
                return -1, n
            taken[index[n]] = 1
    return -1, -1


@kernel
def scatter(dst, dst0, src, src0, cols, index):
    """dst[index[i]] = src[i], rows; negative indices skip theirs."""
    for n in range(index.size):
        entry = index[n]
        if entry >= 0:
            _move_row(dst[entry, dst0 : dst0 + cols], src[n, src0 : src0 + cols])


@kernel
def embedding(dst, dst0, table, table0, cols, ids, offset, zero, first, last):
    """Rows first..last of dst = table[ids - offset]; zeros where the id is in another card's part."""
    for t in range(first, last):
        entry = np.int64(ids[t]) - offset
        if 0 <= entry < table.shape[0]:
            _move_row(dst[t, dst0 : dst0 + cols], table[entry, table0 : table0 + cols])
        else:
            dst[t, dst0 : dst0 + cols] = zero
    return -1
