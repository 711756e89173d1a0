"""Fidelity as text on a terminal: a card's scores of every subset, and where in its sizes the errors are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console, RenderableType
from rich.text import Text

from ..terminal import NONE, bullets, plain, table
from .report import Comparison, FidelityReport
from .scores import Score
from .sizes import SIZES
from .subsets import SUBSETS

SCORES = ("rows", "mean", "median", "p90", "in 5%", "by time", "bias")
READING = (
    "all figures but rows are percent: mean, median and p90 of |predicted / measured - 1|; in 5%: the share of rows "
    "within 5 %; by time: the sum of |predicted - measured| over that of measured; bias: the mean of predicted / "
    "measured - 1; a key measured r times weighs 1/r a row",
    "floor: the mean distance of repeated measurements from their own mean; nothing below it means anything",
)


def print_fidelity(report: FidelityReport, console: Console) -> None:
    """Everything a comparison found."""
    for part in _parts(report):
        console.print(part)


def _parts(report: FidelityReport) -> Iterator[RenderableType]:
    for card in dict.fromkeys(found.card for found in report.comparisons):
        own = [found for found in report.comparisons if found.card == card]
        yield Text(plain(f"{card}: {'; '.join(dict.fromkeys(found.rests_on for found in own))}"), style="bold")
        yield from _card(own)
    yield from bullets("Subsets", _meanings(report))
    yield from bullets("Reading", READING, "dim")
    yield from bullets("Notes", report.notes, "yellow")


def _card(own: Sequence[Comparison]) -> Iterator[RenderableType]:
    """Scores of a card's subsets, then each by size."""
    rows = [(found.subset, *_cells(found.score), _percent(found.floor)) for found in own]
    yield table("Predicted against measured, errors in percent", ("|subset", *SCORES, "floor"), rows)
    yield ""
    for found in own:
        size = SIZES[found.op].name
        rows = [(rung, *_cells(scored)) for rung, scored in found.by_size()]
        yield table(f"{found.card} {found.subset} by {size}", (f"|{size}", *SCORES), rows)
        yield ""


def _cells(found: Score) -> tuple[str, ...]:
    shares = (found.mean_ape, found.median_ape, found.p90_ape, found.within_5pct, found.time_weighted_ape)
    return f"{found.n:,}", *map(_percent, shares), f"{100 * found.bias:+.1f}"


def _percent(share: float | None) -> str:
    return NONE if share is None else f"{100 * share:.1f}"


def _meanings(report: FidelityReport) -> list[str]:
    libraries = {found.subset: found.library for found in report.comparisons}
    return [
        f"{subset.name}: {subset.means}" + (f"; kernels of {libraries[subset.name]}" if libraries[subset.name] else "")
        for subset in SUBSETS
        if subset.name in libraries
    ]
