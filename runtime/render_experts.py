"""How unevenly experts were loaded, as text on a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType

from .report_experts import ExpertLoads
from .terminal import bullets, digits

ROUTERS = {"router": "the model's router"}


def expert_lines(loads: ExpertLoads) -> Iterator[RenderableType]:
    """Two lines: what the busiest card got, and what the busiest expert."""
    worst = loads.largest
    yield from bullets(
        f"Expert load ({ROUTERS.get(loads.routing, loads.routing)})",
        (
            f"busiest card: {worst.rows:,} rows, {digits(worst.card_over_mean)} times the mean (layer {worst.layer}, "
            f"step {worst.step}, card {worst.card}); {digits(loads.median_card_over_mean)} times in the median layer",
            f"busiest expert there: {digits(worst.expert_over_mean)} times the mean (expert {worst.expert})",
        ),
    )
