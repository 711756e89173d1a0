"""Curve: the error by position, in buckets, so that a drift that grows with the length shows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .choices import Place
from .drift import Outputs, drift_of, kl
from .report_align import Bucket

MOST_BUCKETS = 16


def drift_curve(
    mine: Outputs, theirs: Outputs, rounded: Outputs | None, places: Sequence[Place], tokens: int
) -> tuple[Bucket, ...]:
    """The logits' drift of the positions below `tokens`, in equal buckets of all sequences together."""
    positions = np.array([position for _, position in places])
    size = -(-tokens // min(tokens, MOST_BUCKETS))
    found = []
    for start in range(0, tokens, size):
        stop = min(start + size, tokens)
        rows = np.flatnonzero((positions >= start) & (positions < stop))
        if len(rows):
            noise = None if rounded is None else drift_of(rounded.logits[rows], theirs.logits[rows])
            found.append(_bucket(start, stop, mine.at(rows), theirs.at(rows), noise))
    return tuple(found)


def _bucket(start: int, stop: int, mine: Outputs, theirs: Outputs, noise: dict[str, float] | None) -> Bucket:
    last = max(mine.layers)
    return Bucket(
        start=start,
        stop=stop,
        positions=len(mine.logits),
        hidden_rms_rel=drift_of(mine.layers[last], theirs.layers[last])["rms_rel"],
        kl=kl(theirs.logits, mine.logits),
        argmax_agreement=float(np.mean(mine.logits.argmax(-1) == theirs.logits.argmax(-1))),
        noise_max_rel=None if noise is None else noise["max_rel"],
        noise_rms_rel=None if noise is None else noise["rms_rel"],
        **drift_of(mine.logits, theirs.logits),
    )
