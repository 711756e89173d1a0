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


def outside(card: CardSpec, records: Sequence[StepRecord]) -> tuple[str, ...]:
    """What lay outside of the ranges of calibrated kinds, in words; nothing on a card without calibration."""
    calibration = card.calibration
    if calibration is None:
        return ()
    kinds = dict.fromkeys(record.step.kind for record in records)
    looked_at = [one for kind in kinds for one in _spread([r for r in records if r.step.kind == kind])]
    works = (work for record in looked_at for work in _works(record))
    found = dict.fromkeys(reason for work in works for reason in _reasons(work, calibration))
    return tuple(f"outside what was calibrated: {reason}" for reason in found)


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


def _reasons(work: Work, calibration: Calibration) -> Iterator[str]:
    if isinstance(work.shape, FusedShape):
        for part in work.shape.parts:
            yield from _reasons(part, calibration)
        return
    found = sizes_of(work)
    if found is None:
        if isinstance(work.shape, AttentionShape) and any(work.shape.q_lens) and "prefill" in calibration.kinds:
            yield "prefill of tokens that come to a cache, which no table times"
        return
    kind, sizes = found
    told = calibration.kinds.get(kind)
    if told is not None and not told.ranges:
        yield f"{kind}, of which no sizes were measured"
    for name in told.beyond(sizes) if told is not None else ():
        assert told is not None
        low, high = told.ranges[name]
        side = "below" if sizes[name] < low else "above"
        yield f"{kind} at {name} {side} the {low:,.0f} to {high:,.0f} that were measured"
