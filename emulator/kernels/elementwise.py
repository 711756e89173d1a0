"""ROPE, GATED, ADD and SCALE, and the addition that a recv-reduce performs."""

# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import numpy as np

from .inline import erf, exp, kernel, rounded, value_of

ACTIVATIONS = {"silu": 0, "gelu": 1, "gelu_tanh": 2}


@kernel
def rope(x, x0, cols, cos, cos0, sin, sin0, positions, head_dim, half, interleaved, first, last):
    """Rows first..last rotated in place; returns the row whose position is in no table, or -1."""
    for r in range(first, last):
        position = positions[r]
        if position < 0 or position >= cos.shape[0]:
            return r
        for head in range(x0, x0 + cols, head_dim):
            if interleaved:
                for i in range(half):
                    a, b = value_of(x[r, head + 2 * i]), value_of(x[r, head + 2 * i + 1])
                    c, s = value_of(cos[position, cos0 + i]), value_of(sin[position, sin0 + i])
                    x[r, head + 2 * i] = rounded(x, a * c - b * s)
                    x[r, head + 2 * i + 1] = rounded(x, b * c + a * s)
            else:
                for i in range(half):
                    a, b = value_of(x[r, head + i]), value_of(x[r, head + half + i])
                    c, s = value_of(cos[position, cos0 + i]), value_of(sin[position, sin0 + i])
                    x[r, head + i] = rounded(x, a * c - b * s)
                    x[r, head + half + i] = rounded(x, b * c + a * s)
    return -1


@kernel
def gated(dst, dst0, x, x0, cols, activation, first, last):
    """Rows first..last: activation of the first `cols` columns of x times the next `cols`."""
    one, half = np.float32(1), np.float32(0.5)
    for r in range(first, last):
        if activation == 0:
            for i in range(cols):
                gate = value_of(x[r, x0 + i])
                dst[r, dst0 + i] = rounded(dst, gate / (one + exp(-gate)) * value_of(x[r, x0 + cols + i]))
        elif activation == 1:
            for i in range(cols):
                gate = value_of(x[r, x0 + i])
                share = half * gate * (one + erf(gate / np.float32(1.4142135623730951)))
                dst[r, dst0 + i] = rounded(dst, share * value_of(x[r, x0 + cols + i]))
        else:
            for i in range(cols):
                gate = value_of(x[r, x0 + i])
                inner = np.float32(0.7978845608028654) * (gate + np.float32(0.044715) * gate * gate * gate)
                # half * (1 + tanh(y)) is 1 / (1 + exp(-2y)), without the cancellation
                share = gate / (one + exp(np.float32(-2) * inner))
                dst[r, dst0 + i] = rounded(dst, share * value_of(x[r, x0 + cols + i]))
    return -1


@kernel
def add(dst, dst0, a, a0, b, b0, cols, first, last):
    """Rows first..last of dst = a + b."""
    for r in range(first, last):
        for i in range(cols):
            dst[r, dst0 + i] = rounded(dst, value_of(a[r, a0 + i]) + value_of(b[r, b0 + i]))
    return -1


@kernel
def scale(dst, dst0, x, x0, cols, factor, first, last):
    """Rows first..last of dst = x * factor."""
    for r in range(first, last):
        for i in range(cols):
            dst[r, dst0 + i] = rounded(dst, value_of(x[r, x0 + i]) * factor)
    return -1


@kernel
def add_into(dst, src):
    """dst += src over two runs of one length: summed in float32 and rounded once, as a recv-reduce does."""
    for i in range(dst.size):
        dst[i] = rounded(dst, value_of(dst[i]) + value_of(src[i]))
