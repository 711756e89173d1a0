"""What a job's memory grows by, and what would help it, as text on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType

from .report_limits import Growth, Help
from .terminal import bullets, size, table


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
