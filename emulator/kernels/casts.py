"""Float32 to the codes of 8-bit types: the Numba twins of isa's quantisers, by the card's rules."""

# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import numpy as np

from .inline import kernel, value_of

# (mantissa bits, exponent bias, largest code, code beyond it if it does not saturate, NaN) by element type.
FLOATS = {"fp8_e4m3": (3, 7, 0x7E, 0x7F, 0x7F), "fp8_e5m2": (2, 15, 0x7B, 0x7C, 0x7E)}


@kernel
def float_code(value, mantissa, bias, largest, beyond, nan, truncates, flushes):
    """The code of a small float nearest to a float32 (`truncates`: towards zero); `flushes`: no subnormals."""
    sign = np.int32(0x80) if np.signbit(value) else np.int32(0)
    magnitude = abs(value)
    if magnitude != magnitude:
        return sign | nan
    if magnitude == np.float32(np.inf):
        return sign | beyond
    exponent = max(np.int32(np.floor(np.log2(magnitude))) if magnitude > 0 else np.int32(-200), 1 - bias)
    step = np.float32(2.0) ** np.float32(exponent - mantissa)
    scaled = magnitude / step  # exact: a quotient by a power of two
    if scaled >= np.float32(2 << mantissa):  # the logarithm was rounded down
        exponent += 1
        scaled *= np.float32(0.5)
    elif scaled < np.float32(1 << mantissa) and exponent > 1 - bias:
        exponent -= 1
        scaled *= np.float32(2)
    steps = np.int32(np.floor(scaled) if truncates else np.rint(scaled))
    code = ((exponent + bias - 1) << mantissa) + steps
    if code > largest:
        code = largest if truncates else beyond
    if flushes and code < (1 << mantissa):
        code = np.int32(0)
    return sign | np.int32(code)


@kernel
def row_peaks(peaks, x, x0, cols, block, phase, first, last):
    """peaks[r, b] = the largest magnitude of block b of row r; a NaN anywhere in it counts as one."""
    for r in range(first, last):
        row = x[r, x0 : x0 + cols]
        for b in range(peaks.shape[1]):
            start, stop = max(b * block - phase, 0), min((b + 1) * block - phase, cols)
            best = np.float32(0)
            for i in range(start, stop):
                value = abs(value_of(row[i]))
                if value > best or value != value:
                    best = value
                if best != best:
                    break
            peaks[r, b] = best
    return -1


@kernel
def int8_rows(dst, dst0, x, x0, cols, steps, block, phase, truncates, first, last):
    """dst = x / steps as int8; a step of zero or NaN gives 0."""
    for r in range(first, last):
        for b in range(steps.shape[1]):
            step = steps[r if steps.shape[0] > 1 else 0, b]
            for i in range(max(b * block - phase, 0), min((b + 1) * block - phase, cols)):
                scaled = value_of(x[r, x0 + i]) / step
                if step == 0 or scaled != scaled:
                    scaled = np.float32(0)
                whole = np.trunc(scaled) if truncates else np.rint(scaled)
                dst[r, dst0 + i] = np.int8(min(max(whole, np.float32(-128)), np.float32(127)))
    return -1


@kernel
def float_rows(dst, dst0, x, x0, cols, steps, block, phase, form, truncates, flushes, first, last):
    """dst = x / steps as codes of a small float; a step of zero, or a NaN of one's own, gives a code of zero."""
    mantissa, bias, largest, beyond, nan = form
    for r in range(first, last):
        for b in range(steps.shape[1]):
            step = steps[r if steps.shape[0] > 1 else 0, b]
            for i in range(max(b * block - phase, 0), min((b + 1) * block - phase, cols)):
                value = value_of(x[r, x0 + i])
                scaled = np.float32(0) if step != step else value / (step if step != 0 else np.float32(np.inf))
                code = float_code(scaled, mantissa, bias, largest, beyond, nan, truncates, flushes)
                dst[r, dst0 + i] = np.uint8(code)
    return -1


@kernel
def add_scaled(total, part, own, scales, b):
    """total[r, j] += own[r] * (scales[j, b] * part[r, j]); `own` may be one number for all rows."""
    for r in range(total.shape[0]):
        factor = own[r if own.size > 1 else 0]
        for j in range(total.shape[1]):
            total[r, j] += factor * (scales[j, b] * part[r, j])
