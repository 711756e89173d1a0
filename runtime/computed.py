"""Both sides of an alignment: what the cards compute for a job, and what the reference makes of the same tokens."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..emulator.kernels.binding import Thunk
from ..emulator.payload import Site
from ..isa.instruction import Array
from .choices import Place
from .drift import Outputs
from .numbers import Numbers
from .prepare import Prepared
from .reference import Reference
from .reference_run import NOTHING
from .report import OutOfRange
from .routes import Routes, RouteTap, join_keys, join_routes
from .scheduler import Request, Step
from .watch import Watch

Forced = Mapping[int, Mapping[int, Array]]  # ids [tokens, chosen] by request and layer


@dataclass
class Ours:
    """What the emulated cards computed: for each request, the residual stream by layer, and logits, by position.

    `routes` are what every expert layer's router chose, cached tokens included, `keys` what every indexer did.
    `not_finite` and `saturated` are the first numbers that left their range, `input_scales` those that a calibration
    found for inputs, by buffer.
    """

    layers: dict[tuple[int, int], list[Array]]
    logits: dict[int, list[Array]]
    routes: dict[int, dict[int, Routes]]
    not_finite: OutOfRange | None = None
    saturated: OutOfRange | None = None
    keys: dict[int, dict[int, Array]] = field(default_factory=dict)
    input_scales: Mapping[str, float] = field(default_factory=dict)

    @property
    def choices(self) -> Forced:
        """The experts of every token."""
        return {
            request: {layer: routes.ids for layer, routes in layers.items()} for request, layers in self.routes.items()
        }


def compute(prepared: Prepared, follow: Sequence[Request] | None = None) -> tuple[Ours, list[Request]]:
    """All steps of a job with numbers alone, keeping the residual stream after every layer and what routers chose.

    With `follow`, every token that is generated is the one that these requests, of the same job, got.
    """
    plan, requests = prepared.plan, prepared.requests()
    memory = plan.memory(range(plan.layout.cards))
    watch, tap = Watch(plan), RouteTap(plan)

    def inspect(site: Site) -> Thunk | None:
        return tap.inspect(site) or watch.inspect(site)  # what a router writes is integers, and weights in 0 to 1

    numbers = Numbers(plan, prepared.checkpoint, prepared.job.seed, choose=prepared.choose, inspect=inspect)
    ours = Ours(defaultdict(list), defaultdict(list), {})
    memory.load(0)
    for request in requests:
        memory.grow_to(request, request.cached_len, 0)
    numbers.fill_cache(prepared.cached, requests, memory.pool, tap.take)
    lanes = plan.lanes(requests)
    while (step := lanes.next_step()) is not None:
        memory.begin(step, requests, 0)
        seen: dict[int, Array] = {}
        result = numbers.run(step, requests, memory.pool, seen.__setitem__)
        watch.ended(step)
        tap.take(step)
        row = 0
        for entry in step.entries:
            rows = slice(row, row + entry.count)
            row += entry.count
            ours.logits[entry.request].append(result.logits[rows].copy())
            for layer, values in seen.items():
                ours.layers[layer, entry.request].append(values[rows])
        picked = result.picked if follow is None else _followed(step, requests, follow)
        for request in lanes.complete(step, picked):
            memory.release(request, 0)
    ours.routes = {request.index: tap.of(request.index) for request in requests}
    ours.keys = {request.index: tap.keys_of(request.index) for request in requests}
    ours.not_finite, ours.saturated = watch.found, watch.saturated
    ours.input_scales = numbers.input_scales
    return ours, requests


def _followed(step: Step, requests: Sequence[Request], follow: Sequence[Request]) -> list[int]:
    """The tokens that the entries of a step emit, as other requests got them."""
    emitting = [entry.request for entry in step.entries if entry.emits]
    return [follow[index].tokens[requests[index].generated] for index in emitting]


def joined(ours: Ours, requests: Sequence[Request]) -> Outputs:
    """What the cards computed, request after request."""
    names = sorted({layer for layer, _ in ours.layers})
    routed = sorted({layer for routes in ours.routes.values() for layer in routes})
    chosen = sorted({layer for keys in ours.keys.values() for layer in keys})
    return Outputs(
        {
            layer: np.concatenate([part for request in requests for part in ours.layers[layer, request.index]])
            for layer in names
        },
        np.concatenate([part for request in requests for part in ours.logits[request.index]]),
        {
            layer: join_routes([ours.routes[r.index][layer].at(slice(r.cached_len, None)) for r in requests])
            for layer in routed
        },
        {layer: join_keys([ours.keys[r.index][layer][r.cached_len :] for r in requests]) for layer in chosen},
    )


def through(
    reference: Reference,
    requests: Sequence[Request],
    cached: Sequence[tuple[int, ...]],
    like: Ours | None = None,
) -> Outputs:
    """The same tokens through the reference, each sequence whole and without a cache.

    With `like` they take the experts, and attend to the keys, that were chosen there.
    """
    layers: dict[int, list[Array]] = defaultdict(list)
    routes: dict[int, list[Routes]] = defaultdict(list)
    keys: dict[int, list[Array]] = defaultdict(list)
    logits: list[Array] = []
    longest = max(request.length for request in requests)
    for request in requests:
        known = cached[request.index]
        ids = [*known, *(request.token_at(position) for position in range(request.computed))]
        forced, told = (like.choices[request.index], like.keys[request.index]) if like else (NOTHING, NOTHING)
        run = reference.run(ids, longest, forced, told)
        for index, values in enumerate(run.layers):
            layers[index - 1].append(values[len(known) :])
        for layer, found in run.routes.items():
            routes[layer].append(found.at(slice(len(known), None)))
        for layer, chosen in run.keys.items():
            keys[layer].append(chosen[len(known) :])
        logits.append(run.logits[len(known) :])
    return Outputs(
        {layer: np.concatenate(parts) for layer, parts in layers.items()},
        np.concatenate(logits),
        {layer: join_routes(parts) for layer, parts in routes.items()},
        {layer: join_keys(parts) for layer, parts in keys.items()},
    )


def places_of(requests: Sequence[Request]) -> list[Place]:
    """(request, position) of every position that the cards computed, in the order of Outputs."""
    return [(request.index, position) for request in requests for position in range(request.cached_len, request.length)]
