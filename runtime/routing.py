"""Routing models: how many tokens each expert gets in a step, where no numbers say so."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from ..models.blocks import Graph, Moe
from .layout import Layout
from .lowering.experts import expert_extent
from .lowering.stage import routed_extent
from .lowering.weights import layer_name


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


def step_routing(
    graph: Graph, layout: Layout, index: int, tokens: Sequence[int], routing: Routing
) -> dict[str, Counts]:
    """The loads of step `index`'s expert layers, one holder after the other, by a routing model.

    `tokens` are those of each holder.
    """
    found: dict[str, Counts] = {}
    for layer in graph.layers:
        if isinstance(layer.mlp, Moe):
            top_k, experts = layer.mlp.router.top_k, layer.mlp.experts.count
            each = (
                routing(Routed(index, layer.index, own, top_k, experts, layout.expert_parts, holder))
                for holder, own in enumerate(tokens)
            )
            found[expert_extent(layer_name(layer))] = tuple(chain.from_iterable(each))
    return found


def recorded(steps: Mapping[int, Mapping[str, Counts]]) -> Routing:
    """What an earlier run's layers were given, by step and extent: the same job in the same layout takes as long."""

    def counts(routed: Routed) -> Counts:
        size = routed.parts * routed.experts
        loads = steps[routed.step][expert_extent(f"layers.{routed.layer}")]
        return loads[routed.holder * size : (routed.holder + 1) * size]

    return counts


def has_experts(graph: Graph) -> bool:
    """Whether any layer routes tokens."""
    return any(isinstance(layer.mlp, Moe) for layer in graph.layers)


def routed_extents(graph: Graph, tokens: int) -> dict[str, tuple[int, ...]]:
    """The scalar extents that count a step's choices of experts."""
    ways = {layer.mlp.router.top_k for layer in graph.layers if isinstance(layer.mlp, Moe)}
    return {routed_extent(top_k): (tokens * top_k,) for top_k in sorted(ways)}
