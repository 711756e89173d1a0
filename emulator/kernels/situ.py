"""SITU_GATED, rounding where the meaning rounds."""

# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import numpy as np
from numba import njit

from .inline import exp, kernel, rounded, value_of

_LIMIT = np.float32(7.90531110763549805)
_A1, _A3, _A5 = np.float32(4.89352455891786e-03), np.float32(6.37261928875436e-04), np.float32(1.48572235717979e-05)
_A7, _A9 = np.float32(5.12229709037114e-08), np.float32(-8.60467152213735e-11)
_A11, _A13 = np.float32(2.00018790482477e-13), np.float32(-2.76076847742355e-16)
_B0, _B2 = np.float32(4.89352518554385e-03), np.float32(2.26843463243900e-03)
_B4, _B6 = np.float32(1.18534705686654e-04), np.float32(1.19825839466702e-06)


@njit(nogil=True, error_model="numpy")
def tanh(x):
    """Hyperbolic tangent in float32 within 7 ulp, branch-free: the rational approximation of Eigen."""
    y = min(max(x, -_LIMIT), _LIMIT)
    z = y * y
    top = (((((_A13 * z + _A11) * z + _A9) * z + _A7) * z + _A5) * z + _A3) * z + _A1
    low = ((_B6 * z + _B4) * z + _B2) * z + _B0
    return x if x != x else y * top / low


@kernel
def situ_gated(dst, dst0, x, x0, cols, beta, linear_beta, first, last):
    """Rows first..last: SiTU of the first `cols` columns of x and the next `cols`."""
    one = np.float32(1)
    for r in range(first, last):
        out, gates, ups = dst[r, dst0 : dst0 + cols], x[r, x0 : x0 + cols], x[r, x0 + cols : x0 + 2 * cols]
        for i in range(out.size):
            gate = value_of(gates[i])
            bounded = beta * tanh(gate / beta) / (one + exp(-gate))
            out[i] = rounded(dst, bounded * (linear_beta * tanh(value_of(ups[i]) / linear_beta)))
    return -1
