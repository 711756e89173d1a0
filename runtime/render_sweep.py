"""A sweep as text on a terminal: two tables of the curve's points, what fell out of it, and why it bends."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, RenderableType
from rich.text import Text

from .report_sweep import SweepPoint, SweepReport
from .terminal import NONE, bullets, digits, duration, number, percent, plain, seconds, size, table


def print_sweep(report: SweepReport, console: Console) -> None:
    """Write the whole curve."""
    for part in _parts(report):
        console.print(part)


def _parts(report: SweepReport) -> Iterator[RenderableType]:
    yield Text(plain(f"{report.model} on {report.card}, {report.axis} swept"), "bold")
    yield from bullets("Not modelled", report.not_modelled, "dim")
    yield ""
    times = ("<layout", "step", "TTFT", "TPOT", "memory peak", "<bound")
    yield table("Times and memory", (report.axis, *times), [_times(point) for point in report.points])
    yield ""
    rates = ("tokens/s", "of a card", "exposed comm.", "idle", "dispatch")
    yield table("Throughput, and shares of the time", (report.axis, *rates), [_rates(point) for point in report.ran])
    yield ""
    yield from bullets("Why it bends", report.why)
    fell = [f"{report.axis}={point.value}: {point.reason}" for point in report.points if point.reason]
    yield from bullets("Out of the curve", fell, "yellow")
    yield from bullets("Warnings", report.warnings, "yellow")
    yield Text(f"Emulated in {digits(report.host.wall_s)} s; siltwin {report.siltwin_version}.", "dim")


def _times(point: SweepPoint) -> tuple[str, ...]:
    held = {"ran": point.bound or NONE, "oom": "OUT OF MEMORY", "refused": "refused"}[point.status]
    times = duration(point.step_ps), seconds(point.ttft_s), seconds(point.tpot_s)
    return f"{point.value:,}", point.layout or NONE, *times, size(point.peak_bytes), held


def _rates(point: SweepPoint) -> tuple[str, ...]:
    assert point.bounds is not None and point.elapsed_ps is not None and point.exposed_ps is not None
    shares = (point.exposed_ps, point.bounds.dependency, point.bounds.dispatch)
    rates = number(point.tokens_per_s), number(point.tokens_per_s_per_card)
    return f"{point.value:,}", *rates, *(percent(part, point.elapsed_ps) for part in shares)
