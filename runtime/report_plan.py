"""The plan of a job as a versioned schema: a budget of every kind of card, formula by formula, before anything runs."""

from __future__ import annotations

from typing import Literal

from .report_base import Count, NumBytes, Part
from .report_document import HostReport, JobDocument
from .report_limits import Growth, Help, JobSizes


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
