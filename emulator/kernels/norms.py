"""RMSNORM, ADD_RMSNORM and LAYERNORM, rounding where the meaning rounds."""

# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import numpy as np

from .inline import REORDER, kernel, rounded, value_of


@kernel(fastmath=REORDER)
def _mean_square(run):
    total = np.float32(0)
    for i in range(run.size):
        total += run[i] * run[i]
    return total / np.float32(run.size)


@kernel(fastmath=REORDER)
def _mean(run):
    total = np.float32(0)
    for i in range(run.size):
        total += run[i]
    return total / np.float32(run.size)


@kernel
def _normalise(out, x, run, weight, eps, plus_one):
    """One run: x / rms is rounded to x's dtype before the weight, unless the weight is 1 + w."""
    rms = np.sqrt(_mean_square(run) + eps)
    if plus_one:
        for i in range(run.size):
            scale = value_of(weight[i]) + np.float32(1)
            out[i] = rounded(out, run[i] / rms * scale)
    else:
        for i in range(run.size):
            normal = value_of(rounded(x, run[i] / rms))
            out[i] = rounded(out, normal * value_of(weight[i]))


@kernel
def rmsnorm(dst, dst0, x, x0, cols, weight, eps, plus_one, first, last):
    """Rows first..last: every run of len(weight) elements divided by its root mean square, times the weight."""
    run = np.empty(weight.size, np.float32)
    for r in range(first, last):
        for at in range(0, cols, weight.size):
            row = x[r, x0 + at : x0 + at + run.size]
            for i in range(run.size):
                run[i] = value_of(row[i])
            _normalise(dst[r, dst0 + at : dst0 + at + run.size], x, run, weight, eps, plus_one)
    return -1


@kernel
def add_rmsnorm(dst, dst0, x, x0, delta, delta0, cols, weight, eps, plus_one, first, last):
    """Rows first..last: x += delta, rounded; then the norm of the new x."""
    run = np.empty(weight.size, np.float32)
    for r in range(first, last):
        for at in range(0, cols, weight.size):
            row, more = x[r, x0 + at : x0 + at + run.size], delta[r, delta0 + at : delta0 + at + run.size]
            for i in range(run.size):
                total = rounded(x, value_of(row[i]) + value_of(more[i]))
                row[i] = total
                run[i] = value_of(total)
            _normalise(dst[r, dst0 + at : dst0 + at + run.size], x, run, weight, eps, plus_one)
    return -1


@kernel
def layernorm(dst, dst0, x, x0, weight, bias, eps, first, last):
    """Rows first..last: (x - mean) / sqrt(variance + eps) * weight (+ bias); `bias` is empty when there is none."""
    run = np.empty(weight.size, np.float32)
    for r in range(first, last):
        out, row = dst[r, dst0 : dst0 + run.size], x[r, x0 : x0 + run.size]
        for i in range(run.size):
            run[i] = value_of(row[i])
        mean = _mean(run)
        for i in range(run.size):
            run[i] -= mean
        deviation = np.sqrt(_mean_square(run) + eps)
        if bias.size > 0:
            for i in range(run.size):
                normal = run[i] / deviation * value_of(weight[i])
                out[i] = rounded(dst, normal + value_of(bias[i]))
        else:
            for i in range(run.size):
                out[i] = rounded(dst, run[i] / deviation * value_of(weight[i]))
    return -1


@kernel(fastmath=REORDER)
def _squares(row):
    total = np.float32(0)
    for i in range(row.size):
        total += value_of(row[i]) * value_of(row[i])
    return total


@kernel
def sum_squares(dst, dst0, x, x0, cols, first, last):
    """Rows first..last: dst = the sum of the squares of x's row."""
    for r in range(first, last):
        dst[r, dst0] = rounded(dst, _squares(x[r, x0 : x0 + cols]))
    return -1


@kernel
def rms_scale(dst, dst0, x, x0, squares, squares0, cols, weight, count, eps, plus_one, first, last):
    """Rows first..last: x divided by the root of squares / count + eps, times the weight, rounded as in a norm."""
    for r in range(first, last):
        rms = np.sqrt(value_of(squares[r, squares0]) / count + eps)
        out, row = dst[r, dst0 : dst0 + cols], x[r, x0 : x0 + cols]
        if plus_one:
            for i in range(out.size):
                scale = value_of(weight[i]) + np.float32(1)
                out[i] = rounded(dst, value_of(row[i]) / rms * scale)
        else:
            for i in range(out.size):
                normal = value_of(rounded(x, value_of(row[i]) / rms))
                out[i] = rounded(dst, normal * value_of(weight[i]))
    return -1
