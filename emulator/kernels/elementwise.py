"""ROPE, GATED, ADD and SCALE, and the addition that a recv-reduce performs."""

# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import numpy as np

from .inline import erf, exp, kernel, rounded, value_of

ACTIVATIONS = {"silu": 0, "gelu": 1, "gelu_tanh": 2, "swiglu_oai": 3}
OAI_LIMIT, OAI_ALPHA = np.float32(7), np.float32(1.702)


@kernel
def rope(x, x0, cols, cos, cos0, sin, sin0, positions, head_dim, half, interleaved, first, last):
    """Rows first..last rotated in place; returns the row whose position is in no table, or -1."""
    for r in range(first, last):
        position = positions[r]
        if position < 0 or position >= cos.shape[0]:
            return r
        across, along = cos[position, cos0 : cos0 + half], sin[position, sin0 : sin0 + half]
        for at in range(x0, x0 + cols, head_dim):
            if interleaved:
                head = x[r, at : at + 2 * half]
                for i in range(half):
                    a, b = value_of(head[2 * i]), value_of(head[2 * i + 1])
                    c, s = value_of(across[i]), value_of(along[i])
                    head[2 * i] = rounded(x, a * c - b * s)
                    head[2 * i + 1] = rounded(x, b * c + a * s)
            else:
                low, high = x[r, at : at + half], x[r, at + half : at + 2 * half]
                for i in range(half):
                    a, b = value_of(low[i]), value_of(high[i])
                    c, s = value_of(across[i]), value_of(along[i])
                    low[i] = rounded(x, a * c - b * s)
                    high[i] = rounded(x, b * c + a * s)
    return -1


@kernel
def gated(dst, dst0, x, x0, cols, activation, first, last):
    """Rows first..last: activation of the first `cols` columns of x times the next `cols`."""
    one, half = np.float32(1), np.float32(0.5)
    for r in range(first, last):
        out, gates, ups = dst[r, dst0 : dst0 + cols], x[r, x0 : x0 + cols], x[r, x0 + cols : x0 + 2 * cols]
        if activation == 0:
            for i in range(out.size):
                gate = value_of(gates[i])
                out[i] = rounded(dst, gate / (one + exp(-gate)) * value_of(ups[i]))
        elif activation == 1:
            for i in range(out.size):
                gate = value_of(gates[i])
                share = half * gate * (one + erf(gate / np.float32(1.4142135623730951)))
                out[i] = rounded(dst, share * value_of(ups[i]))
        elif activation == 3:
            for i in range(out.size):
                gate = min(value_of(gates[i]), OAI_LIMIT)
                up = min(max(value_of(ups[i]), -OAI_LIMIT), OAI_LIMIT)
                out[i] = rounded(dst, gate / (one + exp(-OAI_ALPHA * gate)) * (up + one))
        else:
            for i in range(out.size):
                gate = value_of(gates[i])
                inner = np.float32(0.7978845608028654) * (gate + np.float32(0.044715) * gate * gate * gate)
                # half * (1 + tanh(y)) is 1 / (1 + exp(-2y)), without the cancellation
                share = gate / (one + exp(np.float32(-2) * inner))
                out[i] = rounded(dst, share * value_of(ups[i]))
    return -1


@kernel
def sigmoid_gate(dst, dst0, x, x0, gate, gate0, cols, shared, first, last):
    """Rows first..last of dst = x * sigmoid(gate); a `shared` gate is one column for the row."""
    one = np.float32(1)
    for r in range(first, last):
        out, row = dst[r, dst0 : dst0 + cols], x[r, x0 : x0 + cols]
        if shared:
            share = one / (one + exp(-value_of(gate[r, gate0])))
            for i in range(out.size):
                out[i] = rounded(dst, value_of(row[i]) * share)
        else:
            gates = gate[r, gate0 : gate0 + cols]
            for i in range(out.size):
                out[i] = rounded(dst, value_of(row[i]) * (one / (one + exp(-value_of(gates[i])))))
    return -1


@kernel
def add(dst, dst0, a, a0, b, b0, cols, first, last):
    """Rows first..last of dst = a + b."""
    for r in range(first, last):
        out, left, right = dst[r, dst0 : dst0 + cols], a[r, a0 : a0 + cols], b[r, b0 : b0 + cols]
        for i in range(out.size):
            out[i] = rounded(dst, value_of(left[i]) + value_of(right[i]))
    return -1


@kernel
def scale(dst, dst0, x, x0, cols, factor, first, last):
    """Rows first..last of dst = x * factor."""
    for r in range(first, last):
        out, row = dst[r, dst0 : dst0 + cols], x[r, x0 : x0 + cols]
        for i in range(out.size):
            out[i] = rounded(dst, value_of(row[i]) * factor)
    return -1


@kernel
def add_into(dst, src):
    """dst += src over two runs of one length: summed in float32 and rounded once, as a recv-reduce does."""
    for i in range(dst.size):
        dst[i] = rounded(dst, value_of(dst[i]) + value_of(src[i]))
