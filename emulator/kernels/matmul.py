"""MATMUL: few rows by a fused product that reads the weights' own bytes, many rows by BLAS over column tiles."""

# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import numpy as np

from .inline import REORDER, kernel, rounded, value_of


@kernel(fastmath=REORDER)
def _dot_1(w, a):
    total = np.float32(0)
    for i in range(w.size):
        total += value_of(w[i]) * a[i]
    return total


@kernel(fastmath=REORDER)
def _dot_4(w, a, b, c, d):
    s0 = s1 = s2 = s3 = np.float32(0)
    for i in range(w.size):
        x = value_of(w[i])
        s0 += x * a[i]
        s1 += x * b[i]
        s2 += x * c[i]
        s3 += x * d[i]
    return s0, s1, s2, s3


@kernel
def _values(out, source):
    for i in range(out.size):
        out[i] = value_of(source[i])


@kernel
def matmul(dst, dst0, a, a0, w, w0, k, bias, first, last):
    """Output columns first..last of dst = a @ w^T (+ bias) for a few rows; `bias` is empty when there is none."""
    rows = a.shape[0]
    padded = rows + (1 if rows % 4 == 3 else 0)  # three rows cost more one by one than four at once
    values = np.zeros((padded, k), np.float32)
    for r in range(rows):
        _values(values[r], a[r, a0 : a0 + k])
    for j in range(first, last):
        weights = w[j, w0 : w0 + k]
        shift = value_of(bias[j]) if bias.size > 0 else np.float32(0)
        for r in range(0, padded - 3, 4):
            s0, s1, s2, s3 = _dot_4(weights, values[r], values[r + 1], values[r + 2], values[r + 3])
            dst[r, dst0 + j] = rounded(dst, s0 + shift)
            dst[r + 1, dst0 + j] = rounded(dst, s1 + shift)
            dst[r + 2, dst0 + j] = rounded(dst, s2 + shift)
            if r + 3 < rows:
                dst[r + 3, dst0 + j] = rounded(dst, s3 + shift)
        for r in range(padded - padded % 4, rows):
            dst[r, dst0 + j] = rounded(dst, _dot_1(weights, values[r]) + shift)
    return -1


@kernel
def widen(out, source, start, first):
    """out[r, i] = float32 value of source[first + r, start + i]."""
    for r in range(out.shape[0]):
        _values(out[r], source[first + r, start : start + out.shape[1]])


@kernel
def narrow(dst, dst0, tile, bias, first):
    """dst[r, dst0 + j] = tile[r, j] (+ bias[first + j]), rounded once; `bias` is empty when there is none."""
    for r in range(tile.shape[0]):
        out, row = dst[r, dst0 : dst0 + tile.shape[1]], tile[r]
        if bias.size > 0:
            shift = bias[first : first + tile.shape[1]]
            for j in range(out.size):
                out[j] = rounded(dst, row[j] + value_of(shift[j]))
        else:
            for j in range(out.size):
                out[j] = rounded(dst, row[j])
