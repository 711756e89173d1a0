"""How busy pipeline stages are: the bubbles between the micro-batches that pass through them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..emulator.intervals import covered_ps
from ..emulator.span_columns import CardColumns, alike_all_along
from .layout import Layout
from .report import StageReport


def stage_reports(
    layout: Layout, num_layers: int, steps: Sequence[Sequence[CardColumns]], elapsed_ps: int
) -> tuple[StageReport, ...]:
    """A row for each stage: its layers, and the share of the time in which its cards executed nothing."""
    cards = [0] * layout.cards
    for ranks, parts in alike_all_along(steps, layout.cards):
        busy_ps = covered_ps(np.concatenate([np.stack((part.start_ps, part.end_ps), 1) for part in parts]))
        for rank in ranks:
            cards[rank] = busy_ps
    found = []
    for stage, layers in enumerate(layout.stage_layers(num_layers)):
        own = cards[stage * layout.stage_cards : (stage + 1) * layout.stage_cards]
        mean = sum(own) // len(own)
        idle = 1 - mean / elapsed_ps if elapsed_ps else 0.0
        found.append(StageReport(stage=stage, layers=len(layers), busy_ps=mean, idle_share=idle))
    return tuple(found)
