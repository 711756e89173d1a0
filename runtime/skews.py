"""How unevenly a run's experts were loaded: what the busiest card and expert of every layer got over the mean."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import TYPE_CHECKING

from .dispatch import busiest_rank, dispatched
from .layer_loads import LayerLoads
from .report_experts import ExpertLoads, LayerSkew
from .scheduler import Step

if TYPE_CHECKING:
    from .plan import JobPlan


class Skews:
    """The most uneven step of every expert layer so far: where most rows beyond the mean went to one card."""

    def __init__(self, plan: JobPlan) -> None:
        self.plan = plan
        self._worst: dict[int, LayerSkew] = {}

    def add(self, step: Step, routed: Mapping[str, LayerLoads]) -> None:
        """Account a step's loads."""
        graph, layout = self.plan.graph, self.plan.layout
        for _, layer, loads in dispatched(graph, layout, routed):
            card, expert = loads.skew
            if not card:
                continue
            rows = int(loads.arriving.max())
            known = self._worst.get(layer.index)
            if known is None or _beyond(rows, card) > _beyond(known.rows, known.card_over_mean):
                self._worst[layer.index] = LayerSkew(
                    layer=layer.index,
                    step=step.index,
                    card=busiest_rank(graph, layer, loads),
                    rows=rows,
                    card_over_mean=card,
                    expert=int(loads.totals.sum(axis=0).argmax()),
                    expert_over_mean=expert,
                )

    def report(self) -> ExpertLoads | None:
        """What was found; None where nothing was routed."""
        layers = tuple(self._worst[index] for index in sorted(self._worst))
        if not layers:
            return None
        return ExpertLoads(
            routing="router" if self.plan.routing is None else str(self.plan.routing),
            largest=max(layers, key=lambda layer: _beyond(layer.rows, layer.card_over_mean)),
            median_card_over_mean=median(layer.card_over_mean for layer in layers),
            layers=layers,
        )


def _beyond(rows: int, over_mean: float) -> float:
    """Rows beyond the mean."""
    return rows - rows / over_mean
