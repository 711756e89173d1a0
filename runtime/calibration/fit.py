"""Fitting the constants of a kind to measured times: bounded, robust least squares on the logarithms of ratios."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import least_squares

from ...emulator.spec import CardSpec
from .parameters import parameters_of, places_of, tuned
from .predict import Predictor
from .tables import Array, Floats

STEP = 0.02  # of a constant's range: times jump where a library would choose another tile
SOFT = 0.1  # logarithms of ratios further from 0 than this count linearly
PRIOR_WIDTH = 0.35  # of a constant's range: how far from its default a constant is expected
MOST_EVALUATIONS = 25
Distances = Callable[[Floats], Floats]


class Sample(NamedTuple):
    """Rows to fit: what predicts their times, the times measured, and the weight of each."""

    predictor: Predictor
    measured_ps: Floats
    weights: Floats


def fit(card: CardSpec, kind: str, samples: Sequence[Sample], prior: float) -> CardSpec:
    """The card whose constants of a kind bring the predicted times nearest to the measured ones.

    Each constant is drawn to where the card has it with the strength of `prior` measured rows.
    """
    start = places_of(card, kind)
    if not parameters_of(kind) or not samples:
        return card
    measured = np.log(np.concatenate([sample.measured_ps for sample in samples]))

    def ratios(places: Floats) -> Floats:
        there = tuned(card, kind, places)
        found: Floats = np.log(np.concatenate([sample.predictor.ps(there) for sample in samples])) - measured
        return found

    return tuned(card, kind, nearest(ratios, np.concatenate([sample.weights for sample in samples]), start, prior))


def nearest(ratios: Distances, weights: Floats, start: Floats, prior: float) -> Floats:
    """The places in the unit cube [constants] at which weighted log ratios [rows] are least, drawn to `start`."""
    roots, pull = np.sqrt(weights), SOFT * np.sqrt(prior) / PRIOR_WIDTH
    known: dict[bytes, Floats] = {}

    def distances(places: Floats) -> Floats:
        key = places.tobytes()
        if key not in known:
            known[key] = np.concatenate([roots * ratios(places), pull * (places - start)])
        return known[key]

    found = least_squares(
        distances, np.clip(start, 0.0, 1.0), lambda places: _slopes(distances, places), bounds=(0, 1),
        loss="soft_l1", f_scale=SOFT, max_nfev=MOST_EVALUATIONS, xtol=1e-4, ftol=1e-4, gtol=1e-9,
    )  # fmt: skip
    best: Floats = found.x
    return best


def _slopes(distances: Distances, places: Floats) -> Array:
    """Forward differences [distances, constants], backward where the cube ends."""
    here = distances(places)
    columns = []
    for index, place in enumerate(places):
        step = STEP if place + STEP <= 1 else -STEP
        there = places.copy()
        there[index] += step
        columns.append((distances(there) - here) / step)
    return np.stack(columns, axis=1)
