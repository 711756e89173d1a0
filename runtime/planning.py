"""Plan: a job's budget as a report: what every kind of card would hold, and how far it could grow, in closed forms."""

from __future__ import annotations

import time
from dataclasses import replace

from .budget import Budget, Load, Profile, differences, loads
from .budget_lines import by_tag, lines_of
from .fits import largest_batch, largest_context
from .helps import growths, helps_of
from .job import Job
from .limits import sizes_of, with_sequences
from .plan import JobPlan
from .prepare import prepare
from .report_document import HostReport
from .report_plan import CardBudget, PlanReport
from .summary import NOT_MODELLED, card_part, cluster_part, layout_part, model_part


def plan_job(job: Job, with_helps: bool = False) -> PlanReport:
    """The budget of a job, and those of jobs that differ in one thing; nothing is allocated, computed or timed."""
    started = time.perf_counter()
    job, notes = with_sequences(replace(job, payload=False, logits=False), "budgets")
    prepared = prepare(job)
    plan = prepared.plan
    budget = Budget(plan)
    return PlanReport(
        model=model_part(prepared),
        card=card_part(plan.card),
        cluster=cluster_part(prepared),
        layout=layout_part(plan.layout),
        job=sizes_of(plan),
        fits=budget.fits(plan),
        cards=budgets(budget),
        largest_batch=largest_batch(plan, budget.fits, budget.need_bytes),
        largest_context=largest_context(plan, budget.fits, budget.need_bytes),
        growth=growths(budget),
        helps=helps_of(job, budget, prepared.checkpoint) if with_helps else (),
        differs=tuple(differences(plan)),
        warnings=(*prepared.warnings, *notes),
        not_modelled=NOT_MODELLED,
        host=HostReport(wall_s=time.perf_counter() - started),
    )


def budgets(budget: Budget) -> tuple[CardBudget, ...]:
    """A budget for each kind of card: those of one profile whose holders keep as much."""
    plan, held = budget.plan, loads(budget.plan)
    kinds: dict[tuple[int, Load], tuple[Profile, list[int]]] = {}
    for rank, profile in enumerate(budget.profile_of):
        load = held[plan.layout.holder_of(rank)]
        kinds.setdefault((profile.rank, load), (profile, []))[1].append(rank)
    return tuple(_card(plan, profile, load, ranks) for (_, load), (profile, ranks) in kinds.items())


def _card(plan: JobPlan, profile: Profile, load: Load, ranks: list[int]) -> CardBudget:
    lines, hbm = lines_of(plan, profile, load), plan.card.hbm
    return CardBudget(
        ranks=tuple(ranks),
        stage=plan.layout.stage_of(profile.rank),
        lines=tuple(lines),
        by_tag=dict(by_tag(lines)),
        peak_bytes=sum(line.num_bytes for line in lines),
        reserved_bytes=hbm.reserved_bytes,
        capacity_bytes=hbm.capacity_bytes,
    )
