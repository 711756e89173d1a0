"""Drift: how far what the cards computed lies from the reference, and whether rounding explains it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from ..isa.dtype import FP16, FP32, DType
from ..isa.instruction import Array
from .plan import JobPlan
from .report_align import DriftPart, LayerDrift, LogitsDrift
from .routes import Routes

# By the coarsest format among weights, activations and KV: two units in its last place; for fp32 what we promise.
TOLERANCES = {"fp32": 1e-4, "fp16": 2**-10, "bf16": 2**-7}
# Where inputs or caches become codes: what one code more or less in a few of them does to a row.
CODED = {"int8": 2**-5, "fp8_e4m3": 2**-4, "fp8_e5m2": 2**-3}
# How far beyond rounding's own effect on the reference an error may lie. Over 400 random models, sharded at random, the
# worst honest max was 3.5 times that effect (median 1.1) and the worst honest rms 2.5 times (median 1.02).
MAX_OVER_NOISE, RMS_OVER_NOISE = 5.0, 3.0
TOLERANCE_OF = (
    "|difference| / |reference| of a position's row (Euclidean norms): max over positions, or, where rounding alone "
    f"does more to the reference, {MAX_OVER_NOISE:g} x that in max and {RMS_OVER_NOISE:g} x in rms"
)
ROWS_AT_ONCE = 256


@dataclass(frozen=True)
class Outputs:
    """What one side computed, over all requests and the positions that the cards computed, in the same order."""

    layers: dict[int, Array]
    logits: Array
    routes: dict[int, Routes] = field(default_factory=dict)
    keys: dict[int, Array] = field(default_factory=dict)

    def at(self, rows: slice | Array) -> Outputs:
        """Some of the positions."""
        layers = {layer: values[rows] for layer, values in self.layers.items()}
        routes = {layer: found.at(rows) for layer, found in self.routes.items()}
        return Outputs(layers, self.logits[rows], routes, {layer: found[rows] for layer, found in self.keys.items()})


def bounds_of(plan: JobPlan) -> tuple[DType, float]:
    """The dtype that shows what rounding does to a job, and the tolerance of all that it rounds to."""
    floats = (plan.dtype,) if plan.cache is not None else (plan.dtype, plan.kv_dtype)
    rounding = max(floats, key=lambda dtype: TOLERANCES[dtype.name])
    codes = [part.element.name for part in (plan.activations, plan.cache) if part is not None]
    if not codes:
        return rounding, TOLERANCES[rounding.name]
    tolerance = max(TOLERANCES[rounding.name], *(CODED[name] for name in codes))
    # float64 beside float32 hardly ever tips an input to another code, which the cards' float32 does now and then
    return (FP16 if rounding is FP32 else rounding), tolerance


def within(value: float | None, tolerance: float) -> bool:
    """Whether an error is a number and small enough."""
    return value is not None and value <= tolerance


def drifts(part: DriftPart, tolerance: float, typical: float = 0.0) -> bool:
    """Whether a part is wrong by more than its format and its model's own noise explain.

    `typical` is the root mean square of the noise over many positions, for a part of a few: theirs may be small by
    chance.
    """
    if within(part.max_rel, tolerance):
        return False
    largest, rms = (max(noise or 0, typical) for noise in (part.noise_max_rel, part.noise_rms_rel))
    return not (
        within(part.max_rel, max(tolerance, MAX_OVER_NOISE * largest))
        and within(part.rms_rel, max(tolerance, RMS_OVER_NOISE * rms))
    )


def first_drift(parts: Iterable[tuple[str, DriftPart]], tolerance: float) -> str | None:
    """The first of the named parts that drifts."""
    return next((name for name, part in parts if drifts(part, tolerance)), None)


def compare(ours: Outputs, theirs: Outputs) -> tuple[list[LayerDrift], LogitsDrift]:
    """Each layer and the logits."""
    layers = [
        LayerDrift(name=layer_label(layer), **drift_of(values, theirs.layers[layer]))
        for layer, values in sorted(ours.layers.items())
    ]
    agree = float(np.mean(ours.logits.argmax(axis=-1) == theirs.logits.argmax(axis=-1)))
    drift = drift_of(ours.logits, theirs.logits)
    return layers, LogitsDrift(**drift, kl=kl(theirs.logits, ours.logits), argmax_agreement=agree)


def layer_label(layer: int) -> str:
    """What a report calls a layer; -1 is the embedding."""
    return "embedding" if layer < 0 else f"layer {layer}"


def with_noise(
    layers: list[LayerDrift], logits: LogitsDrift, rounded: Outputs, theirs: Outputs
) -> tuple[list[LayerDrift], LogitsDrift]:
    """The drifts with what rounding does to the reference beside them."""
    noise, of_logits = compare(rounded, theirs)
    return (
        [layer.model_copy(update=noise_of(found)) for layer, found in zip(layers, noise, strict=True)],
        logits.model_copy(update=noise_of(of_logits)),
    )


def noise_of(drift: DriftPart) -> dict[str, float | None]:
    """A drift of the rounded reference, as the noise of another part."""
    return {"noise_max_rel": drift.max_rel, "noise_rms_rel": drift.rms_rel}


def drift_of(mine: Array, theirs: Array) -> dict[str, float]:
    """max_abs, max_rel and rms_rel (see TOLERANCE_OF) and cosine of two arrays of [positions, features].

    The norm of a row, and not an element, is what errors are held against: a few features of a trained model are a
    thousand times larger than the rest and would hide or fake a drift.
    """
    relative, largest, products = list[Array](), list[float](), np.zeros(3)
    for a, b in _in_pieces(mine, theirs):
        apart = a - b
        largest.append(float(np.max(np.abs(apart))))
        norms = np.linalg.norm(b, axis=-1)
        relative.append(np.linalg.norm(apart, axis=-1) / np.maximum(norms, np.finfo(np.float32).tiny))
        products += ((a * b).sum(), (a * a).sum(), (b * b).sum())
    errors = np.concatenate(relative)
    return {
        "max_abs": float(np.max(largest)),
        "max_rel": float(np.max(errors)),
        "rms_rel": float(np.sqrt(np.mean(errors**2))),
        "cosine": float(products[0]) / (float(np.sqrt(products[1] * products[2])) or 1.0),
    }


def _in_pieces(mine: Array, theirs: Array) -> Iterator[tuple[Array, Array]]:
    """Both in float64, some rows at a time: whole logits of a long text would take several times their memory."""
    for start in range(0, len(mine), ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        yield mine[rows].astype(np.float64), theirs[rows].astype(np.float64)


def kl(theirs: Array, mine: Array) -> float:
    """Mean Kullback-Leibler divergence of our next-token distributions from the reference's, in nats."""
    total = 0.0
    for a, b in _in_pieces(theirs, mine):
        p, q = log_softmax(a), log_softmax(b)
        total += float(np.sum(np.exp(p) * (p - q)))
    return max(0.0, total / len(mine))


def log_softmax(values: Array) -> Array:
    """Log probabilities over the last axis."""
    shifted = values - values.max(axis=-1, keepdims=True)
    logs: Array = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return logs
