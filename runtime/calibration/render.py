"""A calibration as text on a terminal: how well each kind fits the rows that its fit did not see."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, RenderableType

from ..terminal import NONE, bullets, table
from .calibrate import Calibrated

COLUMNS = ("|kind", "fit", "rows", "held", "before", "mean", "median", "p90", "every", "noise")
READING = (
    "errors in percent, |predicted / measured - 1| on rows of groups of shapes that no fit saw, of the types and sizes "
    "that models mostly ask; before: the mean with the constants that the card came with; every: the mean of all rows "
    "held out; noise: how far repeats of one row lie from their mean",
)


def print_calibrated(found: Calibrated, console: Console) -> None:
    """Everything a calibration found."""
    for part in _parts(found):
        console.print(part)


def _parts(found: Calibrated) -> Iterator[RenderableType]:
    calibration = found.card.calibration
    assert calibration is not None
    rows = []
    for result in found.kinds:
        told, every = calibration.kinds[result.kind], result.after.every
        usual = told.usual
        shares = (result.before.usual.mean, usual.mean, usual.median, usual.p90, every.mean, every.noise)
        rows.append((result.kind, told.fit, f"{told.rows:,}", f"{usual.rows:,}", *map(_percent, shares)))
    yield table(f"{found.card.name}, kernels of {found.card.kernels}", COLUMNS, rows)
    yield from bullets("Reading", READING, "dim")
    yield from bullets("Notes", found.notes, "yellow")


def _percent(share: float | None) -> str:
    return NONE if share is None else f"{100 * share:.1f}"
