"""Alignment: a job's numbers against the reference, layer by layer, and the first layer that drifts."""

from __future__ import annotations

import time
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from ..isa.errors import ConfigError, NotYetError
from .align_ask import PLAIN, AlignAsk
from .align_sequences import Asked, sequences_of
from .computed import Ours, compute, joined, places_of, through
from .curve import drift_curve
from .drift import TOLERANCE_OF, Outputs, bounds_of, compare, drifts
from .extremes import LARGE, enlarged, ordinary
from .held_cache import cache_codes
from .held_inputs import input_codes
from .held_reference import held_checkpoint
from .job import Job
from .judging import Judged, Sides, choice_hints, hints, judge, with_rounding
from .prepare import Prepared, prepare
from .quantised_weights import DEQUANTISED
from .reference import Reference, open_reference, routers_in
from .report import OutOfRange
from .report_align import AlignReport, Bucket, ExtremeCase, SideReport, TextReport, Verdict
from .report_document import HostReport
from .scheduler import Request
from .summary import NOT_MODELLED, card_part, cluster_part, layout_part, model_part
from .texts import perplexity

PACKING = ("weights", "group", "activations", "calibrate")  # options of a job that a baseline goes without


@dataclass(frozen=True)
class _Aligned:
    """One job through the cards and through the reference."""

    ours: Ours
    requests: list[Request]
    sides: Sides
    judged: Judged
    tolerance: float
    reference: str


def align(job: Job, ask: AlignAsk = PLAIN) -> AlignReport:
    """Run a job's sequences (prefill and cached decode) on the cards, then the same tokens through the reference.

    Where an error passes the tolerance of the format, the reference runs once more in that format: how far rounding
    moves this model on these tokens is what our own error is then held against, so that neither a model that magnifies
    rounding raises an alarm nor a fault hides below one tolerance for all models.
    """
    started = time.perf_counter()
    asked = sequences_of(job, ask)
    if job.overlap:
        raise NotYetError("--overlap with align comes with a later version: halves leave a layer in turn; leave it out")
    prepared = prepare(asked.job)
    baseline = _baseline(prepared, asked, ask)
    found = _align(prepared, ask)
    sides = _beside(prepared, found, baseline, asked, ask)
    cases = _cases(asked, found, ask)
    curve = _curve(found, ask)
    first = _first(found, cases, curve)
    longest = max(request.length for request in found.requests)
    return AlignReport(
        model=model_part(prepared),
        card=card_part(prepared.plan.card),
        cluster=cluster_part(prepared),
        layout=layout_part(prepared.plan.layout),
        reference=found.reference,
        positions=len(found.sides.places),
        layers=tuple(found.judged.layers),
        logits=found.judged.logits,
        first_drift=first,
        tolerance=found.tolerance,
        tolerance_of=TOLERANCE_OF,
        verdict=_verdict(first),
        keys=tuple(found.judged.keys),
        routing=found.judged.routing(ask.forced_routing, len(found.sides.places)),
        cost=sides.get("cost"),
        baseline=sides.get("baseline"),
        text=_text(asked, found),
        extremes=cases,
        curve=curve,
        not_finite=found.ours.not_finite,
        saturated=found.ours.saturated,
        warnings=(
            *prepared.warnings,
            *hints(first, found.judged.routers, ask.forced_routing),
            *choice_hints(first, prepared.plan.graph, longest, bounds_of(prepared.plan)[0], ask.forced_routing),
        ),
        not_modelled=NOT_MODELLED,
        host=HostReport(wall_s=time.perf_counter() - started),
    )


def _align(prepared: Prepared, ask: AlignAsk) -> _Aligned:
    """Both sides of a job, judged."""
    checkpoint = held_checkpoint(prepared.plan, prepared.checkpoint)
    reference = open_reference(checkpoint)  # first, for it may be missing
    if ask.forced_routing:
        _check_forcing(prepared, reference)
    ours, requests = compute(prepared)
    choices = ours if ask.forced_routing else None
    reference.quantise_inputs(input_codes(prepared.plan, ours.input_scales))
    reference.code_cache(cache_codes(prepared.plan))
    rounding, tolerance = bounds_of(prepared.plan)

    def rounded() -> Outputs:
        reference.show_rounding(rounding)
        return through(reference, requests, prepared.cached, choices)

    theirs = through(reference, requests, prepared.cached, choices)
    routers = routers_in(prepared.plan.graph)
    sides = Sides(joined(ours, requests), theirs, None, places_of(requests), routers, ask.forced_routing)
    sides = with_rounding(sides, tolerance, rounded)
    name = reference.name if checkpoint is prepared.checkpoint else f"{reference.name}, on the weights as held"
    return _Aligned(ours, requests, sides, judge(sides, tolerance), tolerance, name)


def _check_forcing(prepared: Prepared, reference: Reference) -> None:
    """ConfigError where there is no routing to force, or no way to."""
    routers = routers_in(prepared.plan.graph)
    if not routers and not any(getattr(layer.attention, "top_k", 0) for layer in prepared.plan.graph.layers):
        raise ConfigError(f"--forced-routing: {prepared.plan.graph.name} has no experts; leave it out")
    if missing := sorted(set(routers) - reference.routed_layers):
        raise ConfigError(
            f"--forced-routing: {reference.name} cannot be told which experts to take in layer {missing[0]} of "
            f"{prepared.plan.graph.name}; leave it out"
        )


def _baseline(prepared: Prepared, asked: Asked, ask: AlignAsk) -> Prepared | None:
    """The same sequences in a plain dtype; ConfigError where that is the job itself."""
    dtype = ask.baseline_dtype
    if dtype is None:
        return None
    plan = prepared.plan
    if plan.dtype.name == plan.kv_dtype.name == dtype and not plan.holding.is_packed:
        raise ConfigError(f"--baseline {dtype} is the run itself; give --weights or another --dtype, or leave it out")
    changes: dict[str, Any] = {field.name: None for field in fields(Job) if field.name in PACKING}
    if prepared.checkpoint.packed:
        changes["weights"] = DEQUANTISED
    return prepare(replace(asked.job, **changes | {"dtype": dtype, "kv_dtype": dtype}))


def _beside(
    prepared: Prepared, found: _Aligned, baseline: Prepared | None, asked: Asked, ask: AlignAsk
) -> dict[str, SideReport]:
    """What quantising the weights costs, and what a plain run does, both against the checkpoint's own weights."""
    scheme = prepared.plan.holding.scheme
    if scheme is None and baseline is None:
        return {}
    theirs, against = found.sides.theirs, found.reference
    if scheme is not None:
        reference = open_reference(prepared.checkpoint)
        choices = found.ours if ask.forced_routing else None
        theirs = through(reference, found.requests, prepared.cached, choices)
        against = f"{reference.name}, on the checkpoint's own weights"

    def side(of: str, mine: Outputs) -> SideReport:
        layers, logits = compare(mine, theirs)
        read = None if asked.windows is None else perplexity(asked.windows, mine.logits)
        return SideReport(of=of, against=against, layers=tuple(layers), logits=logits, perplexity=read)

    reports = {}
    if scheme is not None:
        reports["cost"] = side(f"{scheme.name} weights, {prepared.plan.dtype.name}", found.sides.mine)
    if baseline is not None:
        ours, requests = compute(baseline, found.requests)
        reports["baseline"] = side(f"{baseline.plan.dtype.name} on the same cards", joined(ours, requests))
    return reports


def _text(asked: Asked, found: _Aligned) -> TextReport | None:
    windows = asked.windows
    if windows is None:
        return None
    return TextReport(
        tokens=windows.scored,
        windows=len(windows.ids),
        window=windows.size,
        stride=windows.stride,
        perplexity=perplexity(windows, found.sides.mine.logits),
        reference_perplexity=perplexity(windows, found.sides.theirs.logits),
    )


def _cases(asked: Asked, found: _Aligned, ask: AlignAsk) -> tuple[ExtremeCase, ...]:
    """Every extreme sequence judged by itself, and one more with large activations."""
    if not asked.extremes:
        return ()
    owners = np.array([request for request, _ in found.sides.places])
    cases = []
    for index, extreme in enumerate(asked.extremes):
        rows = np.flatnonzero(owners == index)
        judged = judge(found.sides.at(rows), found.tolerance, found.judged.typical)
        first = found.ours.not_finite
        cases.append(_case(extreme.name, judged, len(rows), first if first and first.request == index else None))
    prepared = prepare(replace(asked.job, prompt_ids=(ordinary(asked.extremes),)))
    checkpoint, factor = enlarged(prepared.checkpoint)
    large = _align(replace(prepared, checkpoint=checkpoint), ask)
    name = f"{LARGE} (embedding x {factor:g})"
    return (*cases, _case(name, large.judged, len(large.sides.places), large.ours.not_finite))


def _case(name: str, judged: Judged, positions: int, not_finite: OutOfRange | None) -> ExtremeCase:
    first = judged.first_drift
    return ExtremeCase(
        name=name,
        positions=positions,
        verdict=_verdict(first),
        first_drift=first,
        logits=judged.logits,
        not_finite=not_finite,
    )


def _verdict(first: str | None) -> Verdict:
    return "aligned" if first is None else "drifted"


def _curve(found: _Aligned, ask: AlignAsk) -> tuple[Bucket, ...]:
    if ask.drift is None:
        return ()
    sides = found.sides
    return drift_curve(sides.mine, sides.theirs, sides.rounded, sides.places, ask.drift)


def _first(found: _Aligned, cases: tuple[ExtremeCase, ...], curve: tuple[Bucket, ...]) -> str | None:
    """The first part that is wrong: over all positions, in an extreme case alone, or in some positions alone."""
    if found.judged.first_drift is not None:
        return found.judged.first_drift
    for case in cases:
        if case.first_drift is not None:
            return f"{case.first_drift} ({case.name})"
    wrong = [b for b in curve if drifts(b, found.tolerance, found.judged.typical["logits"])]
    return f"logits of positions {wrong[0].start} to {wrong[0].stop - 1}" if wrong else None
