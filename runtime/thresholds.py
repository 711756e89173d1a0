"""Thresholds: limits of memory that a user sets, as the capacity that a job is to stay within."""

from __future__ import annotations

from dataclasses import replace

from ..isa.errors import ConfigError
from .alerts import parse_alert
from .job import Job
from .prepare import Prepared


def memory_share(job: Job) -> float | None:
    """The smallest share of a card's memory that an alert names; ConfigError for alerts of time, which is not told."""
    alerts = [parse_alert(text) for text in job.alerts]
    stray = next((alert.name for alert in alerts if alert.name != "memory"), None)
    if stray is not None:
        raise ConfigError(f"limits tell no time of a whole job: --alert {stray} is for `siltwin run`; give memory=0.9")
    return min((alert.limit for alert in alerts), default=None)


def within_alert(prepared: Prepared) -> Prepared:
    """The job on cards with so much memory that no alert of memory is crossed: the reserve counts as taken."""
    share = memory_share(prepared.job)
    if share is None:
        return prepared
    plan, hbm = prepared.plan, prepared.plan.card.hbm
    capacity_bytes = int(share * hbm.capacity_bytes)
    if capacity_bytes <= hbm.reserved_bytes:
        raise ConfigError(
            f"--alert memory={share} is crossed before anything runs: {hbm.reserved_bytes} of {hbm.capacity_bytes} "
            "bytes of a card are reserved; give a larger share"
        )
    card = plan.card.model_copy(update={"hbm": hbm.model_copy(update={"capacity_bytes": capacity_bytes})})
    return replace(prepared, plan=replace(plan, card=card))
