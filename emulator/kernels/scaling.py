"""RMS_UNIT, POSITION_SCALE, SOFT_CAP and SCALE_ROUTED."""

# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import numpy as np

from .inline import REORDER, kernel, rounded, value_of


@kernel(fastmath=REORDER)
def _squares(row):
    total = np.float32(0)
    for i in range(row.size):
        total += value_of(row[i]) * value_of(row[i])
    return total


@kernel
def rms_unit(dst, dst0, x, x0, cols, run, eps, first, last):
    """Rows first..last: every run of `run` elements divided by its root mean square."""
    for r in range(first, last):
        for at in range(0, cols, run):
            out, row = dst[r, dst0 + at : dst0 + at + run], x[r, x0 + at : x0 + at + run]
            rms = np.sqrt(_squares(row) / np.float32(run) + eps)
            for i in range(run):
                out[i] = rounded(dst, value_of(row[i]) / rms)
    return -1


@kernel
def position_scale(x, x0, cols, positions, step, strength, first, last):
    """Rows first..last times 1 + strength * ln(1 + floor((position + 1) / step))."""
    one = np.float32(1)
    for r in range(first, last):
        steps = np.floor((np.float32(positions[r]) + one) / step)
        factor = np.log1p(steps) * strength + one
        row = x[r, x0 : x0 + cols]
        for i in range(cols):
            row[i] = rounded(x, value_of(row[i]) * factor)
    return -1


@kernel
def soft_cap(dst, dst0, x, x0, cols, cap, first, last):
    """Rows first..last of dst = cap * tanh(x / cap)."""
    for r in range(first, last):
        out, row = dst[r, dst0 : dst0 + cols], x[r, x0 : x0 + cols]
        for i in range(cols):
            out[i] = rounded(dst, cap * np.tanh(value_of(row[i]) / cap))
    return -1


@kernel
def scale_routed(x, x0, cols, slots, slots0, top, weights, weights0, first, last):
    """The rows of tokens first..last times their weights; returns the token whose slot is out of range, or -1."""
    for t in range(first, last):
        for j in range(top):
            slot = slots[t, slots0 + j]
            if slot >= x.shape[0]:
                return t
            if slot >= 0:
                weight, row = value_of(weights[t, weights0 + j]), x[slot, x0 : x0 + cols]
                for i in range(cols):
                    row[i] = rounded(x, value_of(row[i]) * weight)
    return -1
