"""Operator coverage as a versioned schema: what a model needs of a card, how it gets it, what fusions would save."""

from __future__ import annotations

from typing import Literal

from ..interconnect.evidence import EvidenceKind
from .report_base import Count, NumBytes, Part, Picoseconds
from .report_document import HostReport, JobDocument
from .scheduler import StepKind

Status = Literal["native", "composed", "missing"]


class StatedStep(Part):
    """A step of the job that costs are told for: `context` tokens in the cache of its longest sequence.

    `elapsed_ps` is how long all cards take as they are (null where something is missing), `native_ps` how long they
    would take if every instruction were native (null where its element type is not).
    """

    kind: StepKind
    tokens: Count
    sequences: Count
    context: Count
    elapsed_ps: Picoseconds | None
    native_ps: Picoseconds | None


class Cost(Part):
    """What instructions cost in a step: launches, bytes to and from HBM, and picoseconds, each place emulated alone."""

    launches: Count
    hbm_bytes: NumBytes
    time_ps: Picoseconds


class StepCost(Part):
    """A composition beside the instruction it stands for, in all places of one stated step."""

    composed: Cost
    native: Cost | None


class OperatorPart(Part):
    """One instruction in one element type: `issues` of a step, by block, on one card of each pipeline stage.

    A composed one lists the `parts` it is made of and, for each stated step, what they cost; a missing one has a
    `reason`.
    """

    mnemonic: str
    dtype: str
    unit: str
    status: Status
    issues: Count
    blocks: dict[str, Count]
    parts: tuple[str, ...] = ()
    costs: tuple[StepCost, ...] = ()
    reason: str | None = None


class Saving(Part):
    """What a fusion saves in a stated step: HBM bytes of one card of each stage, and time of all cards (or null)."""

    hbm_bytes: int
    time_ps: int | None


class FusionPart(Part):
    """A fusion: `places` of a step where it acts, and what it alone saves; `is_on` where --fuse names it.

    `reason` says why it cannot act.
    """

    name: str
    is_on: bool
    places: Count
    launches_saved: Count
    savings: tuple[Saving, ...]
    reason: str | None = None


class CoverageReport(JobDocument):
    """Whether a card has every instruction that a model needs, itself or composed; `complete` says that it has."""

    complete: bool
    native: tuple[str, ...]
    native_evidence: EvidenceKind
    steps: tuple[StatedStep, ...]
    operators: tuple[OperatorPart, ...]
    fusions: tuple[FusionPart, ...]
    warnings: tuple[str, ...] = ()
    not_modelled: tuple[str, ...] = ()
    host: HostReport

    @property
    def missing(self) -> tuple[OperatorPart, ...]:
        """What the card can run in no way."""
        return tuple(operator for operator in self.operators if operator.status == "missing")
