"""Shares of many activities that ask the same few resources for different amounts: `shares.share_of` in lanes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .activity import PS_PER_S
from .resources import COEFFICIENT_BITS, ROOM_LIMIT, Resource
from .shares import MAX_ALONE_PS
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
    bound, rates = np.ones_like(alone_ps), np.zeros_like(amounts)
    best = np.full(len(alone_ps), -1)
    try:
        for number, resource in enumerate(resources):
            asks = amounts[:, number] > 0
            rates[:, number] = rate = np.where(asks, _rate(resource, amounts[:, number], alone_ps), 0)
            better = asks & _busier(resources, number, rate, best, bound)
            best, bound = np.where(better, number, best), np.where(better, rate, bound)
        scaled = np.maximum(1, divided(rates, 1 << COEFFICIENT_BITS, bound[:, None])[0])
    except OverflowError:
        return None
    coefficients = np.where(rates > 0, scaled, 0)
    if (coefficients.astype(np.float64) * bound[:, None]).max(initial=0) >= ROOM_LIMIT / 2:
        return None
    return LaneShares(bound, coefficients, coefficients * bound[:, None])


def _rate(resource: Resource, amounts: Ints, alone_ps: Ints) -> Ints:
    """As `shares.scaled_rate`."""
    per_s = np.maximum(1, divided(amounts, PS_PER_S, alone_ps)[0])
    shift = resource.shift
    if shift > 0 and int(per_s.max()) >> (62 - shift):
        raise OverflowError("a rate needs more than 62 bits")
    rate: Ints = np.maximum(1, per_s << shift if shift >= 0 else per_s >> -shift)
    return rate


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
