"""Rehearsal: the steps of a job as its lengths alone decide them, up to the first that only decodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .halves import half_portions
from .portions import Portion
from .scheduler import Entry, Step

if TYPE_CHECKING:
    from .plan import JobPlan


def rehearsed_portions(plan: JobPlan) -> list[Portion]:
    """What every holder computes of the steps up to the first that only decodes, and of those that fill caches."""
    steps = list(plan.opening)
    if plan.fills:
        most = max(step.tokens for step in steps)
        for request in plan.asked:
            for start in range(0, request.cached_len, most):
                count = min(most, request.cached_len - start)
                steps.append(Step(0, "prefill", (Entry(request.index, start, count, False),)))
    if plan.chooses and plan.layout.cp > 1:  # whose decode steps gather contexts, which grow
        last = [(request.index, request.most_kv_tokens - 1) for request in plan.asked]
        steps.append(Step(0, "decode", tuple(Entry(index, start, 1, True) for index, start in last)))
    return [portion for step in steps for portion in half_portions(plan, step)]


def steps_until_decode(plan: JobPlan) -> tuple[Step, ...]:
    """Steps of every micro-batch up to its first that only decodes: later ones are never larger.

    Where no context is spread, which depends on the request, those that come again are left out.
    """
    steps: list[Step] = []
    for scheduler in plan.lanes(plan.requests()).schedulers:
        while (step := scheduler.next_step()) is not None:
            steps.append(step)
            if step.kind == "decode":
                break
            scheduler.complete(step, None)
            if plan.layout.cp == 1:
                scheduler.skip_rounds()
    return tuple(steps)
