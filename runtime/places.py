"""Places: which layer an instruction belongs to, and which request and position a card's token is."""

from __future__ import annotations

from ..emulator.payload import Site
from .binding import entries_by_holder
from .plan import JobPlan
from .scheduler import Entry, Step


def layer_of(plan: JobPlan, site: Site) -> int | None:
    """The layer whose block an instruction stands in; None outside the layers."""
    calls = site.image.program.calls
    blocks = [call.block.partition(".")[0] for call in calls[: site.call + 1]]
    if blocks[-1] != "layer":
        return None
    stages = plan.layout.stage_layers(len(plan.graph.layers))
    return stages[plan.layout.stage_of(site.image.rank)][blocks[:-1].count("layer")]


def speaks(plan: JobPlan, rank: int) -> bool:
    """Whether a rank is the one that is listened to where several compute the same."""
    return plan.layout.tp_index_of(rank) == 0


def entries_of(plan: JobPlan, step: Step, rank: int) -> tuple[Entry, ...]:
    """The entries of a step whose tokens a card computes, in the order of its rows."""
    return entries_by_holder(plan.layout, step)[plan.layout.holder_of(rank)]


def place_of(plan: JobPlan, step: Step, rank: int, token: int) -> tuple[int, int] | None:
    """(request, position) of a token, by its row among those of a card."""
    for entry in entries_of(plan, step, rank):
        if token < entry.count:
            return entry.request, entry.start + token
        token -= entry.count
    return None
