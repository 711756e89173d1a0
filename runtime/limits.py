"""Limits: where a job breaks, as a report - what cards need, the boundaries emulated, what grows, what would help."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import NamedTuple

from ..interconnect.cluster import load_cluster
from ..models.checkpoint import Checkpoint
from .boundary import boundaries
from .budget import Budget
from .fits import fits, longest_of, peaks, what_fits
from .helps import growths, helps_of
from .job import Job
from .layout_search import Search, best_of, family_of
from .plan import GRANULE_BYTES, JobPlan
from .prepare import Prepared, card_of, checkpoint_of, prepare
from .report_document import HostReport
from .report_limits import CardNeed, JobSizes, LayoutSearch, LimitsReport
from .rests_on import refuse_weak
from .summary import NOT_MODELLED, card_part, cluster_part, evidence_of, layout_part, model_part
from .thresholds import memory_share, within_alert

DEFAULT_INPUT, DEFAULT_OUTPUT = 1024, 128
FULL_LENGTH = "limits count every sequence at its full length; a run whose sequences stop early needs less"


class _Found(NamedTuple):
    """A job in a layout, and the search over layouts that it came of or that finds smaller ones."""

    prepared: Prepared
    search: Search
    layouts: LayoutSearch | None


def find_limits(job: Job) -> LimitsReport:
    """The limits of a job, found by replaying its allocations; what they rest on is emulated on both sides."""
    started = time.perf_counter()
    job, notes = with_sequences(replace(job, payload=False, logits=False), "limits")
    share, checkpoint = memory_share(job), checkpoint_of(job)
    prepared, search, layouts = _found(job, checkpoint)
    if job.strict:
        refuse_weak(said for said in evidence_of(prepared) if said.figure == "memory")  # limits tell no time
    plan = prepared.plan
    found, budget = what_fits(plan), Budget(plan)
    return LimitsReport(
        model=model_part(prepared),
        card=card_part(plan.card),
        cluster=cluster_part(prepared),
        layout=layout_part(plan.layout),
        job=sizes_of(plan),
        fits_as_asked=fits(plan),
        granule_bytes=GRANULE_BYTES,
        within=share,
        cards=_needs(prepared),
        fits=found,
        layouts=layouts,
        boundaries=(
            *boundaries(prepared, found),
            search.fewest_cards(search.layouts if layouts else family_of(plan.layout, search.layouts)),
        ),
        growth=growths(budget),
        helps=helps_of(prepared.job, budget, checkpoint),
        warnings=(*prepared.warnings, *notes, FULL_LENGTH),
        not_modelled=NOT_MODELLED,
        host=HostReport(wall_s=time.perf_counter() - started),
    )


def _found(job: Job, checkpoint: Checkpoint) -> _Found:
    """The job in the layout that it names, or in the best that there is."""
    best = best_of(job.layout)
    if best is None:
        prepared = within_alert(prepare(job, checkpoint=checkpoint))
        return _Found(prepared, Search(job, checkpoint, prepared.plan.layout.cards), None)
    there = int(card_of(job).node.cards) if job.cluster is None else load_cluster(job.cluster).cards
    search = Search(job, checkpoint, best or there)
    layouts, prepared = search.report()
    return _Found(prepared, search, layouts)


def sizes_of(plan: JobPlan) -> JobSizes:
    """A job's sizes, with the longest of its sequences."""
    longest = longest_of(plan.sequences)
    return JobSizes(
        batch=len(plan.sequences),
        prompt_tokens=longest.prompt_len,
        cached_tokens=longest.cached_len,
        output_tokens=longest.max_new_tokens,
    )


def _needs(prepared: Prepared) -> tuple[CardNeed, ...]:
    plan, hbm = prepared.plan, prepared.plan.card.hbm
    return tuple(
        CardNeed(
            rank=peak.rank,
            stage=plan.layout.stage_of(peak.rank),
            high_water_bytes=peak.high_water_bytes,
            capacity_bytes=hbm.capacity_bytes,
            reserved_bytes=hbm.reserved_bytes,
            by_tag=peak.by_tag,
        )
        for peak in peaks(plan)
    )


def with_sequences(job: Job, what: str) -> tuple[Job, list[str]]:
    """The job, with one sequence of a usual length where it names none, and a note that `what` is told for it."""
    if job.prompts or job.prompt_ids or job.batch is not None:
        return job, []
    positions = checkpoint_of(job).graph.max_position_embeddings
    output = min(DEFAULT_OUTPUT, positions // 4)
    prompt = min(DEFAULT_INPUT, positions - output)
    note = f"no sizes were given: {what} are for one sequence of {prompt} prompt tokens and {output} decode steps"
    return replace(job, batch=1, input_len=prompt, output_len=output), [note]
