"""A job with its budget, and what its closed forms answer: how much it needs, and how far it could grow."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ..models.checkpoint import Checkpoint
from .budget import Budget
from .expert_room import with_proportional_room
from .fits import largest_batch, largest_context
from .job import Job
from .layout import Layout
from .prepare import Prepared, prepare
from .thresholds import within_alert


@dataclass(frozen=True)
class Budgeted:
    """A job and its budget, whose questions are answered once."""

    prepared: Prepared
    budget: Budget

    @property
    def layout(self) -> Layout:
        """The layout that it is of."""
        return self.prepared.plan.layout

    @cached_property
    def need_bytes(self) -> int:
        """What the fullest card needs."""
        return self.budget.need_bytes(self.prepared.plan)

    @cached_property
    def batch(self) -> int:
        """Most sequences that fit."""
        return largest_batch(with_proportional_room(self.prepared.plan), self.budget.fits, self.budget.need_bytes)

    @cached_property
    def context(self) -> int:
        """Most tokens of each sequence that fit."""
        return largest_context(with_proportional_room(self.prepared.plan), self.budget.fits, self.budget.need_bytes)

    @property
    def fits(self) -> bool:
        """Whether the job fits as asked."""
        return self.budget.fits(self.prepared.plan)


def budgeted(job: Job, checkpoint: Checkpoint) -> Budgeted:
    """The budget of a job, within its alerts of memory."""
    prepared = within_alert(prepare(job, checkpoint=checkpoint))
    return Budgeted(prepared, Budget(prepared.plan))
