"""The plan of a job as text on a terminal: every formula of the budget, and how far the job could grow."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, RenderableType
from rich.text import Text

from .render import job_line
from .render_helps import help_parts, sizes_line
from .render_oom import NONE_FITS
from .report_plan import CardBudget, PlanReport
from .terminal import bullets, digits, exact_size, percent, ranges, size, table


def print_plan(report: PlanReport, console: Console) -> None:
    """The budget of every kind of card, an estimate by closed forms."""
    for part in _parts(report):
        console.print(part)


def _parts(report: PlanReport) -> Iterator[RenderableType]:
    yield job_line(report)
    yield sizes_line(report.job, "fits, by estimate." if report.fits else "does NOT fit, by estimate.")
    for card in report.cards:
        yield ""
        yield _budget(card)
        yield Text(_sum(card))
    yield ""
    batch = f"{report.largest_batch:,} sequences" if report.largest_batch else NONE_FITS
    context = f"{report.largest_context:,} tokens a sequence" if report.largest_context else NONE_FITS
    rows = [("largest batch", batch), ("largest context", context)]
    yield table("Where the estimate reaches the capacity", ("changing only", "<to"), rows)
    yield from help_parts(report.growth, report.helps)
    yield from bullets("A run's peaks may be lower", report.differs)
    yield from bullets("Warnings", report.warnings, "yellow")
    yield Text(f"Estimated in {digits(report.host.wall_s)} s on this machine; siltwin {report.siltwin_version}.", "dim")


def _budget(card: CardBudget) -> RenderableType:
    rows = [(line.what, line.name, line.formula, f"{line.num_bytes:,}") for line in card.lines]
    cards = f"{'card' if len(card.ranks) == 1 else 'each of cards'} {ranges(card.ranks)}"
    title = f"Estimate for {cards} (stage {card.stage})"
    return table(title, ("what", "<buffers", "<formula", "bytes"), rows)


def _sum(card: CardBudget) -> str:
    usable = card.capacity_bytes - card.reserved_bytes
    tags = ", ".join(f"{tag} {size(held)}" for tag, held in sorted(card.by_tag.items(), key=lambda item: -item[1]))
    return (
        f"Together {exact_size(card.peak_bytes)}, {percent(card.peak_bytes, usable)} of the {size(usable)} that "
        f"{size(card.capacity_bytes)} leave beside the reserve: {tags}."
    )
