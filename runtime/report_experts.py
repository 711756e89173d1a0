"""The section of a run's report that tells how unevenly experts were loaded."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from .report_base import Count, Part

Ratio = Annotated[float, Field(ge=1)]


class LayerSkew(Part):
    """The most uneven step of one expert layer: that in which most rows beyond the mean went to one card.

    `rows` go to the busiest card's experts, `card_over_mean` is that over the mean of all cards, and `expert_over_mean`
    the same of the busiest expert (or slot, where experts stand in several) and the mean of all experts.
    """

    layer: Count
    step: Count
    card: Count
    rows: Count
    card_over_mean: Ratio
    expert: Count
    expert_over_mean: Ratio


class ExpertLoads(Part):
    """How unevenly experts were loaded: `routing` is who dealt tokens to them, `layers` the worst step of every layer.

    `median_card_over_mean` is that of the layers.
    """

    routing: str
    largest: LayerSkew
    median_card_over_mean: Ratio
    layers: tuple[LayerSkew, ...]
