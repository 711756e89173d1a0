"""Room for tokens that travel: how many rows may arrive at a card from all that choose its experts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from ..isa.errors import ConfigError
from ..models.fields import cut
from .dispatch import ROOM, Extents, arriving_rows, kinds, room_extents, travels
from .halves import half_portions, loads_of_half
from .lowering.experts import received_extent, sent_extent
from .routing import Even
from .scheduler import Step

if TYPE_CHECKING:
    from .plan import JobPlan


def parse_room(text: str | None) -> float | None:
    """What `--expert-room` says: a multiple of an even share, infinity for `full`."""
    if text is None:
        return None
    try:
        room = math.inf if text == "full" else float(text)
    except ValueError:
        room = math.nan
    if math.isnan(room) or room < 1 or (math.isinf(room) and text != "full"):
        raise ConfigError(
            f"--expert-room {cut(text)!r} must be a number, 1 (an even share) or more, or full: all that can arrive"
        )
    return room


def expert_room(plan: JobPlan, tokens: int) -> Extents:
    """The scalar extents of the most rows that leave and arrive, where no holder has more than so many tokens.

    Without a given room it is that of `room_extents`, and where a routing model says beforehand that more rows arrive
    in some step, it is as many: buffers of a prefill are made when counts are known (as DeepEP's normal mode does),
    those of a small decode step hold all that can arrive (as its low-latency mode's do).
    """
    graph, layout = plan.graph, plan.layout
    found = room_extents(graph, layout, tokens, ROOM if plan.expert_room is None else plan.expert_room)
    if not travels(graph, layout) or plan.expert_room is not None or plan.routing is None:
        return found
    if isinstance(plan.routing, Even):
        return found  # no card gets twice its share
    for step in _steps(plan):
        most = room_extents(graph, layout, max(portion.tokens for portion in half_portions(plan, step)), math.inf)
        if any(most[name] > found[name] for name in found):
            loads = plan.routed(step)
            for own in (loads_of_half(loads, half) for half in range(1 + plan.overlap)):
                for name, rows in arriving_rows(graph, layout, own).items():
                    found[name] = (max(found[name][0], rows),)
        elif step.kind == "decode":
            break  # later steps are never larger
    return found


def _steps(plan: JobPlan) -> Iterator[Step]:
    """The steps of a job; those of micro-batches that only decode come last."""
    lanes = plan.lanes(plan.requests())
    while (step := lanes.next_step()) is not None or lanes.in_flight:
        if step is None:
            lanes.complete(lanes.oldest, None)
        else:
            yield step


def with_proportional_room(plan: JobPlan) -> JobPlan:
    """The plan with the room that its routing asks for as a multiple of an even share, for jobs of other lengths."""
    if plan.routing is None or isinstance(plan.routing, Even):
        return plan
    largest = plan.largest.extents
    usual, factor = room_extents(plan.graph, plan.layout, largest["tokens"][0]), ROOM
    for top_k, slots in kinds(plan.graph):
        total = plan.layout.slots(slots) * plan.layout.cuts
        name = received_extent(top_k, total)
        if name in usual and largest[name] > usual[name]:
            factor = max(factor, largest[name][0] / largest[sent_extent(top_k)][0])
    return replace(plan, routing=None, expert_room=max(factor, plan.expert_room or factor))
