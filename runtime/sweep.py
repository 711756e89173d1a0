"""Sweep: one job at several values of one axis, emulated one after the other with the model read once."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ..isa.errors import ConfigError, NotYetError, UnsupportedError
from .bend import why_it_bends
from .job import Job
from .layout import AXES
from .prepare import checkpoint_of
from .report import Report
from .report_base import Bounds
from .report_document import HostReport
from .report_sweep import SweepPoint, SweepReport
from .run import run_job

FIELDS = {
    "batch": "batch",
    "input-len": "input_len",
    "output-len": "output_len",
    "cached-len": "cached_len",
    "chunk-tokens": "chunk_tokens",
    "micro-batches": "micro_batches",
}
SWEPT = (*AXES, "cards", *FIELDS)
MOST_POINTS = 64
PS_PER_S = 10**12
Progress = Callable[[int, int | None, str], None]


@dataclass(frozen=True)
class Sweep:
    """An axis and the values that it takes, in the order in which they were given."""

    axis: str
    values: tuple[int, ...]

    def first(self, asked: dict[str, Any]) -> dict[str, Any]:
        """What a job is asked, with the first value where the axis is an option of its own."""
        return asked | ({FIELDS[self.axis]: self.values[0]} if self.axis in FIELDS else {})

    def job(self, job: Job, value: int) -> Job:
        """The job at a value of the axis, all else as it is."""
        if self.axis in FIELDS:
            changed: dict[str, Any] = {FIELDS[self.axis]: value}
            return replace(job, **changed)
        return replace(job, layout=with_axis(job.layout, self.axis, value))


def parse_sweep(text: str) -> Sweep:
    """Read `tp=1,2,4,8`; ConfigError names what is wrong, and the axes that there are."""
    axis, equals, values = (part.strip() for part in text.partition("="))
    if not equals or axis not in SWEPT:
        raise ConfigError(f"--sweep {text!r} is not AXIS=VALUE,VALUE,..; axes: {', '.join(SWEPT)}")
    words = [word.strip() for word in values.split(",") if word.strip()]
    wrong = next((word for word in words if not word.isdecimal() or len(word) > 9), None)
    if wrong is not None or not words:
        raise ConfigError(
            f"--sweep {text!r}: {wrong or 'nothing'!r} is no whole number; write it as --sweep {axis}=1,2"
        )
    if len(words) > MOST_POINTS:
        raise ConfigError(f"--sweep {axis} has {len(words)} values; at most {MOST_POINTS} stand in one table")
    return Sweep(axis, tuple(dict.fromkeys(map(int, words))))


def with_axis(layout: str | None, axis: str, value: int) -> str:
    """The text of a layout with one axis changed, or added where it is not named."""
    parts = [part for part in (layout or "").split(",") if part.strip() and part.partition("=")[0].strip() != axis]
    return ",".join([*parts, f"{axis}={value}"])


def run_sweep(job: Job, sweep: Sweep, progress: Progress | None = None) -> SweepReport:
    """Every point of the curve; those that do not fit, or that the model refuses, stand in it with the reason."""
    started = time.perf_counter()
    say = progress or (lambda done, total, text: None)
    say(0, None, "reading the model")
    checkpoint = checkpoint_of(job)
    points: list[SweepPoint] = []
    reports: list[Report] = []
    for number, value in enumerate(sweep.values):
        say(number, len(sweep.values), f"{sweep.axis}={value}")
        try:
            report = run_job(sweep.job(job, value), checkpoint=checkpoint).report
        except (ConfigError, UnsupportedError, NotYetError) as error:
            points.append(SweepPoint(value=value, status="refused", reason=str(error)))
            continue
        reports.append(report)
        points.append(_point(value, report))
    say(len(sweep.values), len(sweep.values), "done")
    return SweepReport(
        model=checkpoint.config.name,
        card=job.card,
        axis=sweep.axis,
        points=tuple(points),
        why=why_it_bends(sweep.axis, [point for point in points if point.status == "ran"]),
        warnings=tuple(dict.fromkeys(line for report in reports for line in report.warnings)),
        not_modelled=reports[0].not_modelled if reports else (),
        host=HostReport(wall_s=time.perf_counter() - started),
    )


def _point(value: int, report: Report) -> SweepPoint:
    """What a run says of its point of the curve."""
    cards = report.layout.cards
    common: dict[str, Any] = {"value": value, "layout": layout_text(report), "cards": cards}
    peak_bytes = max(card.peak_bytes for card in report.cards)
    if report.oom is not None:
        oom = report.oom
        step = "while weights are loaded" if oom.step is None else f"in step {oom.step} ({oom.step_kind})"
        why = f"out of memory on card {oom.card} {step}: {oom.missing_bytes:,} B more would hold {oom.tag}"
        return SweepPoint(**common, status="oom", reason=why, peak_bytes=peak_bytes)
    totals, tokens = report.totals, sum(step.tokens for step in report.steps)
    phases = report.phases.by_kind.values()
    bounds = Bounds.together(phase.bounds for phase in phases)
    rate = tokens * PS_PER_S / totals.elapsed_ps if totals.elapsed_ps else None
    return SweepPoint(
        **common,
        status="ran",
        elapsed_ps=totals.elapsed_ps,
        step_ps=totals.elapsed_ps // max(1, len(report.steps)),
        ttft_s=totals.ttft_mean_s,
        tpot_s=totals.tpot_mean_s,
        tokens=tokens,
        tokens_per_s=rate,
        tokens_per_s_per_card=None if rate is None else rate / cards,
        exposed_ps=sum(row.exposed_ps for phase in phases for row in phase.breakdown.overlap),
        peak_bytes=peak_bytes,
        bound=bounds.largest,
        bounds=bounds,
    )


def layout_text(report: Report) -> str:
    """The degrees of a report's layout that are above 1."""
    axes = [axis for axis in AXES if axis != "etp" and getattr(report.layout, axis) > 1]
    return " ".join(f"{axis}={getattr(report.layout, axis)}" for axis in axes) or "one card"
