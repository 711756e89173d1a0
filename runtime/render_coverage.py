"""A coverage report as text on a terminal: operators by status, compositions with their costs, fusions with savings."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, RenderableType
from rich.text import Text

from .render import job_line
from .report_coverage import Cost, CoverageReport, FusionPart, OperatorPart, StatedStep
from .terminal import NONE, bullets, duration, plain, size, table

COMPOSED, NATIVE = "composed", "native"


def print_coverage(report: CoverageReport, console: Console) -> None:
    """Everything a coverage report says."""
    for part in _parts(report):
        console.print(part)


def _parts(report: CoverageReport) -> Iterator[RenderableType]:
    yield job_line(report)
    yield Text(plain(f"native instructions: {', '.join(report.native)} ({report.native_evidence})"))
    yield from bullets("Not modelled", report.not_modelled, "dim")
    yield ""
    yield table(
        "Operators of a step, on one card of each stage",
        ("|operator", "|dtype", "<unit", "|status", "issues", "<in blocks"),
        [_operator_row(operator) for operator in report.operators],
    )
    yield from _compositions(report)
    yield ""
    yield _fusions(report)
    yield ""
    yield _steps(report)
    yield from _verdict(report)
    yield from bullets("Notes", report.warnings, "yellow")


def _operator_row(operator: OperatorPart) -> tuple[str, ...]:
    blocks = ", ".join(f"{name} {count}" for name, count in operator.blocks.items())
    return operator.mnemonic, operator.dtype, operator.unit, operator.status, f"{operator.issues:,}", blocks


def _compositions(report: CoverageReport) -> Iterator[RenderableType]:
    """Each composed operator in each stated step, beside the same operator were it native."""
    composed = [operator for operator in report.operators if operator.status == COMPOSED]
    if not composed:
        return
    rows = []
    for operator in composed:
        for step, cost in zip(report.steps, operator.costs, strict=True):
            rows.append((operator.mnemonic, step.kind, COMPOSED, *_cost_cells(cost.composed)))
            rows.append(("", "", "were it native", *_cost_cells(cost.native)))
    yield ""
    yield table("What compositions cost in a step", ("|operator", "<step", "<", "launches", "HBM bytes", "time"), rows)
    yield from bullets("Composed of", [f"{item.mnemonic}: {', '.join(item.parts)}" for item in composed])


def _cost_cells(cost: Cost | None) -> tuple[str, ...]:
    if cost is None:
        return NONE, NONE, NONE
    return f"{cost.launches:,}", size(cost.hbm_bytes), duration(cost.time_ps)


def _fusions(report: CoverageReport) -> RenderableType:
    rows = [row for item in report.fusions for row in _fusion_rows(item, report.steps)]
    columns = ("|fusion", "<on", "places", "launches\nsaved", "<step", "HBM bytes\nsaved", "time\nsaved")
    return table("Fusions, each alone (--fuse NAME,..)", columns, rows)


def _fusion_rows(item: FusionPart, steps: tuple[StatedStep, ...]) -> Iterator[tuple[str, ...]]:
    state = "yes" if item.is_on else "no"
    if not item.savings:
        yield item.name, state, "0", NONE, item.reason or NONE, NONE, NONE
    for index, (step, saving) in enumerate(zip(steps, item.savings, strict=False)):
        head = (item.name, state, f"{item.places:,}", f"{item.launches_saved:,}") if index == 0 else ("", "", "", "")
        yield (*head, step.kind, _signed_size(saving.hbm_bytes), _signed_duration(saving.time_ps))


def _signed_size(num_bytes: int) -> str:
    return size(num_bytes) if num_bytes >= 0 else f"-{size(-num_bytes)}"


def _signed_duration(picoseconds: int | None) -> str:
    if picoseconds is None or picoseconds >= 0:
        return duration(picoseconds)
    return f"-{duration(-picoseconds)}"


def _steps(report: CoverageReport) -> RenderableType:
    rows = [
        (
            step.kind,
            step.tokens,
            step.sequences,
            f"{step.context:,}",
            duration(step.elapsed_ps),
            duration(step.native_ps),
        )
        for step in report.steps
    ]
    return table("Steps that are told for", ("step", "tokens", "sequences", "context", "time", "all native"), rows)


def _verdict(report: CoverageReport) -> Iterator[RenderableType]:
    yield ""
    if report.complete:
        yield Text("COVERED: the card runs every operator of the model", style="bold green")
        return
    lines = [f"{item.mnemonic} ({item.dtype}): {item.reason}" for item in report.missing]
    yield from bullets("MISSING: the card cannot run the model", lines, "red")
