"""Halves: a step's tokens dealt into two micro-batches that one program works on, each under its own names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from .layer_loads import LayerLoads
from .lowering.passes.overlap import SECOND
from .portions import Portion, portions
from .scheduler import Entry, Step

if TYPE_CHECKING:
    from .plan import JobPlan


def halves(plan: JobPlan, step: Step) -> tuple[Step, ...]:
    """The two halves of a step, or the step itself where its exchanges are not overlapped."""
    if not plan.overlap:
        return (step,)
    dealt: tuple[list[Entry], list[Entry]] = ([], [])
    by_replica: dict[int, list[Entry]] = {}
    for entry in step.entries:
        by_replica.setdefault(plan.layout.holders_of(entry.request).start, []).append(entry)
    for entries in by_replica.values():
        for kept, own in zip(dealt, _dealt(entries), strict=True):
            kept += own
    return tuple(replace(step, entries=tuple(own)) for own in dealt)


def _dealt(entries: list[Entry]) -> tuple[list[Entry], list[Entry]]:
    """The first half of a replica's tokens, rounded up, and the rest.

    A sequence that lies across the middle is cut: its later tokens see what the first half has written by then, as a
    prompt's second chunk does.
    """
    left = -(-sum(entry.count for entry in entries) // 2)
    first, second = list[Entry](), list[Entry]()
    for entry in entries:
        here = min(left, entry.count)
        left -= here
        if here == entry.count:
            first.append(entry)
            continue
        if here:
            first.append(replace(entry, count=here, emits=False))
        second.append(replace(entry, start=entry.start + here, count=entry.count - here))
    return first, second


def half_portions(plan: JobPlan, step: Step) -> list[Portion]:
    """The portions of every holder in each half of a step."""
    return [portion for half in halves(plan, step) for portion in portions(plan, half)]


def loads_of_half(loads: Mapping[str, LayerLoads], half: int) -> Mapping[str, LayerLoads]:
    """The loads of one half by the names that the first half calls them."""
    if half:
        return {name.removesuffix(SECOND): own for name, own in loads.items() if name.endswith(SECOND)}
    return {name: own for name, own in loads.items() if not name.endswith(SECOND)}


def whole_loads(loads: Mapping[str, LayerLoads]) -> Mapping[str, LayerLoads]:
    """The loads of both halves together."""
    second = loads_of_half(loads, 1)
    if not second:
        return loads
    summed: dict[tuple[int, int], LayerLoads] = {}  # layers of equal loads share an object
    found: dict[str, LayerLoads] = {}
    for name, own in loads_of_half(loads, 0).items():
        key = id(own), id(second[name])
        if key not in summed:
            summed[key] = LayerLoads(own.layout, np.add(own.loads, second[name].loads))
        found[name] = summed[key]
    return found
