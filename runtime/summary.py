"""From what a run gathered to its Report: times from spans, bytes from allocators, evidence from the card."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ..emulator.hbm import OutOfMemory
from ..emulator.intervals import covered_ps
from ..emulator.span_columns import alike_all_along
from ..emulator.spec import CardSpec
from ..interconnect.evidence import weakest
from ..models.graph import total_parameters
from .alerts import alert_reports
from .applied import idle_fusions, pass_reports
from .breakdown import PhaseTime
from .communication import collective_reports, link_reports
from .critical import Critical, critical
from .energy import energy_report
from .extrapolated import outside
from .fits import what_fits
from .hidden import Hidden
from .kv_compare import TimedStep, kv_uses, untimed
from .latent_steps import latent_reports
from .layout import Layout
from .plan import JobPlan
from .prepare import Prepared
from .report import (
    CardReport,
    EvidenceReport,
    KvUse,
    LiveAllocation,
    OomReport,
    PhaseReport,
    Phases,
    Report,
    RequestReport,
    StepReport,
    Totals,
    UnitUse,
)
from .report_base import Bounds
from .report_document import CardPart, ClusterPart, HostReport, LayoutPart, ModelPart
from .rests_on import evidence_reports, user_set
from .stages import stage_reports
from .watch import describe

if TYPE_CHECKING:
    from .run import RunState, StepRecord

PS_PER_S = 10**12

NOT_MODELLED = (
    "host work between steps: the next step starts when the last one's tokens are on the host",
    "the loading of weights: time starts when they are in place",
    "freeing of KV pages that fell out of a window, unless --kv-pages ideal asks for it: they are kept to the end",
    "faults, and heat that passes from card to card: each stands in its own coolant",
    "mapping of physical memory under address ranges (--kv-policy virtual): its calls are counted and take no time",
    "how much memory the host has (--offload): its link takes time, and nothing else",
    "vision towers, training steps, speculative decoding, prefix caching and preemption",
    "kernel autotuning: unit times follow a first-cut tile schedule, not a vendor's library",
)


def model_part(prepared: Prepared) -> ModelPart:
    """The model section."""
    checkpoint, plan = prepared.checkpoint, prepared.plan
    return ModelPart(
        name=checkpoint.config.name,
        family=checkpoint.config.family,
        total_params=total_parameters(checkpoint.graph),
        dtype=plan.dtype.name,
        kv_dtype=plan.kv_dtype.name,
        kv_pages=plan.kv_pages,
        kv_policy=plan.kv_policy.name,
        source=checkpoint.source,
        num_layers=len(checkpoint.graph.layers),
    )


def card_part(card: CardSpec) -> CardPart:
    """The card section."""
    kinds = [evidence.evidence for evidence in card.evidence.values()]
    return CardPart(
        name=card.name,
        description=card.description,
        weakest_evidence=weakest(kinds),
        set_by_user=user_set(card),
    )


def evidence_of(prepared: Prepared, extrapolated: bool = False) -> tuple[EvidenceReport, ...]:
    """What the figures of a job rest on, some of whose instructions may lie outside of the card's calibration."""
    plan = prepared.plan
    named = prepared.job.cluster is not None
    return evidence_reports(plan.card, prepared.cluster, plan.layout.cards, named, extrapolated)


def cluster_part(prepared: Prepared) -> ClusterPart:
    """The cluster section."""
    used = prepared.plan.layout.cards
    return ClusterPart(
        name=prepared.cluster.name,
        kind=prepared.cluster.kind,
        cards_used=used,
        cards_unused=prepared.cluster_cards - used,
        placement=prepared.placement,
    )


def layout_part(layout: Layout) -> LayoutPart:
    """The layout section."""
    return LayoutPart(
        tp=layout.tp,
        pp=layout.pp,
        dp=layout.dp,
        cp=layout.cp,
        ep=layout.ep,
        etp=layout.etp,
        edp=layout.edp,
        cards=layout.cards,
    )


def summarise(state: RunState, started_s: float) -> Report:
    """The report of a run, finished or out of memory, that began at a time of `time.perf_counter`."""
    prepared, plan = state.prepared, state.prepared.plan
    criticals = [critical(record.columns, record.start_ps, record.end_ps) for record in state.records]
    steps = tuple(_step(record, found.bounds) for record, found in zip(state.records, criticals, strict=True))
    elapsed_ps = state.records[-1].end_ps if state.records else 0
    requests = tuple(_requests(state))
    exchanges = [record.exchanges for record in state.records]
    passes = pass_reports(plan)
    beyond = outside(plan.card, state.records)
    collectives, axes = collective_reports(state.cluster, plan.layout, exchanges)
    return Report(
        model=model_part(prepared),
        card=card_part(plan.card),
        cluster=cluster_part(prepared),
        layout=layout_part(plan.layout),
        engine=prepared.job.calendar,
        payload=prepared.job.payload,
        passes=passes,
        requests=requests,
        steps=steps,
        stages=stage_reports(
            plan.layout, len(plan.graph.layers), [record.columns for record in state.records], elapsed_ps
        ),
        cards=tuple(_card(state, rank, elapsed_ps) for rank in range(plan.layout.cards)),
        kv=_kv(state) if prepared.job.compare_kv else (),
        alerts=alert_reports(state, requests),
        links=link_reports(state.cluster, elapsed_ps),
        collectives=collectives,
        axes=axes,
        expert_loads=state.skews.report(),
        totals=_totals(plan, requests, steps, elapsed_ps),
        phases=_phases(state, criticals, steps),
        energy=energy_report(state, elapsed_ps),
        latent_attention=latent_reports(plan, [record.step for record in state.records]),
        evidence=evidence_of(prepared, bool(beyond)),
        warnings=(*prepared.warnings, *idle_fusions(plan, passes), *_numbers_lost(state), *beyond),
        not_modelled=NOT_MODELLED,
        oom=_oom(state.oom, state) if state.oom else None,
        not_finite=state.watch.found,
        saturated=state.watch.saturated,
        host=_host(state, started_s),
    )


def _step(record: StepRecord, bounds: Bounds) -> StepReport:
    return StepReport(
        index=record.step.index,
        kind=record.step.kind,
        start_ps=record.start_ps,
        end_ps=record.end_ps,
        tokens=record.step.tokens,
        sequences=len(record.step.entries),
        bound=bounds.largest,
        bounds=bounds,
    )


def _requests(state: RunState) -> list[RequestReport]:
    tokenizer = state.prepared.checkpoint.tokenizer
    reports = []
    for request in state.requests:
        first = state.first_token_ps.get(request.index)
        later = request.generated - 1
        spread = state.last_token_ps.get(request.index, 0) - (first or 0)
        text = tokenizer.decode(request.tokens) if tokenizer and state.prepared.job.payload else None
        reports.append(
            RequestReport(
                prompt_tokens=request.prompt_len,
                cached_tokens=request.cached_len,
                tokens=tuple(request.tokens),
                output_tokens=request.generated,
                text=text,
                ttft_s=None if first is None else first / PS_PER_S,
                tpot_s=spread / later / PS_PER_S if later > 0 else None,
                finish_reason=request.finish_reason,
            )
        )
    return reports


def _card(state: RunState, rank: int, elapsed_ps: int) -> CardReport:
    hbm = state.memory.hbm[rank]
    usage = state.cluster.usage(rank)
    return CardReport(
        rank=rank,
        stage=state.prepared.plan.layout.stage_of(rank),
        peak_bytes=hbm.peak_bytes,
        peak_ps=hbm.peak_ps,
        capacity_bytes=hbm.capacity_bytes,
        reserved_bytes=hbm.reserved_bytes,
        by_tag=dict(hbm.peak_by_tag),
        weights=state.prepared.plan.weight_bytes(rank),
        live_at_end_bytes=hbm.live_bytes,
        units={
            name: UnitUse(
                busy_ps=use.busy_ps,
                utilisation=use.demanded_ps / elapsed_ps if elapsed_ps else 0.0,
                cycles=use.cycles,
            )
            for name, use in usage.items()
        },
    )


def _kv(state: RunState) -> tuple[KvUse, ...]:
    """The cache by every policy over the steps that ran, or in their order alone where memory ended before them."""
    plan = state.prepared.plan
    timed = [TimedStep(record.step, record.start_ps, record.end_ps) for record in state.records]
    return kv_uses(plan, untimed(plan) if state.oom else timed)


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _totals(plan: JobPlan, requests: Sequence[RequestReport], steps: Sequence[StepReport], elapsed_ps: int) -> Totals:
    ttfts = [request.ttft_s for request in requests if request.ttft_s is not None]
    prompt_ps = covered_ps([(step.start_ps, step.end_ps) for step in steps if step.kind != "decode"])
    prompt_tokens = sum(request.prompt_tokens for request in requests)
    finished = all(request.finish_reason for request in requests)
    output = sum(request.output_tokens for request in requests)
    return Totals(
        elapsed_ps=elapsed_ps,
        ttft_max_s=max(ttfts, default=None),
        ttft_mean_s=_mean(ttfts),
        tpot_mean_s=_mean([request.tpot_s for request in requests if request.tpot_s is not None]),
        output_tokens_per_s=output * PS_PER_S / elapsed_ps if elapsed_ps else None,
        prompt_tokens_per_s=prompt_tokens * PS_PER_S / prompt_ps if prompt_ps and finished else None,
        cycles=elapsed_ps * int(plan.card.clock_hz) // PS_PER_S,
    )


def _numbers_lost(state: RunState) -> Iterator[str]:
    """A warning where arithmetic overflowed, for the tokens that were picked then mean nothing."""
    dtype, found = state.prepared.plan.dtype.name, state.watch.found
    where = f"; {describe(found)}" if found else ""
    if state.not_finite:
        yield (
            f"logits of {len(state.not_finite)} steps, the first of them step {state.not_finite[0]}, hold NaN or "
            f"infinity: numbers passed the range of {dtype}, and tokens picked from them mean nothing{where}"
        )
    elif found:
        yield f"numbers passed the range of {dtype}, though the logits are finite{where}"
    if state.watch.saturated:
        yield f"numbers passed the range of a type: {describe(state.watch.saturated)}"


def _phases(state: RunState, criticals: Sequence[Critical], steps: Sequence[StepReport]) -> Phases:
    plan, found = state.prepared.plan, {}
    for kind in ("prefill", "decode", "mixed"):
        own = [index for index, step in enumerate(steps) if step.kind == kind]
        if not own:
            continue
        time, hidden = PhaseTime(plan.card), Hidden(plan.layout.cards)
        each = []
        for stretch in _stretches(own, steps):
            whole = criticals[stretch[0]] if len(stretch) == 1 else _together([state.records[i] for i in stretch])
            each.append(whole.bounds)
            time.add(whole)
            hidden.add(alike_all_along([state.records[index].columns for index in stretch], plan.layout.cards))
        bounds = Bounds.together(each)
        found[kind] = PhaseReport(
            steps=len(own),
            elapsed_ps=bounds.total_ps,
            bound=bounds.largest,
            bounds=bounds,
            breakdown=time.report(hidden.reports()),
        )
    return Phases(**found)


def _stretches(own: Sequence[int], steps: Sequence[StepReport]) -> list[list[int]]:
    """Steps of one kind, those together that are in flight at the same time."""
    found: list[list[int]] = []
    end = -1
    for index in sorted(own, key=lambda index: steps[index].start_ps):
        if found and steps[index].start_ps < end:
            found[-1].append(index)
        else:
            found.append([index])
        end = max(end, steps[index].end_ps)
    return found


def _together(records: Sequence[StepRecord]) -> Critical:
    """What held steps in flight together."""
    cards = [card for record in records for card in record.columns]
    return critical(cards, records[0].start_ps, max(record.end_ps for record in records))


def _host(state: RunState, started_s: float) -> HostReport:
    generated = sum(request.generated for request in state.requests)
    return HostReport(
        wall_s=time.perf_counter() - started_s,
        load_s=state.load_s,
        run_s=state.run_s,
        output_tokens_per_s=generated / state.run_s if state.run_s and generated else None,
    )


def _oom(error: OutOfMemory, state: RunState) -> OomReport:
    assert error.card is not None, "whoever knows the card writes it in"
    return OomReport(
        card=int(error.card.removeprefix("card ")),
        time_ps=error.time_ps,
        step=error.step,
        step_kind="load" if error.step is None else error.step_kind,
        instruction=error.instruction,
        request=None if error.request is None else int(error.request),
        tag=error.tag,
        owner=error.owner,
        requested_bytes=error.requested_bytes,
        missing_bytes=error.missing_bytes,
        capacity_bytes=error.capacity_bytes,
        reserved_bytes=error.reserved_bytes,
        free_bytes=error.free_bytes,
        largest_hole_bytes=error.largest_hole_bytes,
        largest_live=tuple(
            LiveAllocation(
                owner=held.owner,
                tag=held.tag,
                num_bytes=held.num_bytes,
                address=held.address,
                allocated_ps=held.time_ps,
            )
            for held in error.largest
        ),
        by_tag=error.by_tag,
        fits=what_fits(state.prepared.plan),
    )
