"""Alignment: a job's numbers against the reference, layer by layer, and the first layer that drifts."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, replace

import numpy as np

from ..isa.dtype import DType
from ..isa.instruction import Array
from .job import Job
from .numbers import Numbers
from .prepare import Prepared, prepare
from .reference import Reference
from .report import HostReport
from .report_align import AlignReport, DriftPart, LayerDrift, LogitsDrift
from .scheduler import Request, Scheduler
from .summary import NOT_MODELLED, card_part, cluster_part, layout_part, model_part

# By the coarsest format among weights, activations and KV: two units in its last place; for fp32 what we promise.
TOLERANCES = {"fp32": 1e-4, "fp16": 2**-10, "bf16": 2**-7}
# How far beyond rounding's own effect on the reference an error may lie. Over 400 random models, sharded at random, the
# worst honest max was 3.5 times that effect (median 1.1) and the worst honest rms 2.5 times (median 1.02).
MAX_OVER_NOISE, RMS_OVER_NOISE = 5.0, 3.0
TOLERANCE_OF = (
    "|difference| / |reference| of a position's row (Euclidean norms): max over positions, or, where rounding alone "
    f"does more to the reference, {MAX_OVER_NOISE:g} x that in max and {RMS_OVER_NOISE:g} x in rms"
)
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
    reference = Reference(prepared.checkpoint)  # first, for it may be missing
    ours, requests = compute(prepared)
    coarsest = _coarsest(prepared.plan.dtype, prepared.plan.kv_dtype)
    tolerance = TOLERANCES[coarsest.name]
    theirs = through(reference, requests, prepared.cached)
    layers, logits = compare(joined(ours, requests), theirs)
    if not all(_within(part.max_rel, tolerance) for part in (*layers, logits)):
        reference.show_rounding(coarsest)
        layers, logits = _with_noise(layers, logits, through(reference, requests, prepared.cached), theirs)
    parts: list[tuple[str, DriftPart]] = [*((layer.name, layer) for layer in layers), ("logits", logits)]
    first = next((name for name, part in parts if _drifts(part, tolerance)), None)
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
    scheduler = Scheduler(requests, plan.chunk_tokens)
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


def _coarsest(*dtypes: DType) -> DType:
    return max(dtypes, key=lambda dtype: TOLERANCES[dtype.name])


def _within(value: float | None, tolerance: float) -> bool:
    return value is not None and value <= tolerance


def _drifts(part: DriftPart, tolerance: float) -> bool:
    """Whether a part is wrong by more than its format and its model's own noise explain."""
    if _within(part.max_rel, tolerance):
        return False
    return not (
        _within(part.max_rel, max(tolerance, MAX_OVER_NOISE * (part.noise_max_rel or 0)))
        and _within(part.rms_rel, max(tolerance, RMS_OVER_NOISE * (part.noise_rms_rel or 0)))
    )


@dataclass(frozen=True)
class Outputs:
    """What one side computed, over all requests and the positions that the cards computed, in the same order."""

    layers: dict[int, Array]
    logits: Array


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


def compare(ours: Outputs, theirs: Outputs) -> tuple[list[LayerDrift], LogitsDrift]:
    """Each layer and the logits."""
    layers = [
        LayerDrift(name="embedding" if layer < 0 else f"layer {layer}", **_drift(values, theirs.layers[layer]))
        for layer, values in sorted(ours.layers.items())
    ]
    agree = float(np.mean(ours.logits.argmax(axis=-1) == theirs.logits.argmax(axis=-1)))
    drift = _drift(ours.logits, theirs.logits)
    return layers, LogitsDrift(**drift, kl=_kl(theirs.logits, ours.logits), argmax_agreement=agree)


def _with_noise(
    layers: list[LayerDrift], logits: LogitsDrift, rounded: Outputs, theirs: Outputs
) -> tuple[list[LayerDrift], LogitsDrift]:
    """The drifts with what rounding does to the reference beside them."""
    noise, of_logits = compare(rounded, theirs)
    return (
        [layer.model_copy(update=_noise(found)) for layer, found in zip(layers, noise, strict=True)],
        logits.model_copy(update=_noise(of_logits)),
    )


def _noise(drift: DriftPart) -> dict[str, float | None]:
    return {"noise_max_rel": drift.max_rel, "noise_rms_rel": drift.rms_rel}


def _drift(mine: Array, theirs: Array) -> dict[str, float]:
    """max_abs, max_rel and rms_rel (see TOLERANCE_OF) and cosine of two arrays of [positions, features].

    The norm of a row, and not an element, is what errors are held against: a few features of a trained model are a
    thousand times larger than the rest and would hide or fake a drift.
    """
    a, b = mine.astype(np.float64), theirs.astype(np.float64)
    own, other = np.linalg.norm(a - b, axis=-1), np.linalg.norm(b, axis=-1)
    relative = own / np.maximum(other, np.finfo(np.float32).tiny)
    norms = float(np.linalg.norm(a) * np.linalg.norm(b)) or 1.0
    return {
        "max_abs": float(np.max(np.abs(a - b))),
        "max_rel": float(np.max(relative)),
        "rms_rel": float(np.sqrt(np.mean(relative**2))),
        "cosine": float((a * b).sum()) / norms,
    }


def _kl(theirs: Array, mine: Array) -> float:
    """Mean Kullback-Leibler divergence of our next-token distributions from the reference's, in nats."""
    p, q = (_log_softmax(values.astype(np.float64)) for values in (theirs, mine))
    return float(max(0.0, np.mean(np.sum(np.exp(p) * (p - q), axis=-1))))


def _log_softmax(values: Array) -> Array:
    shifted = values - values.max(axis=-1, keepdims=True)
    logs: Array = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return logs
