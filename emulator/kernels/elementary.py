"""MULTIPLY, MAP and CLAMP."""

# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import numpy as np

from .inline import erf, exp, kernel, rounded, value_of

FUNCTIONS = {"exp": 0, "sigmoid": 1, "erf": 2, "tanh": 3}


@kernel
def multiply(dst, dst0, a, a0, b, b0, cols, shared, first, last):
    """Rows first..last of dst = a * b; a `shared` b is one column for the row."""
    for r in range(first, last):
        out, left = dst[r, dst0 : dst0 + cols], a[r, a0 : a0 + cols]
        if shared:
            factor = value_of(b[r, b0])
            for i in range(out.size):
                out[i] = rounded(dst, value_of(left[i]) * factor)
        else:
            right = b[r, b0 : b0 + cols]
            for i in range(out.size):
                out[i] = rounded(dst, value_of(left[i]) * value_of(right[i]))
    return -1


@kernel
def mapped(dst, dst0, x, x0, cols, function, first, last):
    """Rows first..last of dst = function(x)."""
    one = np.float32(1)
    for r in range(first, last):
        out, row = dst[r, dst0 : dst0 + cols], x[r, x0 : x0 + cols]
        if function == 0:
            for i in range(out.size):
                out[i] = rounded(dst, exp(value_of(row[i])))
        elif function == 1:
            for i in range(out.size):
                out[i] = rounded(dst, one / (one + exp(-value_of(row[i]))))
        elif function == 2:
            for i in range(out.size):
                out[i] = rounded(dst, erf(value_of(row[i])))
        else:
            for i in range(out.size):
                out[i] = rounded(dst, np.tanh(value_of(row[i])))
    return -1


@kernel
def clamp(dst, dst0, x, x0, cols, low, high, first, last):
    """Rows first..last of dst = x within low..high; NaN stays."""
    for r in range(first, last):
        out, row = dst[r, dst0 : dst0 + cols], x[r, x0 : x0 + cols]
        for i in range(out.size):
            value = value_of(row[i])
            value = low if value < low else value
            out[i] = rounded(dst, high if value > high else value)
    return -1
