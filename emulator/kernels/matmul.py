"""MATMUL: few rows by a fused product that reads the weights' own bytes, many rows by BLAS over column tiles."""

# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import numpy as np

from .inline import REORDER, kernel, rounded, value_of


@kernel(fastmath=REORDER)
def _dot_1(w, j, start, a, r, k):
    total = np.float32(0)
    for i in range(k):
        total += value_of(w[j, start + i]) * a[r, i]
    return total


@kernel(fastmath=REORDER)
def _dot_4(w, j, start, a, r, k):
    s0 = s1 = s2 = s3 = np.float32(0)
    for i in range(k):
        x = value_of(w[j, start + i])
        s0 += x * a[r, i]
        s1 += x * a[r + 1, i]
        s2 += x * a[r + 2, i]
        s3 += x * a[r + 3, i]
    return s0, s1, s2, s3


@kernel
def matmul(dst, dst0, a, a0, w, w0, k, bias, first, last):
    """Output columns first..last of dst = a @ w^T (+ bias) for a few rows; `bias` is empty when there is none."""
    rows = a.shape[0]
    padded = rows + (1 if rows % 4 == 3 else 0)  # three rows cost more one by one than four at once
    values = np.zeros((padded, k), np.float32)
    for r in range(rows):
        for i in range(k):
            values[r, i] = value_of(a[r, a0 + i])
    for j in range(first, last):
        shift = value_of(bias[j]) if bias.size > 0 else np.float32(0)
        for r in range(0, padded - 3, 4):
            s0, s1, s2, s3 = _dot_4(w, j, w0, values, r, k)
            dst[r, dst0 + j] = rounded(dst, s0 + shift)
            dst[r + 1, dst0 + j] = rounded(dst, s1 + shift)
            dst[r + 2, dst0 + j] = rounded(dst, s2 + shift)
            if r + 3 < rows:
                dst[r + 3, dst0 + j] = rounded(dst, s3 + shift)
        for r in range(padded - padded % 4, rows):
            dst[r, dst0 + j] = rounded(dst, _dot_1(w, j, w0, values, r, k) + shift)
    return -1


@kernel
def widen(out, source, start, first):
    """out[r, i] = float32 value of source[first + r, start + i]."""
    for r in range(out.shape[0]):
        for i in range(out.shape[1]):
            out[r, i] = value_of(source[first + r, start + i])


@kernel
def narrow(dst, dst0, tile, bias, first):
    """dst[r, dst0 + j] = tile[r, j] (+ bias[first + j]), rounded once; `bias` is empty when there is none."""
    for r in range(tile.shape[0]):
        if bias.size > 0:
            for j in range(tile.shape[1]):
                dst[r, dst0 + j] = rounded(dst, tile[r, j] + value_of(bias[first + j]))
        else:
            for j in range(tile.shape[1]):
                dst[r, dst0 + j] = rounded(dst, tile[r, j])
