"""Coverage: every operator that a model needs on a card - native, composed, or missing - at what cost, and fusions."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ..emulator.spec import CardSpec, override
from ..emulator.units.demand import demand
from ..isa.errors import ConfigError, NotYetError, UnsupportedError
from ..isa.instruction import TensorType
from ..isa.program import Binding
from .binding import step_bindings
from .job import Job
from .limits import with_sequences
from .lowering.lower import BuiltProgram
from .lowering.passes.compose import Missing
from .lowering.passes.rewrite import Rewritten
from .lowering.passes.window import FUSIONS
from .operators import Site, block_kinds, cost_alone, hbm_bytes, plus, sites
from .plan import JobPlan
from .prepare import Prepared, prepare
from .report import HostReport
from .report_coverage import Cost, CoverageReport, FusionPart, OperatorPart, Saving, StatedStep, StepCost
from .routing import even
from .run import routed_of, start_run, time_step
from .scheduler import Step
from .summary import NOT_MODELLED, card_part, cluster_part, layout_part, model_part

ALONE = "costs of a composition are of each place emulated alone, one after the other; the times of steps overlap them"


@dataclass(frozen=True)
class _Stated:
    """A step, and what it binds on every rank."""

    step: Step
    bindings: tuple[Binding, ...]


@dataclass
class _Operator:
    """One mnemonic in one element type, gathered over the cards that stand for their stages."""

    unit: str
    issues: int = 0
    blocks: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    places: list[tuple[int, Site]] = field(default_factory=list)


def cover(job: Job) -> CoverageReport:
    """The coverage of a job's model on its card, in the first step and the last of the job; nothing is computed."""
    started = time.perf_counter()
    job, notes = with_sequences(replace(job, payload=False, logits=False), "costs")
    prepared = prepare(job, any_dtype=True)
    plan = prepared.plan
    if plan.layout.cp > 1:
        raise NotYetError("coverage of a context over cp shares comes with a later version; leave cp at 1")
    whole = replace(plan, card=override(plan.card, {"native": "all"}), fuse=(), _built={})
    bare = replace(plan, fuse=(), _built={})
    stated = _stated(prepared)
    operators = _operators(bare, whole, stated)
    complete = all(operator.status != "missing" for operator in operators)
    times = [_elapsed(prepared, plan, item) if complete else None for item in stated]
    as_native = [_elapsed(prepared, whole, item) for item in stated]
    plain = times if not plan.fuse else [_elapsed(prepared, bare, item) if complete else None for item in stated]
    return CoverageReport(
        model=model_part(prepared),
        card=card_part(plan.card),
        cluster=cluster_part(prepared),
        layout=layout_part(plan.layout),
        complete=complete,
        native=plan.card.native,
        native_evidence=plan.card.native_evidence,
        steps=tuple(_step(item, *both) for item, both in zip(stated, zip(times, as_native, strict=True), strict=True)),
        operators=operators,
        fusions=tuple(_fusion(prepared, bare, name, stated, plain) for name in FUSIONS),
        warnings=(*prepared.warnings, *notes, ALONE),
        not_modelled=NOT_MODELLED,
        host=HostReport(wall_s=time.perf_counter() - started),
    )


def _stated(prepared: Prepared) -> list[_Stated]:
    """The job's first step and its last, where there are two."""
    plan = prepared.plan
    lanes = plan.lanes(prepared.requests())
    found: list[Step] = []
    while (step := lanes.next_step()) is not None or lanes.in_flight:
        if step is None:
            lanes.complete(lanes.oldest, None)
        else:
            found = [*found[:1], step]
    routing = even(prepared.job.seed)
    return [_Stated(step, tuple(step_bindings(plan, step, routed_of(plan, step, routing)))) for step in found]


def _step(stated: _Stated, elapsed_ps: int | None, native_ps: int | None) -> StatedStep:
    entries = stated.step.entries
    return StatedStep(
        kind=stated.step.kind,
        tokens=stated.step.tokens,
        sequences=len(entries),
        context=max(entry.start + entry.count for entry in entries),
        elapsed_ps=elapsed_ps,
        native_ps=native_ps,
    )


def _elapsed(prepared: Prepared, plan: JobPlan, stated: _Stated) -> int | None:
    """How long all cards take for a step by a plan; None where an element type is not native to a unit."""
    state = start_run(replace(prepared, plan=plan))
    try:
        record = time_step(state, stated.step)
    except UnsupportedError:
        return None
    return record.end_ps - record.start_ps


def _ranks(plan: JobPlan) -> list[int]:
    """One rank of each pipeline stage."""
    return [plan.layout.rank(stage, 0) for stage in range(plan.layout.pp)]


def _operators(plan: JobPlan, whole: JobPlan, stated: Sequence[_Stated]) -> tuple[OperatorPart, ...]:
    """Every operator of the model's own programs, as this card runs it."""
    found: dict[tuple[str, str], _Operator] = {}
    for rank in _ranks(plan):
        program = whole.built(rank, whole.variants[0]).program
        kinds = block_kinds(plan, rank, program)
        for site in sites(program):
            key = (site.instruction.mnemonic, site.dtype(stated[0].bindings[rank]))
            operator = found.setdefault(key, _Operator(site.instruction.unit.value))
            operator.issues += site.calls
            operator.blocks[kinds[site.block.name]] += site.calls
            operator.places.append((rank, site))
    built = {rank: plan.outlined(rank, plan.variants[0]) for rank in _ranks(plan)}
    return tuple(
        _operator(plan, whole.card, mnemonic, dtype, operator, built, stated)
        for (mnemonic, dtype), operator in sorted(found.items(), key=lambda item: (item[1].unit, item[0]))
    )


def _operator(
    plan: JobPlan,
    whole: CardSpec,
    mnemonic: str,
    dtype: str,
    operator: _Operator,
    built: dict[int, BuiltProgram],
    stated: Sequence[_Stated],
) -> OperatorPart:
    """How the card runs an operator: itself, by a composition, or not at all."""
    part = OperatorPart(
        mnemonic=mnemonic,
        dtype=dtype,
        unit=operator.unit,
        status="native",
        issues=operator.issues,
        blocks=dict(operator.blocks),
    )
    try:
        if mnemonic in plan.card.instructions:
            _ask(plan.card, operator, stated)
            return part
        changes = [(rank, site, _change_of(built[rank], site)) for rank, site in operator.places]
        costs = tuple(_costs(plan, whole, changes, built, item) for item in stated)
    except UnsupportedError as error:
        return part.model_copy(update={"status": "missing", "reason": str(error)})
    names = dict.fromkeys(new.mnemonic for _, _, change in changes for new in change.new)
    return part.model_copy(update={"status": "composed", "parts": tuple(names), "costs": costs})


def _ask(card: CardSpec, operator: _Operator, stated: Sequence[_Stated]) -> None:
    """UnsupportedError where a unit does not compute in an operator's element type."""
    for rank, site in operator.places:
        for item in stated:
            demand(site.work(item.bindings[rank]), card)


def _change_of(built: BuiltProgram, site: Site) -> Rewritten:
    """What was made of an instruction; UnsupportedError where nothing could be."""
    for change in built.rewritten:
        if change.block == site.block.name and change.old == (site.instruction,):
            return change
    reasons = [item for item in built.missing if _is(item, site)]
    raise UnsupportedError(reasons[0].reason if reasons else "nothing composes it")


def _is(missing: Missing, site: Site) -> bool:
    return missing.block == site.block.name and missing.instruction == site.instruction


def _costs(
    plan: JobPlan,
    whole: CardSpec,
    changes: Sequence[tuple[int, Site, Rewritten]],
    built: dict[int, BuiltProgram],
    stated: _Stated,
) -> StepCost:
    """What all compositions of an operator cost in a step, beside the operator itself on a card that has it."""
    composed: Cost | None = None
    native: Cost | None = None
    has_native = True
    for rank, site, change in changes:
        binding = stated.bindings[rank]
        program = built[rank].program
        types: dict[str, TensorType] = dict(program.block[site.block.name].types) | site.block.types
        made = replace(site, program=replace(site.program, extents=program.extents))
        composed = plus(composed, cost_alone(plan, plan.card, made, change.new, types, binding), site.calls)
        try:
            native = plus(native, cost_alone(plan, whole, made, change.old, types, binding), site.calls)
        except UnsupportedError:
            has_native = False
    assert composed is not None, "an operator has a place"
    return StepCost(composed=composed, native=native if has_native else None)


def _fusion(
    prepared: Prepared, bare: JobPlan, name: str, stated: Sequence[_Stated], plain_ps: Sequence[int | None]
) -> FusionPart:
    """What a fusion alone changes of the stated steps, which take `plain_ps` without any."""
    part = FusionPart(name=name, is_on=name in prepared.plan.fuse, places=0, launches_saved=0, savings=())
    fused = replace(bare, fuse=(name,), _built={})
    try:
        built = {rank: fused.outlined(rank, fused.variants[0]) for rank in _ranks(fused)}
    except ConfigError as error:
        return part.model_copy(update={"reason": str(error)})
    places = launches = 0
    for made in built.values():
        calls = [call.block for call in made.program.calls]
        for change in made.rewritten:
            if change.name == f"fuse {name}":
                places += calls.count(change.block)
                launches += calls.count(change.block) * (len(change.old) - len(change.new))
    if not places:
        return part.model_copy(update={"reason": "no block of this model has a place for it"})
    savings = []
    for item, before_ps in zip(stated, plain_ps, strict=True):
        moved = [
            sum(hbm_bytes(plan.outlined(rank, plan.variants[0]).program, item.bindings[rank]) for rank in _ranks(plan))
            for plan in (bare, fused)
        ]
        after_ps = None if before_ps is None else _elapsed(prepared, fused, item)
        saved = None if before_ps is None or after_ps is None else before_ps - after_ps
        savings.append(Saving(hbm_bytes=moved[0] - moved[1], time_ps=saved))
    return part.model_copy(update={"places": places, "launches_saved": launches, "savings": tuple(savings)})
