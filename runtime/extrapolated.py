"""Whether a run asked its card for anything outside of the sizes at which the card was calibrated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..emulator.calibrated import Calibration, sizes_of
from ..emulator.spec import CardSpec
from ..isa.work import AttentionShape, FusedShape, Unit, Work

if TYPE_CHECKING:
    from .run import StepRecord

STEPS_LOOKED_AT = 16  # of each kind, evenly from the first to the last: lengths grow from step to step


def is_extrapolated(card: CardSpec, records: Sequence[StepRecord]) -> bool:
    """Whether some instruction of a calibrated kind lay outside of its ranges; False on a card without calibration."""
    calibration = card.calibration
    if calibration is None:
        return False
    kinds = dict.fromkeys(record.step.kind for record in records)
    looked_at = [one for kind in kinds for one in _spread([r for r in records if r.step.kind == kind])]
    return any(_outside(work, calibration) for record in looked_at for work in _works(record))


def _spread(records: list[StepRecord]) -> list[StepRecord]:
    last = len(records) - 1
    count = min(STEPS_LOOKED_AT, len(records))
    return [records[round(index * last / max(1, count - 1))] for index in range(count)]


def _works(record: StepRecord) -> Iterator[Work]:
    """The Work of the instructions of a step: of each card that was looked at, one for all that asked the same."""
    for columns in record.columns:
        timeline = columns.timeline
        _, first = np.unique(timeline.asked, return_index=True)
        for site in first.tolist():
            if timeline.sites[site].instruction.unit is Unit.TENSOR:
                yield columns.ops[site].cost.work


def _outside(work: Work, calibration: Calibration) -> bool:
    if isinstance(work.shape, FusedShape):
        return any(_outside(part, calibration) for part in work.shape.parts)
    found = sizes_of(work)
    if found is None:  # tokens that come to a cache: no table times such prompts
        return isinstance(work.shape, AttentionShape) and any(work.shape.q_lens) and "prefill" in calibration.kinds
    told = calibration.kinds.get(found[0])
    return told is not None and not told.covers(found[1])
