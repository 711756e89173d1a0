"""What plans and limits tell alike, as text on a terminal: the job's sizes, what it grows by, and what would help."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.text import Text

from .report_limits import Growth, Help, JobSizes
from .terminal import bullets, size, table


def sizes_line(job: JobSizes, verdict: str) -> Text:
    """What was asked, and whether that fits."""
    cached = f"{job.cached_tokens:,} cached, " if job.cached_tokens else ""
    tokens = f"{job.prompt_tokens:,} prompt and {job.output_tokens:,} output tokens"
    return Text(f"{job.batch:,} sequences of {cached}{tokens}: {verdict}")


def help_parts(growth: Sequence[Growth], helps: Sequence[Help]) -> Iterator[RenderableType]:
    """Both as estimates, and the changes that the job refuses."""
    yield from bullets("What grows on a card (estimate)", [f"{item.by}: {_grown(item)}" for item in growth])
    if helps:
        yield ""
        yield _helps(helps)
        refused = [f"{item.change}: {item.refused}" for item in helps if item.refused is not None]
        yield from bullets("Changes that are refused", refused, "dim")


def _grown(growth: Growth) -> str:
    tags = sorted(growth.tags.items(), key=lambda item: -item[1])
    return ", ".join(f"{tag} {grown:+,} B" for tag, grown in tags) or "nothing"


def _helps(helps: Sequence[Help]) -> RenderableType:
    rows = [
        (
            item.change,
            item.cards,
            size(item.need_bytes),
            ("-" if item.saves_bytes < 0 else "") + size(abs(item.saves_bytes)),
            f"{item.largest_batch:,}",
            f"{item.largest_context:,}",
        )
        for item in helps
        if item.need_bytes is not None and item.saves_bytes is not None
    ]
    columns = ("changing only", "cards", "a card needs", "saves", "largest batch", "largest context")
    return table("What would help (estimates)", columns, rows)
