"""The limits of a job as a versioned schema: what each card needs, and where the job stops to fit."""

from __future__ import annotations

from .report import Fits, HostReport, JobDocument
from .report_base import Count, NumBytes, Part


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


class LimitsReport(JobDocument):
    """Where a job breaks, found by the allocator that runs it: what it names fits, one granule or token more does not.

    `largest_context` counts prompt, cached and generated tokens of a sequence.
    """

    job: JobSizes
    fits_as_asked: bool
    granule_bytes: NumBytes
    cards: tuple[CardNeed, ...]
    fits: Fits
    warnings: tuple[str, ...] = ()
    not_modelled: tuple[str, ...] = ()
    host: HostReport
