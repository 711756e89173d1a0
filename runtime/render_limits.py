"""The limits of a job as text on a terminal: what cards need, where it breaks, what grows, what would help."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, RenderableType
from rich.text import Text

from .render import job_line
from .render_helps import help_parts, sizes_line
from .render_oom import NONE_FITS, fits_table
from .report_limits import Boundary, Broken, Held, LayoutSearch, LimitsReport
from .terminal import NONE, bullets, digits, duration, exact_size, percent, ranges, size, table

OF = {"batch": "sequences", "context": "tokens a sequence", "cards": "cards"}


def print_limits(report: LimitsReport, console: Console) -> None:
    """What each card needs, where the job stops to fit, and what would help."""
    for part in _limits_parts(report):
        console.print(part)


def _limits_parts(report: LimitsReport) -> Iterator[RenderableType]:
    yield job_line(report)
    yield sizes_line(report.job, "fits." if report.fits_as_asked else "does NOT fit.")
    if report.within is not None:
        yield Text(f"Within {percent(report.within, 1)} of a card's memory, which stands below as its capacity.")
    yield from bullets("Not modelled", report.not_modelled, "dim")
    alike: dict[tuple[str, ...], list[int]] = {}
    for card in report.cards:
        share = percent(card.high_water_bytes, card.capacity_bytes)
        cells = (exact_size(card.high_water_bytes), share, size(card.capacity_bytes), size(card.reserved_bytes))
        alike.setdefault(cells, []).append(card.rank)
    yield ""
    rows = [(ranges(ranks), *cells) for cells, ranks in alike.items()]
    yield table("Smallest HBM of each card, reserve included", ("card", "needs", "of", "capacity", "reserved"), rows)
    tags = sorted({tag for card in report.cards for tag in card.by_tag})
    by_tag = [(tag, max(card.by_tag.get(tag, 0) for card in report.cards)) for tag in tags]
    yield ""
    held = [(tag, exact_size(most)) for tag, most in sorted(by_tag, key=lambda item: -item[1]) if most]
    yield table("At the peak, on the card that has most", ("tag", "bytes"), held)
    yield ""
    yield fits_table(report.fits)
    if report.layouts is not None:
        yield from _layouts(report.layouts)
    yield from _boundaries(report)
    yield ""
    yield from help_parts(report.growth, report.helps)
    yield ""
    yield Text(f"Exact to the allocation granule of {report.granule_bytes} bytes.", style="dim")
    yield from bullets("Warnings", report.warnings, "yellow")
    yield Text(f"Found in {digits(report.host.wall_s)} s on this machine; siltwin {report.siltwin_version}.", "dim")


def _layouts(search: LayoutSearch) -> Iterator[RenderableType]:
    yield ""
    rows = [
        (
            row.layout,
            row.cards,
            size(row.need_bytes),
            "yes" if row.fits else "NO",
            *_most(row.largest_batch, row.largest_context),
        )
        for row in search.rows
    ]
    title = f"Layouts, of {search.legal:,} legal ones on {search.cards:,} cards or a part of them (estimate)"
    yield table(title, ("|layout", "cards", "needs", "fits", "batch", "context"), rows)
    if search.left_out:
        yield Text(f"{search.left_out:,} more could by their bounds be better, and were not budgeted.", "dim")


def _most(batch: int | None, context: int | None) -> tuple[str, str]:
    return f"{batch:,}" if batch else NONE_FITS, f"{context:,}" if context else NONE_FITS


def _boundaries(report: LimitsReport) -> Iterator[RenderableType]:
    rows = [row for boundary in report.boundaries for row in _sides(boundary)]
    if rows:
        yield ""
        yield table("Boundaries, emulated on both sides", ("|size", "|layout", "<what happens"), rows)


def _sides(boundary: Boundary) -> Iterator[tuple[str, str, str]]:
    of = OF[boundary.of]
    if boundary.last is not None:
        yield f"{boundary.last.value:,} {of}", _short(boundary.last.layout), _held(boundary.last)
    if boundary.first is not None:
        yield f"{boundary.first.value:,} {of}", _short(boundary.first.layout), _broken(boundary.first)
    elif boundary.end:
        yield "", "", boundary.end


def _short(layout: str) -> str:
    """A layout without the axes that are 1."""
    return ",".join(part for part in layout.split(",") if not part.endswith("=1")) or "tp=1"


def _held(held: Held) -> str:
    time = f"{held.step_kind} step of {duration(held.step_ps)}" if held.step_ps is not None else held.untimed or NONE
    return f"fits: {size(held.peak_bytes)} on card {held.card}; {time}"


def _broken(broken: Broken) -> str:
    when = "while it loads" if broken.step is None else f"in step {broken.step} ({broken.step_kind})"
    return (
        f"OUT OF MEMORY on card {broken.card} {when}: {broken.owner} asks for {size(broken.requested_bytes)} of "
        f"{broken.tag}, {exact_size(broken.missing_bytes)} are missing"
    )
