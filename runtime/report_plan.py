"""The plan of a job as a versioned schema: a budget of every kind of card, formula by formula, before anything runs."""

from __future__ import annotations

from typing import Literal

from .report import HostReport, JobDocument
from .report_base import Count, NumBytes, Part
from .report_limits import JobSizes


class BudgetLine(Part):
    """What one kind of thing takes on a card: `formula` with its numbers, `tag` as a run accounts it.

    `name` is that of the buffers, with * for the number of a layer.
    """

    tag: str
    what: str
    name: str
    formula: str
    num_bytes: NumBytes


class CardBudget(Part):
    """What every one of these ranks holds at its peak: lines that sum to `peak_bytes`, the reserve not counted."""

    ranks: tuple[Count, ...]
    stage: Count
    lines: tuple[BudgetLine, ...]
    by_tag: dict[str, NumBytes]
    peak_bytes: NumBytes
    reserved_bytes: NumBytes
    capacity_bytes: NumBytes


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


class PlanReport(JobDocument):
    """A budget by closed forms: an estimate, which a run's allocator confirms to the byte but for what `differs` names.

    `largest_batch` sequences like the longest, and `largest_context` tokens a sequence, are where the forms reach the
    capacity; 0: not even one fits. `helps` are other budgets, where they were asked for.
    """

    label: Literal["estimate"] = "estimate"
    job: JobSizes
    fits: bool
    cards: tuple[CardBudget, ...]
    largest_batch: Count
    largest_context: Count
    growth: tuple[Growth, ...] = ()
    helps: tuple[Help, ...] = ()
    differs: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    not_modelled: tuple[str, ...] = ()
    host: HostReport
