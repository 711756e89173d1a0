"""The report of a sweep as a versioned schema: a point for every value of one axis, and why the curve bends."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ..emulator.span import Bound
from .report_base import Bounds, Count, NumBytes, Part, PerSecond, Picoseconds, Seconds
from .report_document import Document, HostReport


class SweepPoint(Part):
    """One value of the axis: a run, an out-of-memory, or a job that was refused, with the reason.

    `step_ps` is the mean time of a step; `tokens` all new tokens that steps computed, prompt and output alike, whose
    rate is `tokens_per_s`, and `tokens_per_s_per_card` of each of `cards`. `exposed_ps` is the communication of a card
    (mean) that nothing hid, and `bounds` the critical time of all phases; both over `elapsed_ps`.
    """

    value: Count
    status: Literal["ran", "oom", "refused"]
    reason: str | None = None
    layout: str | None = None
    cards: Count | None = None
    elapsed_ps: Picoseconds | None = None
    step_ps: Picoseconds | None = None
    ttft_s: Seconds | None = None
    tpot_s: Seconds | None = None
    tokens: Count | None = None
    tokens_per_s: PerSecond | None = None
    tokens_per_s_per_card: PerSecond | None = None
    exposed_ps: Picoseconds | None = None
    peak_bytes: NumBytes | None = None
    bound: Bound | None = None
    bounds: Bounds | None = None


class SweepReport(Document):
    """One job at several values of one axis, all else as asked; `why` tells from the runs what bends the curve."""

    model: str
    card: str
    axis: str
    points: Annotated[tuple[SweepPoint, ...], Field(min_length=1)]
    why: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    not_modelled: tuple[str, ...] = ()
    host: HostReport

    @property
    def ran(self) -> tuple[SweepPoint, ...]:
        """The points that came to their end."""
        return tuple(point for point in self.points if point.status == "ran")
