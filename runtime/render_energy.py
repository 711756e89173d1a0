"""Energy and heat as text on a terminal: what took it, what it bought, how warm it got, and where the clock went."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType

from .report_energy import ClockChange, EnergyReport
from .terminal import NONE, bullets, digits, duration, percent, table

MOST_PARTS = 4
MOST_LISTED = 6
ENERGY_UNITS = (("MJ", 1e6), ("kJ", 1e3), ("J", 1.0), ("mJ", 1e-3), ("uJ", 1e-6))


def energy_parts(report: EnergyReport) -> Iterator[RenderableType]:
    """The section, or what the card does not state."""
    yield ""
    if report.unstated:
        more = f" and {len(report.unstated) - MOST_LISTED} more" if len(report.unstated) > MOST_LISTED else ""
        missing = ", ".join(report.unstated[:MOST_LISTED]) + more
        yield from bullets("Energy and heat", [f"not told: the card's file does not state {missing}"])
        return
    yield _figures(report)
    lines = [_change_line(change) for change in report.changes[:MOST_LISTED]]
    rest = len(report.changes) - len(lines) + report.more_changes
    yield from bullets("Clocks stepped by heat", lines + [f"and {rest:,} more"] * bool(rest))


def joules(value: float | None) -> str:
    """An energy in the largest unit that leaves a whole part."""
    if value is None:
        return NONE
    name, size = next((unit for unit in ENERGY_UNITS if value >= unit[1]), ENERGY_UNITS[-1])
    return f"{digits(value / size)} {name}"


def _figures(report: EnergyReport) -> Group:
    total = report.total_j or 0.0
    causes = (
        ("idle", report.idle_j),
        ("operations", report.operations_j),
        ("HBM", report.hbm_j),
        ("links", report.links_j),
    )
    taken = ", ".join(f"{name} {percent(value, total)}" for name, value in causes if value)
    parts = ", ".join(f"{part.part} {percent(part.share, 1)}" for part in report.parts[:MOST_PARTS])
    rows = [
        ("energy of all cards", joules(report.total_j), taken),
        ("of it beside idling", joules(total - (report.idle_j or 0.0)), parts),
        ("power of a card, mean", f"{digits(report.mean_w or 0.0)} W", f"at most {digits(report.peak_w or 0.0)} W"),
    ]
    rows += _clock_row(report)
    if report.output_tokens_per_j:
        rows.append(("output tokens a joule", digits(report.output_tokens_per_j), ""))
    if report.hottest_c is not None:
        rows.append(("hottest card", f"{report.hottest_c:.1f} C", f"limit {digits(report.limit_c or 0.0)} C"))
    return table(f"Energy and heat (weakest evidence: {report.weakest})", ("figure", "value", "<of it"), rows)


def _clock_row(report: EnergyReport) -> list[tuple[str, str, str]]:
    """The clock of the card that took most, while it computed."""
    known = [clock for clock in report.curve.clock_hz if clock is not None] if report.curve else []
    if not known:
        return []
    lowest, highest = (f"{clock / 1e9:.2f}" for clock in (min(known), max(known)))
    shown = lowest if lowest == highest else f"{lowest} to {highest}"
    return [("its clock while computing", f"{shown} GHz", "that of the card that took most")]


def _change_line(change: ClockChange) -> str:
    many = f" and {change.cards - 1:,} more" if change.cards > 1 else ""
    return (
        f"after step {change.step}, at {duration(change.time_ps)}: card {change.card}{many} to "
        f"{change.clock_hz / 1e9:g} GHz, at {change.temperature_c:.1f} C"
    )
