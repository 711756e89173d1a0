"""Routing models: how many tokens each expert gets in a step, where no numbers say so."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from ..models.blocks import Graph, Moe
from .lowering.experts import expert_extent, slots_extent
from .lowering.stage import routed_extent
from .lowering.weights import layer_name
from .replicas import Placement, slot_loads

if TYPE_CHECKING:
    from .plan import JobPlan


@dataclass(frozen=True)
class Routed:
    """One expert layer of one step on one holder, whose tokens each choose `top_k` of `experts`.

    Token t is of part t % parts.
    """

    step: int
    layer: int
    tokens: int
    top_k: int
    experts: int
    parts: int
    holder: int = 0

    def choices_of(self, part: int) -> int:
        """Choices that the tokens of a part make together."""
        return len(range(part, self.tokens, self.parts)) * self.top_k


EVEN = (
    "without the payload every expert is given as many tokens as any other; what a model routes is uneven, and takes "
    "longer"
)
Counts = tuple[int, ...]  # entry p * experts + e: choices of expert e by the tokens of part p
Routing = Callable[[Routed], Counts]


def even(seed: int = 0) -> Routing:
    """Every expert gets as many rows as any other; experts drawn by the seed get what does not divide."""

    def counts(routed: Routed) -> Counts:
        found: list[int] = []
        for part in range(routed.parts):
            share, left = divmod(routed.choices_of(part), routed.experts)
            whose = f" of {routed.holder}" if routed.holder else ""
            draw = random.Random(f"even {seed} {routed.step} {routed.layer} {part}{whose}")
            lucky = set(draw.sample(range(routed.experts), left))
            found += [share + (expert in lucky) for expert in range(routed.experts)]
        return tuple(found)

    return counts


def step_routing(plan: JobPlan, index: int, tokens: Sequence[int], routing: Routing) -> dict[str, Counts]:
    """The loads of step `index`'s expert layers, one holder after the other, by a routing model.

    `tokens` are those of each holder. Where experts stand in several slots, so do the loads of these.
    """
    layout, found = plan.layout, dict[str, Counts]()
    for layer in plan.graph.layers:
        if not isinstance(layer.mlp, Moe):
            continue
        name, top_k, experts = layer_name(layer), layer.mlp.router.top_k, layer.mlp.experts.count
        each = [
            Routed(index, layer.index, own, top_k, experts, layout.expert_parts, holder)
            for holder, own in enumerate(tokens)
        ]
        counts = [routing(routed) for routed in each]
        found[expert_extent(name)] = tuple(chain.from_iterable(counts))
        if name in plan.placements:
            placement = plan.placements[name]
            slots = (_slots(routing, routed, own, placement) for routed, own in zip(each, counts, strict=True))
            found[slots_extent(name)] = tuple(chain.from_iterable(slots))
    return found


def _slots(routing: Routing, routed: Routed, counts: Counts, placement: Placement) -> Counts:
    """The loads of slots: as recorded, or those of each expert dealt to its slots."""
    if isinstance(routing, Recorded):
        return routing.slots(routed, len(placement))
    parts = (counts[part * routed.experts : (part + 1) * routed.experts] for part in range(routed.parts))
    return tuple(chain.from_iterable(slot_loads(part, placement) for part in parts))


@dataclass(frozen=True)
class Recorded:
    """What an earlier run's layers were given, by step and extent: the same job in the same layout takes as long."""

    steps: Mapping[int, Mapping[str, Counts]]

    def __call__(self, routed: Routed) -> Counts:
        return self._share(routed, expert_extent, routed.experts)

    def slots(self, routed: Routed, total: int) -> Counts:
        """Those of slots."""
        return self._share(routed, slots_extent, total)

    def _share(self, routed: Routed, extent: Callable[[str], str], experts: int) -> Counts:
        size = routed.parts * experts
        loads = self.steps[routed.step][extent(f"layers.{routed.layer}")]
        return loads[routed.holder * size : (routed.holder + 1) * size]


def recorded(steps: Mapping[int, Mapping[str, Counts]]) -> Routing:
    """The routing of an earlier run, from what each of its steps recorded."""
    return Recorded(steps)


def has_experts(graph: Graph) -> bool:
    """Whether any layer routes tokens."""
    return any(isinstance(layer.mlp, Moe) for layer in graph.layers)


def routed_extents(graph: Graph, tokens: int) -> dict[str, tuple[int, ...]]:
    """The scalar extents that count a step's choices of experts."""
    ways = {layer.mlp.router.top_k for layer in graph.layers if isinstance(layer.mlp, Moe)}
    return {routed_extent(top_k): (tokens * top_k,) for top_k in sorted(ways)}
