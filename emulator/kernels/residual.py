"""RESIDUAL_MIX: shares of a token's snapshots and running sum, and their sum."""

# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import math

import numpy as np

from .inline import REORDER, exp, kernel, rounded, value_of


@kernel(fastmath=REORDER)
def _score(run, query, eps):
    """The sum of run / rms(run) * query."""
    squares, product = np.float32(0), np.float32(0)
    for i in range(query.size):
        value = value_of(run[i])
        squares += value * value
        product += value * query[i]
    return product / np.float32(math.sqrt(squares / np.float32(query.size) + eps))


@kernel
def residual_mix(dst, dst0, snapshots, snapshots0, count, x, x0, weight, query, eps, first, last):
    """Rows first..last of dst from `count` snapshots and x."""
    cols = weight.size
    both, mixed = np.empty(cols, np.float32), np.empty(cols, np.float32)
    shares = np.empty(count + 1, np.float32)
    for i in range(cols):
        both[i] = value_of(weight[i]) * value_of(query[i])
    for r in range(first, last):
        held, own = snapshots[r, snapshots0 : snapshots0 + count * cols], x[r, x0 : x0 + cols]
        for j in range(count):
            shares[j] = _score(held[j * cols : (j + 1) * cols], both, eps)
        shares[count] = _score(own, both, eps)
        most = shares.max()
        total = np.float32(0)
        for j in range(count + 1):
            shares[j] = exp(shares[j] - most)
            total += shares[j]
        mixed[:] = np.float32(0)
        for j in range(count):
            share, value = shares[j] / total, held[j * cols : (j + 1) * cols]
            for i in range(cols):
                mixed[i] += share * value_of(value[i])
        share, out = shares[count] / total, dst[r, dst0 : dst0 + cols]
        for i in range(cols):
            out[i] = rounded(dst, mixed[i] + share * value_of(own[i]))
    return -1
