"""Whole-number arithmetic over arrays whose products need more than 64 bits, exact."""

from __future__ import annotations

from typing import Any

import numpy as np

from .solver import Ints

MOST = float(1 << 62)  # of a quotient


def divided(a: Any, b: Any, c: Any) -> tuple[Ints, Ints]:
    """a * b divided by c, lane by lane: (quotient rounded down, remainder); all are int64, and c is above 0.

    Quotients must stay below 2^62: OverflowError. A first guess in floats is wrong by no more than a few 2^-52 of
    itself, so what is left of the product fits 64 bits although the product does not, and says how wrong it was.
    """
    a, b, c = (np.asarray(value, np.int64) for value in (a, b, c))
    estimate = a.astype(np.float64) * b / c
    if estimate.size and np.abs(estimate).max() >= MOST:
        raise OverflowError("a quotient needs more than 62 bits")
    guess = estimate.astype(np.int64)
    with np.errstate(over="ignore"):  # both products wrap around, and their difference is right
        left = a * b - guess * c
    more, rest = np.divmod(left, c)
    return guess + more, rest


def rounded_up(a: Any, b: Any, c: Any) -> Ints:
    """a * b / c, rounded up."""
    whole, rest = divided(a, b, c)
    up: Ints = whole + (rest > 0)
    return up
