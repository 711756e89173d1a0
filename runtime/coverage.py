"""Coverage: every operator that a model needs on a card - native, composed, or missing - at what cost, and fusions."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from ..emulator.spec import CardSpec, override
from ..emulator.units.demand import demand
from ..isa.errors import ConfigError, UnsupportedError
from ..isa.instruction import TensorType
from ..isa.products import PACKED_GROUPED_MATMUL, PACKED_MATMUL
from ..isa.program import Binding
from .binding import step_bindings, step_variants
from .job import Job
from .limits import with_sequences
from .lowering.lower import BuiltProgram
from .lowering.passes.compose import Missing
from .lowering.passes.fuse import fusion_names
from .lowering.passes.rewrite import Rewritten
from .lowering.passes.window import DEFAULT_FUSIONS
from .operators import Site, block_kinds, cost_alone, hbm_bytes, plus, sites
from .plan import JobPlan, Variant
from .prepare import Prepared, prepare
from .report_coverage import Cost, CoverageReport, FusionPart, OperatorPart, Saving, StatedStep, StepCost
from .report_document import HostReport
from .rests_on import refuse_weak
from .run import start_run, time_step
from .scheduler import Step
from .summary import NOT_MODELLED, card_part, cluster_part, evidence_of, layout_part, model_part

ALONE = "costs of a composition are of each place emulated alone, one after the other; the times of steps overlap them"
DECODING = (PACKED_MATMUL.mnemonic, PACKED_GROUPED_MATMUL.mnemonic)  # a card without them decodes first


@dataclass(frozen=True)
class _Stated:
    """A step, with what it binds on every rank and which program each runs, the output head included."""

    step: Step
    bindings: tuple[Binding, ...]
    variants: tuple[Variant, ...]

    def built(self, plan: JobPlan, rank: int) -> BuiltProgram:
        """A rank's program by a plan; instructions may be missing."""
        return plan.outlined(rank, self.variants[rank])


@dataclass
class _Operator:
    """One mnemonic in one element type: for each stated step where it is issued, on the cards that stand for stages."""

    unit: str
    places: list[list[_Place]]

    @property
    def busiest(self) -> list[_Place]:
        """The places of the step that issues it most."""
        return max(self.places, key=lambda places: sum(place.site.calls for place in places))


class _Place(NamedTuple):
    """An instruction of a rank's program, in a block of some kind."""

    rank: int
    site: Site
    kind: str


def cover(job: Job) -> CoverageReport:
    """The coverage of a job's model on its card, in the first step and the last of the job; nothing is computed."""
    started = time.perf_counter()
    job, notes = with_sequences(replace(job, payload=False, logits=False), "costs")
    prepared = prepare(job, any_dtype=True)
    if job.strict:
        refuse_weak(evidence_of(prepared))
    plan = prepared.plan
    decoding = tuple(name for name in plan.fuse if name in DEFAULT_FUSIONS)
    lacks = [f"-{name}" for name in DECODING if name not in plan.card.instructions]
    whole = replace(plan, card=override(plan.card, {"native": ",".join(["all", *lacks])}), fuse=decoding, _built={})
    bare = replace(plan, fuse=decoding, _built={})
    stated = _stated(prepared)
    operators = _operators(bare, whole, stated)
    complete = all(operator.status != "missing" for operator in operators)
    times = [_elapsed(prepared, plan, item) if complete else None for item in stated]
    as_native = [_elapsed(prepared, whole, item) for item in stated]
    compared = [_Compared(prepared, bare, name, stated, complete) for name in fusion_names()]
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
        fusions=tuple(item.part() for item in compared),
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
    return [
        _Stated(
            step,
            tuple(step_bindings(plan, step, plan.routed(step))),
            tuple(variant._replace(head=True) for variant in step_variants(plan, step)),
        )
        for step in found
    ]


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
    try:
        record = time_step(start_run(replace(prepared, plan=plan)), stated.step)
    except UnsupportedError:
        return None
    return record.end_ps - record.start_ps


def _ranks(plan: JobPlan) -> list[int]:
    """One rank of each pipeline stage."""
    return [plan.layout.rank(stage, 0) for stage in range(plan.layout.pp)]


def _operators(plan: JobPlan, whole: JobPlan, stated: Sequence[_Stated]) -> tuple[OperatorPart, ...]:
    """Every operator of the model's own programs, as this card runs it."""
    found: dict[tuple[str, str], _Operator] = {}
    for index, item in enumerate(stated):
        for rank in _ranks(plan):
            program = item.built(whole, rank).program
            kinds = block_kinds(plan, rank, program)
            for site in sites(program):
                key = (site.instruction.mnemonic, site.dtype(item.bindings[rank]))
                unit = site.instruction.unit.value
                operator = found.setdefault(key, _Operator(unit, [[] for _ in stated]))
                operator.places[index].append(_Place(rank, site, kinds[site.block.name]))
    return tuple(
        _operator(plan, whole.card, *key, operator, stated)
        for key, operator in sorted(found.items(), key=lambda item: (item[1].unit, item[0]))
    )


def _operator(
    plan: JobPlan, whole: CardSpec, mnemonic: str, dtype: str, operator: _Operator, stated: Sequence[_Stated]
) -> OperatorPart:
    """How the card runs an operator: itself, by a composition, or not at all."""
    blocks: Counter[str] = Counter()
    for place in operator.busiest:
        blocks[place.kind] += place.site.calls
    part = OperatorPart(
        mnemonic=mnemonic,
        dtype=dtype,
        unit=operator.unit,
        status="native",
        issues=blocks.total(),
        blocks=dict(blocks),
    )
    names: dict[str, None] = {}
    costs = []
    try:
        for item, places in zip(stated, operator.places, strict=True):
            if mnemonic in plan.card.instructions:
                for place in places:  # refused where the unit does not compute in the element type
                    demand(place.site.work(item.bindings[place.rank]), plan.card)
                continue
            changes = [(place, _change_of(item.built(plan, place.rank), place.site)) for place in places]
            costs.append(_cost(plan, whole, changes, item))
            names |= dict.fromkeys(new.mnemonic for _, change in changes for new in change.new)
    except UnsupportedError as error:
        return part.model_copy(update={"status": "missing", "reason": str(error)})
    if not costs:
        return part
    return part.model_copy(update={"status": "composed", "parts": tuple(names), "costs": tuple(costs)})


def _change_of(built: BuiltProgram, site: Site) -> Rewritten:
    """What was made of an instruction; UnsupportedError where nothing could be."""
    for change in built.rewritten:
        if change.block == site.block.name and change.old == (site.instruction,):
            return change
    reasons = [item for item in built.missing if _is(item, site)]
    raise UnsupportedError(reasons[0].reason if reasons else "nothing composes it")


def _is(missing: Missing, site: Site) -> bool:
    return missing.block == site.block.name and missing.instruction == site.instruction


def _cost(plan: JobPlan, whole: CardSpec, changes: Sequence[tuple[_Place, Rewritten]], stated: _Stated) -> StepCost:
    """What all compositions of an operator cost in a step, beside the operator itself on a card that has it."""
    composed = native = Cost(launches=0, hbm_bytes=0, time_ps=0)
    has_native = True
    for place, change in changes:
        site, binding = place.site, stated.bindings[place.rank]
        program = stated.built(plan, place.rank).program
        types: dict[str, TensorType] = dict(program.block[site.block.name].types) | site.block.types
        made = replace(site, program=replace(site.program, extents=program.extents))
        composed = plus(composed, cost_alone(plan, plan.card, made, change.new, types, binding), site.calls)
        try:
            native = plus(native, cost_alone(plan, whole, made, change.old, types, binding), site.calls)
        except UnsupportedError:
            has_native = False
    return StepCost(composed=composed, native=native if has_native else None)


@dataclass(frozen=True)
class _Compared:
    """The stated steps without a fusion and with it, all else as in `bare`."""

    prepared: Prepared
    bare: JobPlan
    name: str
    stated: Sequence[_Stated]
    complete: bool

    @cached_property
    def plans(self) -> tuple[JobPlan, JobPlan]:
        """Without it, and with it."""
        without = tuple(name for name in self.bare.fuse if name != self.name)
        both = (without, (self.name, *without))
        return tuple(  # type: ignore[return-value]
            self.bare if names == self.bare.fuse else replace(self.bare, fuse=names, _built={}) for names in both
        )

    def part(self) -> FusionPart:
        """What the fusion alone changes."""
        part = FusionPart(
            name=self.name, is_on=self.name in self.prepared.plan.fuse, places=0, launches_saved=0, savings=()
        )
        try:
            places, launches = self._places()
        except ConfigError as error:
            return part.model_copy(update={"reason": str(error)})
        if not places:
            return part.model_copy(update={"reason": "no block of this model has a place for it"})
        savings = tuple(self._saving(item) for item in self.stated)
        return part.model_copy(update={"places": places, "launches_saved": launches, "savings": savings})

    def _places(self) -> tuple[int, int]:
        """How often it acts in a step, and how many launches that saves, on one card of each stage."""
        places = launches = 0
        for rank in _ranks(self.bare):
            built = self.stated[0].built(self.plans[1], rank)
            calls = Counter(call.block for call in built.program.calls)
            for change in built.rewritten:
                if change.name == f"fuse {self.name}":
                    places += calls[change.block]
                    launches += calls[change.block] * (len(change.old) - len(change.new))
        return places, launches

    def _saving(self, item: _Stated) -> Saving:
        moved = [
            sum(hbm_bytes(item.built(plan, rank).program, item.bindings[rank]) for rank in _ranks(plan))
            for plan in self.plans
        ]
        times = [_elapsed(self.prepared, plan, item) if self.complete else None for plan in self.plans]
        saved = None if times[0] is None or times[1] is None else times[0] - times[1]
        return Saving(hbm_bytes=moved[0] - moved[1], time_ps=saved)
