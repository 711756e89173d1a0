"""Limits: where a job breaks, as a report - what every card needs, and what would fit."""

from __future__ import annotations

import time
from dataclasses import replace

from .fits import fits, longest_of, peaks, what_fits
from .job import Job
from .plan import GRANULE_BYTES
from .prepare import checkpoint_of, prepare
from .report import HostReport
from .report_limits import CardNeed, JobSizes, LimitsReport
from .rests_on import refuse_weak
from .summary import NOT_MODELLED, card_part, cluster_part, evidence_of, layout_part, model_part

DEFAULT_INPUT, DEFAULT_OUTPUT = 1024, 128
FULL_LENGTH = "limits count every sequence at its full length; a run whose sequences stop early needs less"


def find_limits(job: Job) -> LimitsReport:
    """The limits of a job, found by replaying its allocations; nothing is computed or timed."""
    started = time.perf_counter()
    job, notes = with_sequences(replace(job, payload=False, logits=False), "limits")
    prepared = prepare(job)
    if job.strict:
        refuse_weak(said for said in evidence_of(prepared) if said.figure == "memory")  # limits tell no time
    plan = prepared.plan
    longest = longest_of(plan.sequences)
    hbm = plan.card.hbm
    return LimitsReport(
        model=model_part(prepared),
        card=card_part(plan.card),
        cluster=cluster_part(prepared),
        layout=layout_part(plan.layout),
        job=JobSizes(
            batch=len(plan.sequences),
            prompt_tokens=longest.prompt_len,
            cached_tokens=longest.cached_len,
            output_tokens=longest.max_new_tokens,
        ),
        fits_as_asked=fits(plan),
        granule_bytes=GRANULE_BYTES,
        cards=tuple(
            CardNeed(
                rank=peak.rank,
                stage=plan.layout.stage_of(peak.rank),
                high_water_bytes=peak.high_water_bytes,
                capacity_bytes=hbm.capacity_bytes,
                reserved_bytes=hbm.reserved_bytes,
                by_tag=peak.by_tag,
            )
            for peak in peaks(plan)
        ),
        fits=what_fits(plan),
        warnings=(*prepared.warnings, *notes, FULL_LENGTH),
        not_modelled=NOT_MODELLED,
        host=HostReport(wall_s=time.perf_counter() - started),
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
