"""Where the time of a phase went, as text on a terminal: parts of the model, instructions, wires, and what limits."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType

from ..emulator.span import BOUNDS
from .report import Phases
from .report_base import Bounds
from .report_breakdown import Breakdown
from .terminal import NONE, bullets, digits, duration, percent, table

MOST_PARTS = 12
TERA = 1e12


def breakdown_parts(phases: Phases) -> Iterator[RenderableType]:
    """The tables of every phase that took place."""
    for kind, phase in phases.by_kind.items():
        if phase.breakdown.parts:
            yield from _of_phase(kind, phase.breakdown)


def _of_phase(kind: str, found: Breakdown) -> Iterator[RenderableType]:
    yield ""
    rows = [(part.part, duration(part.time_ps), percent(part.share, 1), shares(part.bounds)) for part in found.parts]
    shown, rest = rows[:MOST_PARTS], found.parts[MOST_PARTS:]
    if rest:
        time, share = sum(part.time_ps for part in rest), sum(part.share for part in rest)
        shown.append((f"{len(rest)} more", duration(time), percent(share, 1), ""))
    yield table(f"Critical time of {kind}, by part of the model", ("part", "time", "share", "<held by"), shown)
    yield ""
    yield _instructions(kind, found)
    yield ""
    yield _roofline(kind, found)
    if found.overlap:
        yield ""
        yield _overlap(kind, found)
    yield ""
    yield from bullets(f"What limits {kind}", found.limits)


def _instructions(kind: str, found: Breakdown) -> Group:
    rows = [
        (
            f"{number}",
            f"{one.mnemonic} {one.shape}",
            f"{one.count:,}",
            duration(one.mean_ps),
            percent(one.share, 1),
            one.bound,
        )
        for number, one in enumerate(found.instructions, 1)
    ]
    more = f" ({found.left_out} more held some)" if found.left_out else ""
    columns = ("", "<instruction", "count", "each", "share", "<bound")
    return table(f"Instructions that held most of {kind}{more}", columns, rows)


def _roofline(kind: str, found: Breakdown) -> Group:
    rows = [
        (
            f"{number} {one.mnemonic}",
            NONE if one.ops_per_byte is None else digits(one.ops_per_byte),
            *_of(one.ops_per_s, one.attainable_ops_per_s),
            *_of(one.bytes_per_s, one.attainable_bytes_per_s),
        )
        for number, one in enumerate(found.instructions, 1)
    ]
    columns = ("", "ops/B", "Tops/s", "could be", "TB/s", "could be")
    return table(f"Where they stand under the roofline in {kind}", columns, rows)


def _of(rate: float | None, most: float | None) -> tuple[str, str]:
    """What is done in a second of what could be, in millions of millions."""
    one, other = (NONE if value is None else digits(value / TERA) for value in (rate, most))
    return one, other


def _overlap(kind: str, found: Breakdown) -> Group:
    rows = [
        (
            row.axis,
            duration(row.time_ps),
            duration(row.hidden_ps),
            duration(row.exposed_ps),
            percent(row.exposed_ps, row.time_ps),
            duration(row.waited_ps),
        )
        for row in found.overlap
    ]
    columns = ("axis", "time", "hidden", "exposed", "of it", "before it, waiting for peers")
    return table(f"Communication of {kind} beside computation, mean of the cards", columns, rows)


def shares(bounds: Bounds) -> str:
    """What held the time, largest first; what rounds to nothing is left out."""
    held = sorted(((getattr(bounds, name), name) for name in BOUNDS), key=lambda entry: -entry[0])
    return ", ".join(
        f"{name} {100 * ps / bounds.total_ps:.0f} %" for ps, name in held if 200 * ps >= bounds.total_ps > 0
    )
