"""The limits of a job as a versioned schema: what cards need, where it stops to fit, what grows, what would help."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .report import Fits
from .report_base import Count, NumBytes, Part, Picoseconds
from .report_document import HostReport, JobDocument
from .scheduler import StepKind


class JobSizes(Part):
    """The job whose limits were asked for: the longest of its sequences where they differ."""

    batch: Count
    prompt_tokens: Count
    cached_tokens: Count = 0
    output_tokens: Count


class CardNeed(Part):
    """What the job needs of one card: `high_water_bytes` is the smallest HBM that holds it, the reserve included."""

    rank: Count
    stage: Count
    high_water_bytes: NumBytes
    capacity_bytes: NumBytes
    reserved_bytes: NumBytes
    by_tag: dict[str, NumBytes]


class Held(Part):
    """A job that fits, emulated: every allocation of it, and its first step in time.

    `step_ps` is null where the step could not run, for the reason in `untimed`.
    """

    value: Count
    layout: str
    card: Count
    peak_bytes: NumBytes
    step_kind: StepKind
    step_ps: Picoseconds | None
    untimed: str | None = None


class Broken(Part):
    """A job that does not fit, emulated to the allocation that failed; `step` is null while weights are loaded."""

    value: Count
    layout: str
    card: Count
    step: Count | None
    step_kind: StepKind | Literal["load"]
    request: Count | None
    tag: str
    owner: str
    requested_bytes: NumBytes
    missing_bytes: NumBytes
    by_tag: dict[str, NumBytes]


class Boundary(Part):
    """Where one size of the job stops to fit, emulated on both sides.

    `last` is the largest that fits (of `cards` the fewest) and `first` the next one, which does not; one of them is
    null where there is none, and `end` says why.
    """

    of: Literal["batch", "context", "cards"]
    last: Held | None
    first: Broken | None
    end: str | None = None


class Growth(Part):
    """What a card grows by, tag by tag, when the job grows `by` something; padding may shrink."""

    by: str
    tags: dict[str, int]


class Help(Part):
    """The job with one thing changed: what its fullest card then needs, the reserve included, and how far it can grow.

    `refused` says why it cannot be, and then there are no numbers.
    """

    change: str
    cards: Count | None = None
    need_bytes: NumBytes | None = None
    saves_bytes: int | None = None
    largest_batch: Count | None = None
    largest_context: Count | None = None
    refused: str | None = None


class LayoutRow(Part):
    """One legal layout by the closed forms of its budget."""

    layout: str
    cards: Count
    need_bytes: NumBytes
    fits: bool
    largest_batch: Count
    largest_context: Count


class LayoutSearch(Part):
    """All legal layouts whose cards divide `cards`; those that might be best were budgeted, an estimate.

    `left_out` are layouts that could by their bounds still be better than the best that was found. Contexts are
    spread over few cards, and for the longest context alone.
    """

    label: Literal["estimate"] = "estimate"
    cards: Count
    legal: Count
    left_out: Count
    rows: tuple[LayoutRow, ...]
    best_batch: str
    best_context: str


class LimitsReport(JobDocument):
    """Where a job breaks, found by the allocator that runs it: what it names fits, one granule or token more does not.

    `largest_context` counts prompt, cached and generated tokens of a sequence. `growth` and `helps` are estimates, by
    budgets. `within` is the share of a card's memory to stay within, where one was asked for: limits are those of cards
    with so much, and `cards` names it as their capacity.
    """

    job: JobSizes
    fits_as_asked: bool
    granule_bytes: NumBytes
    within: float | None = Field(default=None, gt=0, le=1)
    cards: tuple[CardNeed, ...]
    fits: Fits
    layouts: LayoutSearch | None = None
    boundaries: tuple[Boundary, ...] = ()
    growth: tuple[Growth, ...] = ()
    helps: tuple[Help, ...] = ()
    warnings: tuple[str, ...] = ()
    not_modelled: tuple[str, ...] = ()
    host: HostReport

    @property
    def cannot_fit(self) -> bool:
        """Whether neither fewer sequences nor shorter ones would fit."""
        return not (self.fits_as_asked or self.fits.largest_batch or self.fits.largest_context)
