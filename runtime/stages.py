"""How busy pipeline stages are: the bubbles between the micro-batches that pass through them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from ..emulator.span import Span
from .layout import Layout
from .report import StageReport


def stage_reports(layout: Layout, num_layers: int, spans: Sequence[Span], elapsed_ps: int) -> tuple[StageReport, ...]:
    """A row for each stage: its layers, and the share of the time in which its cards executed nothing."""
    busy: dict[int, list[tuple[int, int]]] = {rank: [] for rank in range(layout.cards)}
    for span in spans:
        busy[span.card].append((span.start_ps, span.end_ps))
    cards = [covered_ps(intervals) for intervals in busy.values()]
    found = []
    for stage, layers in enumerate(layout.stage_layers(num_layers)):
        own = cards[stage * layout.stage_cards : (stage + 1) * layout.stage_cards]
        mean = sum(own) // len(own)
        idle = 1 - mean / elapsed_ps if elapsed_ps else 0.0
        found.append(StageReport(stage=stage, layers=len(layers), busy_ps=mean, idle_share=idle))
    return tuple(found)


def covered_ps(intervals: Iterable[tuple[int, int]]) -> int:
    """Picoseconds that at least one (start, end) covers."""
    pairs = np.array(sorted(intervals), np.int64).reshape(-1, 2)
    if not len(pairs):
        return 0
    starts, ends = pairs[:, 0], pairs[:, 1]
    reached = np.concatenate(([starts[0]], np.maximum.accumulate(ends)[:-1]))
    return int(np.maximum(0, ends - np.maximum(starts, reached)).sum())
