"""Boundaries: the last job that fits and the first that does not, each emulated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from ..emulator.hbm import OutOfMemory
from ..isa.errors import ConfigError
from .expert_room import with_proportional_room
from .fits import MOST_SEQUENCES, replay, shortest_context, with_batch, with_context
from .plan import JobPlan
from .prepare import Prepared
from .report import Fits
from .report_limits import Boundary, Broken, Held
from .run import start_run, time_step
from .scheduler import StepKind


def emulate(prepared: Prepared, value: int) -> Held | Broken:
    """Every allocation of a job as a run makes them, and if all are given its first step in time.

    `value` is the size that the boundary is of.
    """
    plan = prepared.plan
    layout, memory = str(plan.layout), plan.memory(plan.alike)
    try:
        replay(plan, memory)
    except OutOfMemory as error:
        return _broken(error, value, layout)
    card = max(memory.hbm, key=lambda rank: (memory.hbm[rank].high_water_bytes, -rank))
    state = start_run(prepared)
    step = plan.lanes(state.requests).next_step()
    assert step is not None, "a job has a step"
    step_ps, untimed = None, None
    try:
        record = time_step(state, step)
        step_ps = record.end_ps - record.start_ps
    except ConfigError as error:  # a routing model sends more rows to a card than there is room for
        untimed = str(error)
    return Held(
        value=value,
        layout=layout,
        card=card,
        peak_bytes=memory.hbm[card].peak_bytes,
        step_kind=step.kind,
        step_ps=step_ps,
        untimed=untimed,
    )


def _broken(error: OutOfMemory, value: int, layout: str) -> Broken:
    assert error.card is not None, "whoever knows the card writes it in"
    kind: StepKind = error.step_kind or "prefill"
    return Broken(
        value=value,
        layout=layout,
        card=int(error.card.removeprefix("card ")),
        step=error.step,
        step_kind="load" if error.step is None else kind,
        request=None if error.request is None else int(error.request),
        tag=error.tag,
        owner=error.owner,
        requested_bytes=error.requested_bytes,
        missing_bytes=error.missing_bytes,
        by_tag=error.by_tag,
    )


def with_plan(prepared: Prepared, plan: JobPlan) -> Prepared:
    """The same job over a plan of other sequences; they have no tokens, for nothing is computed."""
    none = ((),) * len(plan.sequences)
    return replace(prepared, plan=plan, ids=none, cached=none)


def boundaries(prepared: Prepared, fits: Fits) -> tuple[Boundary, ...]:
    """The largest batch and context that were found, and what comes after them, emulated."""
    roomy = with_proportional_room(prepared.plan)
    longest = prepared.plan.graph.max_position_embeddings

    def at(plan_of: Callable[[JobPlan, int], JobPlan]) -> Callable[[int], Held | Broken]:
        def emulated(value: int) -> Held | Broken:
            return emulate(with_plan(prepared, replace(plan_of(roomy, value), routing=prepared.plan.routing)), value)

        return emulated

    whole = f"{longest:,} tokens are all positions of {roomy.graph.name}"
    return (
        _boundary("batch", at(with_batch), fits.largest_batch, 1, MOST_SEQUENCES, "a job has no more sequences"),
        _boundary("context", at(with_context), fits.largest_context, shortest_context(roomy), longest, whole),
    )


def _boundary(
    of: Literal["batch", "context"],
    at: Callable[[int], Held | Broken],
    found: int | None,
    least: int,
    most: int,
    end: str,
) -> Boundary:
    """Both sides of what the search found; the emulation must agree with it."""
    last = at(found) if found else None
    first = at(found + 1 if found else least) if found != most else None
    assert not isinstance(last, Broken) and not isinstance(first, Held), f"{of}: {found} is no boundary"
    return Boundary(of=of, last=last, first=first, end=end if first is None else None)
