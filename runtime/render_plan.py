"""The plan of a job as text on a terminal: every formula of the budget, and how far the job could grow."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, RenderableType
from rich.text import Text

from .render import NONE_FITS, job_line
from .report_plan import CardBudget, Growth, PlanReport
from .terminal import bullets, digits, exact_size, percent, ranges, size, table


def print_plan(report: PlanReport, console: Console) -> None:
    """The budget of every kind of card, an estimate by closed forms."""
    for part in _parts(report):
        console.print(part)


def _parts(report: PlanReport) -> Iterator[RenderableType]:
    job = report.job
    yield job_line(report)
    cached = f"{job.cached_tokens:,} cached, " if job.cached_tokens else ""
    yield Text(
        f"{job.batch:,} sequences of {cached}{job.prompt_tokens:,} prompt and {job.output_tokens:,} output tokens: "
        + ("fits, by estimate." if report.fits else "does NOT fit, by estimate.")
    )
    for card in report.cards:
        yield ""
        yield _budget(card)
        yield Text(_sum(card))
    yield ""
    batch = f"{report.largest_batch:,} sequences" if report.largest_batch else NONE_FITS
    context = f"{report.largest_context:,} tokens a sequence" if report.largest_context else NONE_FITS
    rows = [("largest batch", batch), ("largest context", context)]
    yield table("Where the estimate reaches the capacity", ("changing only", "<to"), rows)
    yield from bullets("What grows on a card", [f"{item.by}: {_grown(item)}" for item in report.growth])
    if report.helps:
        yield ""
        yield _helps(report)
        refused = [f"{item.change}: {item.refused}" for item in report.helps if item.refused is not None]
        yield from bullets("Changes that are refused", refused, "dim")
    yield from bullets("A run's peaks may be lower", report.differs)
    yield from bullets("Warnings", report.warnings, "yellow")
    yield Text(f"Estimated in {digits(report.host.wall_s)} s on this machine; siltwin {report.siltwin_version}.", "dim")


def _budget(card: CardBudget) -> RenderableType:
    rows = [(line.what, line.name, line.formula, f"{line.num_bytes:,}") for line in card.lines]
    cards = f"{'card' if len(card.ranks) == 1 else 'each of cards'} {ranges(card.ranks)}"
    title = f"Estimate for {cards} (stage {card.stage})"
    return table(title, ("what", "<buffers", "<formula", "bytes"), rows)


def _grown(growth: Growth) -> str:
    tags = sorted(growth.tags.items(), key=lambda item: -item[1])
    return ", ".join(f"{tag} {grown:+,} B" for tag, grown in tags) or "nothing"


def _helps(report: PlanReport) -> RenderableType:
    rows = [
        (
            item.change,
            item.cards,
            size(item.need_bytes),
            ("-" if item.saves_bytes < 0 else "") + size(abs(item.saves_bytes)),
            f"{item.largest_batch:,}",
            f"{item.largest_context:,}",
        )
        for item in report.helps
        if item.need_bytes is not None and item.saves_bytes is not None
    ]
    columns = ("changing only", "cards", "a card needs", "saves", "largest batch", "largest context")
    return table("What would help (estimates)", columns, rows)


def _sum(card: CardBudget) -> str:
    usable = card.capacity_bytes - card.reserved_bytes
    tags = ", ".join(f"{tag} {size(held)}" for tag, held in sorted(card.by_tag.items(), key=lambda item: -item[1]))
    return (
        f"Together {exact_size(card.peak_bytes)}, {percent(card.peak_bytes, usable)} of the {size(usable)} that "
        f"{size(card.capacity_bytes)} leave beside the reserve: {tags}."
    )
