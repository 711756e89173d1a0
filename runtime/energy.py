"""The energy section of a report: totals by what took them, parts of the model, steps, cards, and one card's curve."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from ..emulator.calendar.solver import Ints
from ..emulator.energy import PS_PER_S, Drawn, joules_of
from ..emulator.exchange_use import alike
from ..emulator.span_columns import CardColumns
from ..emulator.timeline import Timeline
from ..emulator.usage import Ledger
from ..isa.program import Block
from .communication import axis_of
from .heat import Change
from .model_parts import COLLECTIVES, parts_of
from .power_curve import power_curve
from .report_energy import (
    CURVE_BINS,
    MOST_CHANGES,
    ClockChange,
    EnergyReport,
    PartEnergy,
    PowerCurve,
    StepEnergy,
)
from .rests_on import weakest_power

if TYPE_CHECKING:
    from .layout import Layout
    from .run import RunState, StepRecord


def energy_report(state: RunState, elapsed_ps: int) -> EnergyReport | None:
    """What a run took; None before its first step, and what is missing where the card states too little."""
    heat, card, cluster = state.heat, state.prepared.plan.card, state.cluster
    if not state.records:
        return None
    if heat.unstated:
        return EnergyReport(unstated=heat.unstated)
    each = joules_of(card, elapsed_ps, cluster.ledger.drawn())
    cards = np.broadcast_to(each.total, len(cluster.cards)).tolist()
    together = Drawn(*(int(column.sum()) for column in cluster.ledger.drawn()))
    joules = joules_of(card, elapsed_ps * len(cards), together)
    rank = int(np.argmax(cards))
    curve = power_curve(card, cluster.ledger, state.records, rank, CURVE_BINS)
    output, seconds = sum(request.generated for request in state.requests), elapsed_ps / PS_PER_S
    return EnergyReport(
        weakest=weakest_power(card),
        total_j=joules.total,
        idle_j=joules.idle,
        operations_j=joules.operations,
        hbm_j=joules.hbm,
        links_j=joules.links,
        mean_w=joules.total / seconds / len(cards) if seconds else None,
        peak_w=curve.peak_w,
        output_tokens_per_j=output / joules.total if joules.total else None,
        parts=_parts(state, joules.total),
        steps=tuple(StepEnergy(**step._asdict()) for step in heat.steps),
        cards_j=tuple(cards),
        hottest_c=max((step.hottest_c for step in heat.steps if step.hottest_c is not None), default=None),
        limit_c=heat.thermal.limit_c if heat.thermal else None,
        changes=tuple(map(_change, heat.changes[:MOST_CHANGES])),
        more_changes=max(0, len(heat.changes) - MOST_CHANGES),
        curve=PowerCurve(card=rank, bin_ps=curve.bin_ps, watts=curve.watts, clock_hz=curve.clock_hz),
    )


def _change(change: Change) -> ClockChange:
    return ClockChange(
        step=change.step,
        time_ps=change.time_ps,
        card=change.ranks[0],
        cards=len(change.ranks),
        clock_hz=change.clock_hz,
        temperature_c=change.temperature_c,
    )


def _parts(state: RunState, whole_j: float) -> tuple[PartEnergy, ...]:
    """Energy by part of the model, the largest first; what cards draw idle belongs to no part."""
    card, found = state.prepared.plan.card, _PartSums(state.cluster.ledger, state.prepared.plan.layout)
    for record in state.records:
        found.add(record)
    joules = {part: joules_of(card, 0, drawn).total for part, drawn in found.sums()}
    return tuple(
        PartEnergy(part=part, energy_j=energy, share=energy / whole_j if whole_j else 0.0)
        for part, energy in sorted(joules.items(), key=lambda item: (-item[1], item[0]))
        if energy
    )


class _PartSums:
    """What was done for each part of the model on all cards, as exact integers."""

    def __init__(self, ledger: Ledger, layout: Layout) -> None:
        self._ledger, self._layout = ledger, layout
        self._known: dict[int, tuple[Timeline, tuple[str, ...], Ints]] = {}
        self._blocks: dict[int, tuple[Block, tuple[str, ...]]] = {}
        self._sums: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0])

    def add(self, record: StepRecord) -> None:
        """Add a step."""
        for own in record.columns:
            self._add_card(own)
        for some in alike(record.exchanges):
            part = f"{COLLECTIVES} {axis_of(self._layout, some.first.ranks)}"
            moved = self._ledger.moved(some.first.demand)
            self._enter(part, [some.number * int(column.sum()) for column in moved])

    def sums(self) -> Iterable[tuple[str, Drawn]]:
        """What each part took."""
        return [(part, Drawn(*taken)) for part, taken in self._sums.items()]

    def _add_card(self, own: CardColumns) -> None:
        names, of_site = self._parts(own.timeline)
        counts = np.bincount(own.sites, minlength=len(own.ops))
        done = np.zeros((len(names), 2), np.int64)
        np.add.at(done, of_site, np.stack(self._ledger.alone(own.ops), axis=1) * counts[:, None])
        for part, (energy, hbm_bytes) in zip(names, done.tolist(), strict=True):
            self._enter(part, [energy * len(own.ranks), hbm_bytes * len(own.ranks), 0])

    def _enter(self, part: str, taken: list[int]) -> None:
        self._sums[part] = [one + more for one, more in zip(self._sums[part], taken, strict=True)]

    def _parts(self, timeline: Timeline) -> tuple[tuple[str, ...], Ints]:
        """The parts of a program, and which of them each site belongs to."""
        if id(timeline) not in self._known:
            each = [self._of_block(site.block)[site.position] for site in timeline.sites]
            names = tuple(dict.fromkeys(each))
            numbers = {name: number for number, name in enumerate(names)}
            self._known[id(timeline)] = timeline, names, np.array([numbers[name] for name in each], np.int64)
        _, names, of_site = self._known[id(timeline)]
        return names, of_site

    def _of_block(self, block: Block) -> tuple[str, ...]:
        if id(block) not in self._blocks:
            self._blocks[id(block)] = block, parts_of(block)
        return self._blocks[id(block)][1]
