"""An alignment with the reference as a versioned schema: how far every layer and the logits are from it."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from .report import OutOfRange
from .report_base import Count, Part
from .report_document import HostReport, JobDocument


def _null_unless_finite(value: object) -> object:
    return None if isinstance(value, float) and not math.isfinite(value) else value


# JSON has no NaN: an error that is not a number is null, and never within tolerance.
Drift = Annotated[float | None, BeforeValidator(_null_unless_finite)]


Verdict = Literal["aligned", "drifted"]


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


class Flip(Part):
    """A token that took other experts than in the reference.

    `ours` are the experts that it took on the cards alone, `reference` those that it took in the reference alone;
    `margin` is by how much the reference preferred its own, in the score that it chose by, and `explained` whether
    errors of the router's logits can account for it.
    """

    layer: Count
    request: Count
    position: Count
    ours: tuple[int, ...]
    reference: tuple[int, ...]
    margin: Drift
    explained: bool


class RouterDrift(DriftPart):
    """The logits of one layer's router against the reference's, and the tokens that took other experts.

    `first` is the first flip that the logits do not explain, or else the first of all.
    """

    name: str
    layer: Count
    flips: Count
    unexplained: Count
    largest_margin: Drift
    first: Flip | None


class RoutingReport(Part):
    """The routers of all layers; `forced` says that the reference's tokens took the experts that ours took.

    Then the flips are what the reference would have chosen instead, each layer for itself.
    """

    forced: bool
    tokens: Count
    flips: Count
    layers: tuple[RouterDrift, ...]


class LogitsDrift(DriftPart):
    """Logits against the reference: `kl` is the mean over positions, `argmax_agreement` the share of positions."""

    kl: Drift
    argmax_agreement: Annotated[float, Field(ge=0, le=1)]


class SideReport(Part):
    """Another comparison on the same tokens, which has no part in the verdict: `of` what with `against` what.

    `perplexity` is that of `of` on the text, where there is one.
    """

    of: str
    against: str
    layers: tuple[LayerDrift, ...]
    logits: LogitsDrift
    perplexity: Drift = None


class TextReport(Part):
    """A text read with teacher forcing: `tokens` were predicted, in `windows` of `window` tokens, one every `stride`.

    Perplexities are exp of the mean loss in nats of ours and of the reference.
    """

    tokens: Count
    windows: Count
    window: Count
    stride: Count
    perplexity: Drift
    reference_perplexity: Drift


class ExtremeCase(Part):
    """One extreme input: how far its logits are from the reference's, and whether all its parts are within bounds."""

    name: str
    positions: Count
    verdict: Verdict
    first_drift: str | None
    logits: LogitsDrift
    not_finite: OutOfRange | None = None


class Bucket(DriftPart):
    """The logits of positions `start` to before `stop`; `hidden_rms_rel` is that of the last layer's output."""

    start: Count
    stop: Count
    positions: Count
    hidden_rms_rel: Drift
    kl: Drift
    argmax_agreement: Annotated[float, Field(ge=0, le=1)]


class AlignReport(JobDocument):
    """The same checkpoint through siltwin and through the reference, layer by layer.

    `tolerance_of` says in words what `tolerance` bounds, and what the measured noise of rounding adds to it;
    `first_drift` names the first part beyond it. Weights that were quantised on loading are compared with the reference
    on what their codes mean; `cost` then says how far that is from the checkpoint's own weights, and `baseline` how far
    our own run in a plain dtype is. `routing` tells of expert layers, `keys` of what indexers chose (errors are shares
    of a token's keys), `curve` of positions, and `not_finite` where our numbers first left the finite range.
    """

    schema_version: Literal[2] = 2  # type: ignore[assignment]  # every document has a version of its own

    reference: str
    positions: Count
    layers: tuple[LayerDrift, ...]
    logits: LogitsDrift
    first_drift: str | None
    tolerance: float
    tolerance_of: str
    verdict: Verdict
    keys: tuple[LayerDrift, ...] = ()
    routing: RoutingReport | None = None
    cost: SideReport | None = None
    baseline: SideReport | None = None
    text: TextReport | None = None
    extremes: tuple[ExtremeCase, ...] = ()
    curve: tuple[Bucket, ...] = ()
    not_finite: OutOfRange | None = None
    saturated: OutOfRange | None = None
    warnings: tuple[str, ...] = ()
    not_modelled: tuple[str, ...] = ()
    host: HostReport
