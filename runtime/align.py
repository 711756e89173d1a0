"""Alignment: a job's numbers against the reference, layer by layer, and the first layer that drifts."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, replace

import numpy as np

from ..isa.instruction import Array
from .drift import TOLERANCE_OF, TOLERANCES, Outputs, coarsest, compare, first_drift, with_noise, within
from .job import Job
from .numbers import Numbers
from .prepare import Prepared, prepare
from .reference import Reference, open_reference
from .report import HostReport
from .report_align import AlignReport, DriftPart
from .scheduler import Request
from .summary import NOT_MODELLED, card_part, cluster_part, layout_part, model_part

DEFAULT_SEQUENCES, DEFAULT_TOKENS, DEFAULT_NEW_TOKENS = 2, 24, 8


@dataclass
class Ours:
    """What the emulated cards computed: for each request, the residual stream by layer, and logits, by position."""

    layers: dict[tuple[int, int], list[Array]]
    logits: dict[int, list[Array]]


def align(job: Job) -> AlignReport:
    """Run a job's sequences (prefill and cached decode) on the cards, then the same tokens through the reference.

    Where an error passes the tolerance of the format, the reference runs once more in that format: how far rounding
    moves this model on these tokens is what our own error is then held against, so that neither a model that magnifies
    rounding raises an alarm nor a fault hides below one tolerance for all models.
    """
    started = time.perf_counter()
    prepared = prepare(_with_sequences(job))
    reference = open_reference(prepared.checkpoint)  # first, for it may be missing
    ours, requests = compute(prepared)
    rounding = coarsest(prepared.plan.dtype, prepared.plan.kv_dtype)
    tolerance = TOLERANCES[rounding.name]
    theirs = through(reference, requests, prepared.cached)
    layers, logits = compare(joined(ours, requests), theirs)
    if not all(within(part.max_rel, tolerance) for part in (*layers, logits)):
        reference.show_rounding(rounding)
        layers, logits = with_noise(layers, logits, through(reference, requests, prepared.cached), theirs)
    parts: list[tuple[str, DriftPart]] = [*((layer.name, layer) for layer in layers), ("logits", logits)]
    first = first_drift(parts, tolerance)
    return AlignReport(
        model=model_part(prepared),
        card=card_part(prepared.plan.card),
        cluster=cluster_part(prepared),
        layout=layout_part(prepared.plan.layout),
        reference=reference.name,
        positions=sum(len(rows) for parts in ours.logits.values() for rows in parts),
        layers=tuple(layers),
        logits=logits,
        first_drift=first,
        tolerance=tolerance,
        tolerance_of=TOLERANCE_OF,
        verdict="aligned" if first is None else "drifted",
        warnings=prepared.warnings,
        not_modelled=NOT_MODELLED,
        host=HostReport(wall_s=time.perf_counter() - started),
    )


def _with_sequences(job: Job) -> Job:
    """The job with the logits of every position, and with seeded sequences where it names none."""
    job = replace(job, payload=True, logits=True, ignore_eos=True)
    if not job.prompts and not job.prompt_ids and job.batch is None:
        return replace(job, batch=DEFAULT_SEQUENCES, input_len=DEFAULT_TOKENS, output_len=DEFAULT_NEW_TOKENS - 1)
    if job.batch is None and job.max_new_tokens is None:
        return replace(job, max_new_tokens=DEFAULT_NEW_TOKENS)
    return job


def compute(prepared: Prepared) -> tuple[Ours, list[Request]]:
    """All steps of a job with numbers alone, keeping the residual stream after every layer."""
    plan, requests = prepared.plan, prepared.requests()
    memory = plan.memory(range(plan.layout.cards))
    numbers = Numbers(plan, prepared.checkpoint, prepared.job.seed, choose=prepared.choose)
    ours = Ours(defaultdict(list), defaultdict(list))
    memory.load(0)
    for request in requests:
        memory.grow_to(request, request.cached_len, 0)
    numbers.fill_cache(prepared.cached, requests, memory.pool)
    scheduler = plan.scheduler(requests)
    while (step := scheduler.next_step()) is not None:
        memory.begin(step, requests, 0)
        seen: dict[int, Array] = {}
        result = numbers.run(step, requests, memory.pool, seen.__setitem__)
        row = 0
        for entry in step.entries:
            rows = slice(row, row + entry.count)
            row += entry.count
            ours.logits[entry.request].append(result.logits[rows].copy())
            for layer, values in seen.items():
                ours.layers[layer, entry.request].append(values[rows])
        for request in scheduler.complete(step, result.picked):
            memory.release(request, 0)
    return ours, requests


def joined(ours: Ours, requests: list[Request]) -> Outputs:
    """What the cards computed, request after request."""
    names = sorted({layer for layer, _ in ours.layers})
    return Outputs(
        {
            layer: np.concatenate([part for request in requests for part in ours.layers[layer, request.index]])
            for layer in names
        },
        np.concatenate([part for request in requests for part in ours.logits[request.index]]),
    )


def through(reference: Reference, requests: list[Request], cached: tuple[tuple[int, ...], ...]) -> Outputs:
    """The same tokens through the reference, each sequence whole and without a cache."""
    layers: dict[int, list[Array]] = defaultdict(list)
    logits: list[Array] = []
    longest = max(request.length for request in requests)
    for request in requests:
        known = cached[request.index]
        ids = [*known, *(request.token_at(position) for position in range(request.computed))]
        run = reference.run(ids, longest)
        for index, values in enumerate(run.layers):
            layers[index - 1].append(values[len(known) :])
        logits.append(run.logits[len(known) :])
    return Outputs({layer: np.concatenate(parts) for layer, parts in layers.items()}, np.concatenate(logits))
