"""Shares of many activities that ask the same few resources for different amounts: `shares.share_of` in lanes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .resources import Resource
from .shares import MAX_ALONE_PS, coefficients_of, scaled_rates
from .solver import Ints
from .wide import divided

Flags = np.ndarray[Any, np.dtype[np.bool_]]


class LaneShares(NamedTuple):
    """Bounds [lanes], and by resource [lanes, resources] what an activity uses; 0 in all where it asks nothing."""

    bounds: Ints
    coefficients: Ints
    loads: Ints


def lane_shares(alone_ps: Ints, resources: Sequence[Resource], amounts: Ints) -> LaneShares | None:
    """The share of every lane; None where one of them is not well formed or its rate too high to be counted.

    `amounts` is [lanes, resources], 0 where a lane asks nothing of one; `alone_ps` is above 0. All resources are
    bounded.
    """
    if not len(alone_ps):
        return LaneShares(alone_ps, amounts, amounts)
    if alone_ps.min() < 1 or alone_ps.max() >= MAX_ALONE_PS or amounts.min() < 0:
        return None
    bound, best, asks = np.ones_like(alone_ps), np.full(len(alone_ps), -1), amounts > 0
    try:
        rates = scaled_rates(amounts, alone_ps[:, None], np.array([resource.shift for resource in resources]))
        for number in range(len(resources)):
            rate = rates[:, number]
            better = asks[:, number] & _busier(resources, number, rate, best, bound)
            best, bound = np.where(better, number, best), np.where(better, rate, bound)
    except OverflowError:
        return None
    coefficients = np.where(asks, coefficients_of(rates, bound[:, None]), 0)
    return LaneShares(bound, coefficients, coefficients * bound[:, None])


def _busier(resources: Sequence[Resource], number: int, rate: Ints, best: Ints, best_rate: Ints) -> Flags:
    """As `shares.is_busier`, in the lanes whose best so far is the resource of that number, or -1 for none."""
    one = resources[number]
    better: Flags = best < 0
    for other in range(number):
        held = best == other
        if not held.any():
            continue
        than = resources[other]
        if one.order != than.order:
            better |= held & (one.order < than.order)
            continue
        part, rest = divided(rate, than.nominal, one.nominal)
        more = (part > best_rate) | ((part == best_rate) & (rest > 0))
        equal = (part == best_rate) & (rest == 0) & (one.index < than.index)
        better |= held & (more | equal)
    return better
