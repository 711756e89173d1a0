"""SOFTMAX, ARGMAX and SAMPLE: what turns a row of scores into weights or a choice."""

# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import numpy as np

from ...isa.instruction import Array
from ...isa.vector import uniform
from .inline import exp, kernel, largest, rounded, value_of

_BLOCK = 256  # columns that argmax compares at once before it looks where the largest stands


@kernel
def _count_nan(run):
    count = 0
    for i in range(run.size):
        count += 1 if run[i] != run[i] else 0
    return count


@kernel(fastmath={"reassoc", "nsz"})
def _exponentials(run, best):
    total = np.float32(0)
    for i in range(run.size):
        weight = exp(run[i] - best)
        run[i] = weight
        total += weight
    return total


@kernel
def softmax(dst, dst0, x, x0, cols, first, last):
    """Rows first..last of dst = exp(x - max) / sum, in float32."""
    run = np.empty(cols, np.float32)
    for r in range(first, last):
        out, row = dst[r, dst0 : dst0 + cols], x[r, x0 : x0 + cols]
        for i in range(run.size):
            run[i] = value_of(row[i])
        total = _exponentials(run, largest(run))
        for i in range(run.size):
            out[i] = rounded(dst, run[i] / total)
    return -1


@kernel
def argmax(dst, x, x0, cols, first, last):
    """Rows first..last: the first index of the largest element, or of the first NaN, as np.argmax has it."""
    run = np.empty(cols, np.float32)
    for r in range(first, last):
        row = x[r, x0 : x0 + cols]
        for i in range(run.size):
            run[i] = value_of(row[i])
        best, at = np.float32(-np.inf), 0
        for low in range(0, cols, _BLOCK):
            high = min(low + _BLOCK, cols)
            if _count_nan(run[low:high]):
                at = low
                while run[at] == run[at]:
                    at += 1
                break
            top = largest(run[low:high])
            if top > best:
                best, at = top, low
                while run[at] != top:
                    at += 1
        dst[r] = at
    return -1


@kernel
def sort_keys(keys, values, x, x0, r):
    """A uint64 for each column whose ascending order is falling score, ties by index; and the values.

    Returns how many columns are NaN, which have no place in that order.
    """
    strange = 0
    row = x[r, x0 : x0 + keys.size]
    for i in range(keys.size):
        values[i] = value_of(row[i]) + np.float32(0)  # makes one zero of the two
    bits = values.view(np.int32)
    for i in range(keys.size):
        strange += 1 if values[i] != values[i] else 0
        rising = np.int64(bits[i]) if bits[i] >= 0 else -np.int64(bits[i] & 0x7FFFFFFF)
        keys[i] = np.uint64(np.int64(1 << 31) - rising) << np.uint64(31) | np.uint64(i)
    return strange


def sample(keys: Array, values: Array, key: int, temperature: float, top_k: int, top_p: float) -> int:
    """The column that a seeded draw takes, from `sort_keys` of a row; the same fp64 sums as SAMPLE's meaning.

    Only as many keys as top_k asks for are sorted. exp and the sums are NumPy's own, so that no bit differs.
    """
    if top_k and top_k < len(keys):
        keys = np.partition(keys, top_k - 1)[:top_k]
    order = np.sort(keys) & np.uint64(0x7FFFFFFF)
    scores = values[order].astype(np.float64)
    with np.errstate(over="ignore"):  # a temperature near 0 takes all but the best to minus infinity
        mass = np.exp((scores - scores[0]) / temperature)
    mass /= mass.sum()
    total = np.cumsum(mass)
    keep = int(np.searchsorted(total, top_p)) + 1
    total = total[: min(keep, len(total))]
    place = int(np.searchsorted(total, uniform(key) * total[-1], side="right"))
    return int(order[min(place, len(total) - 1)])
