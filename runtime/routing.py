"""Routing models: how many tokens each expert gets in a step, where no numbers say so."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ..isa.errors import ConfigError
from ..models.blocks import Graph, Moe
from ..models.fields import cut
from .dealing import deal_evenly, deal_slots
from .drawing import MOST_SKEW, draw
from .layer_loads import LayerLoads, Loads, loads_of, senders
from .layout import Layout
from .lowering.experts import expert_extent, slots_extent
from .lowering.passes.overlap import of_half
from .lowering.stage import routed_extent
from .lowering.weights import layer_name

if TYPE_CHECKING:
    from .plan import JobPlan
    from .replicas import Placement

EVEN = (
    "without the payload every expert is given as many tokens as any other; what a model routes is uneven, and takes "
    "longer: --routing zipf:1 shows how much"
)
FORMS = "even, multinomial, zipf:A or recorded:FILE"


@dataclass(frozen=True)
class Routed:
    """One expert layer of one step: each token of each holder (`tokens` of them) chooses `top_k` of `experts`.

    Token t of a holder is of part t % parts. Where a step is computed in halves, these are the tokens of one.
    """

    step: int
    layer: int
    tokens: tuple[int, ...]
    top_k: int
    experts: int
    layout: Layout
    half: int = 0

    @cached_property
    def of_parts(self) -> Loads:
        """Tokens of each part of each holder, int64 [holders, parts]."""
        parts = self.layout.expert_parts
        return (np.array(self.tokens)[:, None] + (parts - 1 - np.arange(parts))) // parts


class Routing(Protocol):
    """Says what the experts of a layer get; equal loads may be one object, as no one changes them."""

    def __call__(self, routed: Routed) -> Loads: ...


class Even:
    """Every expert gets as many choices as any other, and every card what any other gets; nothing is drawn.

    No layer or step differs from another with as many tokens.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], Loads] = {}

    def __str__(self) -> str:
        return "even"

    def __call__(self, routed: Routed) -> Loads:
        layout = routed.layout
        key = (routed.tokens, routed.top_k, routed.experts, layout)
        if key not in self._known:
            choices = (routed.of_parts * routed.top_k).reshape(-1, senders(layout))
            slots = layout.ep if not layout.redundant else 1  # copies follow from what their experts get
            self._known[key] = deal_evenly(choices, slots, routed.experts).reshape(*routed.of_parts.shape, -1)
        return self._known[key]


@dataclass(frozen=True)
class Drawn:
    """Every token draws its experts by the seed, each time one of those it has not: expert of rank r counts r ** -skew.

    Which expert has which rank is drawn for every layer, and stays from step to step. With skew 0 all count the same.
    """

    skew: float
    seed: int

    def __str__(self) -> str:
        return f"zipf:{self.skew:g}" if self.skew else "multinomial"

    def __call__(self, routed: Routed) -> Loads:
        ranks = np.random.default_rng([self.seed, routed.layer]).permutation(routed.experts)
        places = [self.seed, routed.layer, routed.step, *[routed.half] * bool(routed.half)]
        stream = np.random.SeedSequence(places).generate_state(1, np.uint64)[0]
        tokens = routed.of_parts
        loads = draw(tokens.reshape(-1), routed.top_k, ranks, self.skew, stream)
        return loads.reshape(*tokens.shape, routed.experts)


@dataclass(frozen=True)
class Recorded:
    """What an earlier run's layers were given, by step and extent: the same job in the same layout takes as long."""

    steps: Mapping[int, Mapping[str, Loads]]

    def __str__(self) -> str:
        return "recorded"

    def __call__(self, routed: Routed) -> Loads:
        return self._loads(routed, expert_extent, routed.experts)

    def slots(self, routed: Routed) -> Loads:
        """Those of slots."""
        return self._loads(routed, slots_extent, routed.layout.slots(routed.experts))

    def _loads(self, routed: Routed, extent: Any, total: int) -> Loads:
        name = of_half(extent(f"layers.{routed.layer}"), routed.half)
        where = f"the recorded routing, step {routed.step}, {name}"
        if routed.step not in self.steps or name not in self.steps[routed.step]:
            raise ConfigError(
                f"{where}: nothing is recorded; it holds {len(self.steps)} steps; record the job that is asked for"
            )
        loads, wanted = self.steps[routed.step][name], (*routed.of_parts.shape, total)
        if loads.shape != wanted:
            raise ConfigError(
                f"{where}: its loads are {list(loads.shape)} and must be {list(wanted)} (holders, parts, experts); "
                "record the same model in the same layout"
            )
        choices = routed.of_parts * routed.top_k
        if (wrong := np.argwhere(loads.sum(axis=2) != choices)).size:
            holder, part = wrong[0]
            raise ConfigError(
                f"{where}: part {part} of holder {holder} chose {loads[holder, part].sum()} times, and the job's "
                f"{routed.of_parts[holder, part]} tokens choose {choices[holder, part]} times; record the same lengths"
            )
        return loads


def parse_routing(text: str | None) -> tuple[str, str]:
    """(kind, what follows the colon) of `--routing`; ConfigError for a form that is none."""
    kind, colon, rest = (text or "even").partition(":")
    if kind not in ("even", "multinomial", "zipf", "recorded") or bool(colon) != (kind in ("zipf", "recorded")):
        raise ConfigError(f"--routing {cut(repr(text))} is none; give {FORMS}")
    if kind == "zipf":
        skew_of(rest)
    if kind == "recorded" and not rest:
        raise ConfigError("--routing recorded: names no file; give recorded:FILE as --save-routing FILE wrote it")
    return kind, rest


def skew_of(text: str) -> float:
    """The exponent of `zipf:A`."""
    try:
        skew = float(text)
    except ValueError:
        skew = math.nan
    if not 0 <= skew <= MOST_SKEW:
        raise ConfigError(
            f"--routing zipf:{cut(text)}: the exponent must be a number from 0 (every expert alike) to {MOST_SKEW}, as "
            "in zipf:1.0"
        )
    return skew


def step_routing(plan: JobPlan, index: int, tokens: Sequence[Sequence[int]], routing: Routing) -> dict[str, LayerLoads]:
    """The loads of step `index`'s expert layers by a routing model; `tokens` are those of each holder, half by half.

    Where experts stand in several slots, so do the loads of these. Layers with equal loads may name one object.
    """
    found: dict[str, Loads] = {}
    for half, own in enumerate(tokens):
        found |= {of_half(name, half): loads for name, loads in _half_routing(plan, index, own, routing, half)}
    return loads_of(found, plan.layout, plan.kept_loads if isinstance(routing, Even) else {})


def _half_routing(
    plan: JobPlan, index: int, tokens: Sequence[int], routing: Routing, half: int
) -> Iterator[tuple[str, Loads]]:
    dealt: dict[tuple[int, Placement], Loads] = {}
    asked = {
        layer_name(layer): Routed(
            index, layer.index, tuple(tokens), layer.mlp.router.top_k, layer.mlp.experts.count, plan.layout, half
        )
        for layer in plan.graph.layers
        if isinstance(layer.mlp, Moe)
    }
    for (name, routed), loads in zip(asked.items(), _of_layers(routing, asked.values()), strict=True):
        yield expert_extent(name), loads
        if name not in plan.placements:
            continue
        if isinstance(routing, Recorded):
            yield slots_extent(name), routing.slots(routed)
            continue
        key = (id(loads), plan.placements[name])
        if key not in dealt:
            dealt[key] = deal_slots(loads, plan.placements[name], senders(plan.layout))
        yield slots_extent(name), dealt[key]


def _of_layers(routing: Routing, layers: Collection[Routed]) -> list[Loads]:
    """The loads of several layers; draws take the host's threads, and their number changes none."""
    if not isinstance(routing, Drawn):
        return [routing(routed) for routed in layers]
    with ThreadPoolExecutor(max(1, min(len(layers), os.cpu_count() or 1))) as pool:
        return list(pool.map(routing, layers))


def has_experts(graph: Graph) -> bool:
    """Whether any layer routes tokens."""
    return any(isinstance(layer.mlp, Moe) for layer in graph.layers)


def routed_extents(choices: Collection[int], tokens: int) -> dict[str, tuple[int, ...]]:
    """The scalar extents that count a step's choices of experts, of layers with so many choices a token."""
    return {routed_extent(top_k): (tokens * top_k,) for top_k in choices}
