"""Places: which layer an instruction belongs to, and which request and position a card's token is."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from .lowering.passes.overlap import carried_here, is_second
from .plan import JobPlan
from .portions import portions
from .scheduler import Step

if TYPE_CHECKING:  # kernels, which a run without numbers does without
    from ..emulator.payload import Site


def layer_of(plan: JobPlan, site: Site) -> int | None:
    """The layer whose block an instruction stands in; None outside the layers."""
    calls = site.image.program.calls
    blocks = [call.block.partition(".")[0] for call in calls[: site.call + 1 - _is_carried(plan, site)]]
    if blocks[-1] != "layer":
        return None
    stages = plan.layout.stage_layers(len(plan.graph.layers))
    return stages[plan.layout.stage_of(site.image.rank)][blocks[:-1].count("layer")]


def _is_carried(plan: JobPlan, site: Site) -> bool:
    """Whether an instruction ends, for the second half of a step, what the call before began."""
    if not plan.overlap or not is_second(site.instruction):
        return False
    before = sum(is_second(issue.instruction) for issue in site.block.body[: site.position])
    return before < carried_here(site.image.program, site.call)


def speaks(plan: JobPlan, rank: int) -> bool:
    """Whether a rank is the one that is listened to where several compute the same."""
    return plan.layout.tp_index_of(rank) == 0


def spans_of(plan: JobPlan, step: Step, rank: int) -> Iterator[tuple[int, range]]:
    """(request, positions) of the tokens that a card computes in a step, in the order of its rows."""
    portion = portions(plan, step)[plan.layout.holder_of(rank)]
    for entry, spans in zip(portion.entries, portion.spans, strict=True):
        yield from ((entry.request, span) for span in spans)


def place_of(plan: JobPlan, step: Step, rank: int, token: int) -> tuple[int, int] | None:
    """(request, position) of a token, by its row among those of a card."""
    portion = portions(plan, step)[plan.layout.holder_of(rank)]
    return next(islice(portion.places(), token, None), None)
