"""Alignment: a job's numbers against the reference, layer by layer, and the first layer that drifts."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..emulator.kernels.binding import Thunk
from ..emulator.payload import Site
from ..isa.errors import ConfigError
from ..isa.instruction import Array
from .align_ask import PLAIN, AlignAsk
from .choices import Place, compare_routes
from .drift import TOLERANCE_OF, TOLERANCES, Outputs, coarsest, compare, drifts, noise_of, with_noise, within
from .job import Job
from .numbers import Numbers
from .prepare import Prepared, prepare
from .reference import NOTHING, Reference, open_reference, routers_in
from .report import HostReport, NotFinite
from .report_align import AlignReport, LayerDrift, LogitsDrift, RouterDrift, RoutingReport
from .routes import Routes, RouteTap, join_routes
from .scheduler import Request
from .summary import NOT_MODELLED, card_part, cluster_part, layout_part, model_part
from .watch import Watch

DEFAULT_SEQUENCES, DEFAULT_TOKENS, DEFAULT_NEW_TOKENS = 2, 24, 8
Forced = Mapping[int, Mapping[int, Array]]  # ids [tokens, chosen] by request and layer


@dataclass
class Ours:
    """What the emulated cards computed: for each request, the residual stream by layer, and logits, by position.

    `routes` are what every expert layer's router chose, cached tokens included; `not_finite` is the first number that
    was not finite.
    """

    layers: dict[tuple[int, int], list[Array]]
    logits: dict[int, list[Array]]
    routes: dict[int, dict[int, Routes]]
    not_finite: NotFinite | None = None

    @property
    def choices(self) -> Forced:
        """The experts of every token."""
        return {
            request: {layer: routes.ids for layer, routes in layers.items()} for request, layers in self.routes.items()
        }


def align(job: Job, ask: AlignAsk = PLAIN) -> AlignReport:
    """Run a job's sequences (prefill and cached decode) on the cards, then the same tokens through the reference.

    Where an error passes the tolerance of the format, the reference runs once more in that format: how far rounding
    moves this model on these tokens is what our own error is then held against, so that neither a model that magnifies
    rounding raises an alarm nor a fault hides below one tolerance for all models.
    """
    started = time.perf_counter()
    prepared = prepare(_with_sequences(job))
    reference = open_reference(prepared.checkpoint)  # first, for it may be missing
    if ask.forced_routing:
        _check_forcing(prepared, reference)
    ours, requests = compute(prepared)
    found = judge(prepared, reference, ours, requests, ask.forced_routing)
    return AlignReport(
        model=model_part(prepared),
        card=card_part(prepared.plan.card),
        cluster=cluster_part(prepared),
        layout=layout_part(prepared.plan.layout),
        reference=reference.name,
        positions=sum(len(rows) for parts in ours.logits.values() for rows in parts),
        layers=tuple(found.layers),
        logits=found.logits,
        first_drift=found.first_drift,
        tolerance=found.tolerance,
        tolerance_of=TOLERANCE_OF,
        verdict="aligned" if found.first_drift is None else "drifted",
        routing=found.routing,
        not_finite=ours.not_finite,
        warnings=(*prepared.warnings, *found.hints),
        not_modelled=NOT_MODELLED,
        host=HostReport(wall_s=time.perf_counter() - started),
    )


def _with_sequences(job: Job) -> Job:
    """The job with the logits of every position, and with seeded sequences where it names none."""
    job = replace(job, payload=True, logits=True, ignore_eos=True)
    if not job.prompts and not job.prompt_ids and job.batch is None:
        return replace(job, batch=DEFAULT_SEQUENCES, input_len=DEFAULT_TOKENS, output_len=DEFAULT_NEW_TOKENS - 1)
    if job.batch is None and job.max_new_tokens is None:
        return replace(job, max_new_tokens=DEFAULT_NEW_TOKENS)
    return job


def _check_forcing(prepared: Prepared, reference: Reference) -> None:
    """ConfigError where there is no routing to force, or no way to."""
    routers = routers_in(prepared.plan.graph)
    if not routers:
        raise ConfigError(f"--forced-routing: {prepared.plan.graph.name} has no experts; leave it out")
    if missing := sorted(set(routers) - reference.routed_layers):
        raise ConfigError(
            f"--forced-routing: {reference.name} cannot be told which experts to take in layer {missing[0]} of "
            f"{prepared.plan.graph.name}; leave it out"
        )


def compute(prepared: Prepared) -> tuple[Ours, list[Request]]:
    """All steps of a job with numbers alone, keeping the residual stream after every layer and what routers chose."""
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
    scheduler = plan.scheduler(requests)
    while (step := scheduler.next_step()) is not None:
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
        for request in scheduler.complete(step, result.picked):
            memory.release(request, 0)
    ours.routes = {request.index: tap.of(request.index) for request in requests}
    ours.not_finite = watch.found
    return ours, requests


def joined(ours: Ours, requests: list[Request]) -> Outputs:
    """What the cards computed, request after request."""
    names = sorted({layer for layer, _ in ours.layers})
    routed = sorted({layer for routes in ours.routes.values() for layer in routes})
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
    )


def through(
    reference: Reference,
    requests: list[Request],
    cached: tuple[tuple[int, ...], ...],
    forced: Forced | None = None,
) -> Outputs:
    """The same tokens through the reference, each sequence whole and without a cache."""
    layers: dict[int, list[Array]] = defaultdict(list)
    routes: dict[int, list[Routes]] = defaultdict(list)
    logits: list[Array] = []
    longest = max(request.length for request in requests)
    for request in requests:
        known = cached[request.index]
        ids = [*known, *(request.token_at(position) for position in range(request.computed))]
        run = reference.run(ids, longest, forced[request.index] if forced else NOTHING)
        for index, values in enumerate(run.layers):
            layers[index - 1].append(values[len(known) :])
        for layer, found in run.routes.items():
            routes[layer].append(found.at(slice(len(known), None)))
        logits.append(run.logits[len(known) :])
    return Outputs(
        {layer: np.concatenate(parts) for layer, parts in layers.items()},
        np.concatenate(logits),
        {layer: join_routes(parts) for layer, parts in routes.items()},
    )


@dataclass(frozen=True)
class Judged:
    """Ours against the reference: every part, the first that is wrong, and what may help to read it."""

    layers: list[LayerDrift]
    logits: LogitsDrift
    routing: RoutingReport | None
    first_drift: str | None
    tolerance: float
    hints: tuple[str, ...]


def judge(prepared: Prepared, reference: Reference, ours: Ours, requests: list[Request], forced: bool) -> Judged:
    """Compare every part with the reference's, and with what rounding does to it where the tolerance is passed."""
    rounding = coarsest(prepared.plan.dtype, prepared.plan.kv_dtype)
    tolerance = TOLERANCES[rounding.name]
    choices = ours.choices if forced else None
    mine, theirs = joined(ours, requests), through(reference, requests, prepared.cached, choices)
    layers, logits = compare(mine, theirs)
    routers, places = routers_in(prepared.plan.graph), list(_places(requests))
    routed = compare_routes(mine.routes, theirs.routes, routers, places)
    parts = (*layers, logits, *(routed if forced else ()))
    if not all(within(part.max_rel, tolerance) for part in parts):
        reference.show_rounding(rounding)
        rounded = through(reference, requests, prepared.cached, choices)
        layers, logits = with_noise(layers, logits, rounded, theirs)
        noise = compare_routes(rounded.routes, theirs.routes, routers, places)
        routed = [part.model_copy(update=noise_of(found)) for part, found in zip(routed, noise, strict=True)]
    first = next(_wrong(layers, logits, routed, tolerance, forced), None)
    routing = None
    if routed:
        flips = sum(part.flips for part in routed)
        routing = RoutingReport(forced=forced, tokens=len(places), flips=flips, layers=tuple(routed))
    return Judged(layers, logits, routing, first, tolerance, _hints(first, routed, forced))


def _places(requests: Sequence[Request]) -> Iterator[Place]:
    """(request, position) of every position that the cards computed, in the order of Outputs."""
    for request in requests:
        yield from ((request.index, position) for position in range(request.cached_len, request.length))


def _wrong(
    layers: Sequence[LayerDrift],
    logits: LogitsDrift,
    routed: Sequence[RouterDrift],
    tolerance: float,
    forced: bool,
) -> Iterator[str]:
    """The names of the parts that are wrong, in the order in which the model computes them.

    What a router's logits are is judged only where routing is forced: else a token that took another expert before has
    other logits by right. A choice that its logits do not explain is wrong in any case.
    """
    by_layer = {part.layer: part for part in routed}
    for index, layer in enumerate(layers):
        router = by_layer.get(index - 1)
        if router is not None and forced and drifts(router, tolerance):
            yield router.name
        if router is not None and router.unexplained:
            yield f"layer {router.layer} routing"
        if drifts(layer, tolerance):
            yield layer.name
    if drifts(logits, tolerance):
        yield "logits"


def _hints(first: str | None, routed: Sequence[RouterDrift], forced: bool) -> tuple[str, ...]:
    """What to try where flipped experts may be what drifted."""
    flips = [part for part in routed if part.flips]
    if first is None or forced or not flips or flips[0].unexplained:
        return ()
    return (
        f"tokens took other experts than in the reference, from layer {flips[0].layer} on; --forced-routing takes "
        "ours in both, so that a flipped expert does not hide or fake a drift",
    )
