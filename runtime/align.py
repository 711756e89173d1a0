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
from .report_align import AlignReport, LayerDrift, LogitsDrift
from .scheduler import Request, Scheduler
from .summary import NOT_MODELLED, card_part, cluster_part, layout_part, model_part

# By the coarsest format among weights, activations and KV.
TOLERANCES = {"fp32": 1e-4, "fp16": 3e-2, "bf16": 2.5e-1}
TOLERANCE_OF = (
    "max_rel: the largest, over positions, of |difference| / |reference| (Euclidean norms of a position's row)"
)
DEFAULT_SEQUENCES, DEFAULT_TOKENS, DEFAULT_NEW_TOKENS = 2, 24, 8


@dataclass
class Ours:
    """What the emulated cards computed: for each request, the residual stream by layer, and logits, by position."""

    layers: dict[tuple[int, int], list[Array]]
    logits: dict[int, list[Array]]


def align(job: Job) -> AlignReport:
    """Run a job's sequences (prefill and cached decode) on the cards, then the same tokens through the reference."""
    started = time.perf_counter()
    prepared = prepare(_with_sequences(job))
    ours, requests = compute(prepared)
    reference = Reference(prepared.checkpoint)
    tolerance = TOLERANCES[_coarsest(prepared.plan.dtype, prepared.plan.kv_dtype)]
    layers, logits = _compare(ours, requests, prepared.cached, reference)
    first = next((layer.name for layer in layers if not _within(layer.max_rel, tolerance)), None)
    if first is None and not _within(logits.max_rel, tolerance):
        first = "logits"
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
    memory, numbers = plan.memory(range(plan.layout.cards)), Numbers(plan, prepared.checkpoint, prepared.job.seed)
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


def _coarsest(*dtypes: DType) -> str:
    return max((dtype.name for dtype in dtypes), key=lambda name: TOLERANCES[name])


def _within(value: float | None, tolerance: float) -> bool:
    return value is not None and value <= tolerance


def _compare(
    ours: Ours, requests: list[Request], cached: tuple[tuple[int, ...], ...], reference: Reference
) -> tuple[list[LayerDrift], LogitsDrift]:
    """Each layer and the logits over all requests, positions that the cards computed."""
    pairs: dict[int, list[tuple[Array, Array]]] = defaultdict(list)
    logits: list[tuple[Array, Array]] = []
    for request in requests:
        known = cached[request.index]
        ids = [*known, *(request.token_at(position) for position in range(request.computed))]
        theirs = reference.run(ids)
        for layer in sorted({layer for layer, index in ours.layers if index == request.index}):
            mine = np.concatenate(ours.layers[layer, request.index])
            pairs[layer].append((mine, theirs.layers[layer + 1][len(known) :]))
        logits.append((np.concatenate(ours.logits[request.index]), theirs.logits[len(known) :]))
    layers = [
        LayerDrift(name="embedding" if layer < 0 else f"layer {layer}", **_drift(*_joined(pairs[layer])))
        for layer in sorted(pairs)
    ]
    mine, theirs_all = _joined(logits)
    agree = float(np.mean(mine.argmax(axis=-1) == theirs_all.argmax(axis=-1)))
    kl = _kl(theirs_all, mine)
    return layers, LogitsDrift(**_drift(mine, theirs_all), kl=kl, argmax_agreement=agree)


def _joined(pairs: list[tuple[Array, Array]]) -> tuple[Array, Array]:
    return np.concatenate([mine for mine, _ in pairs]), np.concatenate([theirs for _, theirs in pairs])


def _drift(mine: Array, theirs: Array) -> dict[str, float]:
    """max_abs, max_rel (see TOLERANCE_OF) and cosine of two arrays of [positions, features].

    The norm of a row, and not an element, is what errors are held against: a few features of a trained model are a
    thousand times larger than the rest and would hide or fake a drift.
    """
    a, b = mine.astype(np.float64), theirs.astype(np.float64)
    own, other = np.linalg.norm(a - b, axis=-1), np.linalg.norm(b, axis=-1)
    norms = float(np.linalg.norm(a) * np.linalg.norm(b)) or 1.0
    return {
        "max_abs": float(np.max(np.abs(a - b))),
        "max_rel": float(np.max(own / np.maximum(other, np.finfo(np.float32).tiny))),
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
