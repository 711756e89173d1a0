"""Judging: ours against the reference, part by part, and the first part that rounding does not explain."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from ..isa.dtype import FP32, DType
from ..isa.instruction import Array
from ..models.blocks import Graph, Router
from .choices import Place, compare_keys, compare_routes
from .drift import Outputs, compare, drifts, noise_of, with_noise, within
from .report_align import LayerDrift, LogitsDrift, RouterDrift, RoutingReport

ALONE: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True)
class Sides:
    """Ours and the reference's over the same positions; `rounded` is the reference in our dtype, once it was needed.

    `forced` says that both took the same experts.
    """

    mine: Outputs
    theirs: Outputs
    rounded: Outputs | None
    places: Sequence[Place]
    routers: Mapping[int, Router]
    forced: bool

    def at(self, rows: Array) -> Sides:
        """Some of the positions."""
        rounded = None if self.rounded is None else self.rounded.at(rows)
        places = [self.places[int(row)] for row in rows]
        return Sides(self.mine.at(rows), self.theirs.at(rows), rounded, places, self.routers, self.forced)


@dataclass(frozen=True)
class Judged:
    """Every part with its drift, and the first that is wrong."""

    layers: list[LayerDrift]
    logits: LogitsDrift
    routers: list[RouterDrift]
    keys: list[LayerDrift]
    first_drift: str | None

    @property
    def typical(self) -> dict[str, float]:
        """By part, the root mean square of what rounding does to the reference."""
        named: list[LayerDrift | RouterDrift] = [*self.layers, *self.routers, *self.keys]
        return {part.name: part.noise_rms_rel or 0.0 for part in named} | {"logits": self.logits.noise_rms_rel or 0.0}

    def routing(self, forced: bool, tokens: int) -> RoutingReport | None:
        """The routers' part of a report; None where there are none."""
        if not self.routers:
            return None
        flips = sum(part.flips for part in self.routers)
        return RoutingReport(forced=forced, tokens=tokens, flips=flips, layers=tuple(self.routers))


def with_rounding(sides: Sides, tolerance: float, rounded: Callable[[], Outputs]) -> Sides:
    """The sides with the reference's own rounding, if anything passes the tolerance."""
    layers, logits = compare(sides.mine, sides.theirs)
    chosen = [*_routers(sides, sides.mine), *_keys(sides, sides.mine)] if sides.forced else []
    if all(within(part.max_rel, tolerance) for part in (*layers, logits, *chosen)):
        return sides
    return Sides(sides.mine, sides.theirs, rounded(), sides.places, sides.routers, sides.forced)


def judge(sides: Sides, tolerance: float, typical: Mapping[str, float] = ALONE) -> Judged:
    """Compare every part with the reference's, and with what rounding does to it where that is known.

    `typical` is what rounding does to each part over the positions of which these are a few.
    """
    layers, logits = compare(sides.mine, sides.theirs)
    routers, keys = _routers(sides, sides.mine), _keys(sides, sides.mine)
    if sides.rounded is not None:
        layers, logits = with_noise(layers, logits, sides.rounded, sides.theirs)
        noise = _routers(sides, sides.rounded)
        routers = [part.model_copy(update=noise_of(found)) for part, found in zip(routers, noise, strict=True)]
        own = _keys(sides, sides.rounded)
        keys = [part.model_copy(update=noise_of(found)) for part, found in zip(keys, own, strict=True)]
    # unless routing is forced, a token that took another expert before has other router logits by right
    named: list[LayerDrift | RouterDrift] = list(layers)
    if sides.forced:
        named += [*routers, *keys]
    wrong = {part.name for part in named if drifts(part, tolerance, typical.get(part.name, 0.0))}
    if drifts(logits, tolerance, typical.get("logits", 0.0)):
        wrong.add("logits")
    first = next(_in_order(layers, routers, wrong), None)
    return Judged(layers, logits, routers, keys, first)


def _keys(sides: Sides, outputs: Outputs) -> list[LayerDrift]:
    return compare_keys(sides.mine, outputs, sides.theirs)


def _routers(sides: Sides, outputs: Outputs) -> list[RouterDrift]:
    return compare_routes(outputs.routes, sides.theirs.routes, sides.routers, sides.places)


def _in_order(layers: Sequence[LayerDrift], routers: Sequence[RouterDrift], wrong: Collection[str]) -> Iterator[str]:
    """The names of the parts that are wrong, in the order in which the model computes them.

    A choice of experts that its logits do not explain is one of them.
    """
    by_layer = {part.layer: part for part in routers}
    for index, layer in enumerate(layers):
        router = by_layer.get(index - 1)
        yield from [f"layer {index - 1} keys"] if f"layer {index - 1} keys" in wrong else []
        if router is not None:
            yield from [router.name] if router.name in wrong else []
            yield from [f"layer {router.layer} routing"] if router.unexplained else []
        yield from [layer.name] if layer.name in wrong else []
    yield from ["logits"] if "logits" in wrong else []


def hints(first: str | None, routed: Sequence[RouterDrift], forced: bool) -> tuple[str, ...]:
    """What to try where flipped experts may be what drifted."""
    flips = [part for part in routed if part.flips]
    if first is None or forced or not flips or flips[0].unexplained:
        return ()
    return (
        f"tokens took other experts than in the reference, from layer {flips[0].layer} on; --forced-routing takes "
        "ours in both, so that a flipped expert does not hide or fake a drift",
    )


def choice_hints(
    first: str | None, graph: Graph, longest: int, rounding: DType, forced: bool = False
) -> tuple[str, ...]:
    """What to try where tokens that an indexer chose otherwise may be what drifted; `longest` is in tokens."""
    budgets = {getattr(layer.attention, "top_k", 0) for layer in graph.layers} - {0}
    if first is None or forced or rounding is FP32 or not budgets or longest <= min(budgets):
        return ()
    return (
        f"queries attend to {min(budgets)} tokens chosen by index scores, and rounding to {rounding.name} may choose "
        "others than the reference where scores are near; with --forced-routing, in fp32, or with sequences of at most "
        f"{min(budgets)} tokens, no such choice hides or fakes a drift",
    )
