"""An alignment with the reference as a versioned schema: how far every layer and the logits are from it."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from .report import Count, HostReport, JobDocument, Part


def _null_unless_finite(value: object) -> object:
    return None if isinstance(value, float) and not math.isfinite(value) else value


# JSON has no NaN: an error that is not a number is null, and never within tolerance.
Drift = Annotated[float | None, BeforeValidator(_null_unless_finite)]


class DriftPart(Part):
    """How far one output is from the reference's; null where an error is not a finite number.

    `max_rel` and `rms_rel` are the largest and the root mean square, over positions, of a position's relative error;
    `noise_max_rel` and `noise_rms_rel` are what rounding alone makes of the reference itself (null: not measured, since
    nothing passed the tolerance).
    """

    max_abs: Drift
    max_rel: Drift
    cosine: Drift
    rms_rel: Drift = None
    noise_max_rel: Drift = None
    noise_rms_rel: Drift = None


class LayerDrift(DriftPart):
    """One layer's output against the reference."""

    name: str


class LogitsDrift(DriftPart):
    """Logits against the reference: `kl` is the mean over positions, `argmax_agreement` the share of positions."""

    kl: Drift
    argmax_agreement: Annotated[float, Field(ge=0, le=1)]


class AlignReport(JobDocument):
    """The same checkpoint through siltwin and through the reference, layer by layer.

    `tolerance_of` says in words what `tolerance` bounds, and what the measured noise of rounding adds to it;
    `first_drift` names the first layer beyond it.
    """

    reference: str
    positions: Count
    layers: tuple[LayerDrift, ...]
    logits: LogitsDrift
    first_drift: str | None
    tolerance: float
    tolerance_of: str
    verdict: Literal["aligned", "drifted"]
    warnings: tuple[str, ...] = ()
    not_modelled: tuple[str, ...] = ()
    host: HostReport
