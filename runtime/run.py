"""A job run on emulated cards: numbers, time and bytes of every step, by one loop."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np

from ..emulator.cluster import Cluster
from ..emulator.compiled.cluster import CompiledCluster
from ..emulator.exchange import Exchanged
from ..emulator.hbm import OutOfMemory
from ..emulator.machines import Machines, Ran
from ..emulator.span import Span, in_order
from ..emulator.span_columns import CardColumns
from ..emulator.ticket import Submission
from ..isa.instruction import Array
from ..isa.late import late
from ..isa.program import Program
from ..models.checkpoint import Checkpoint
from .binding import step_bindings, step_variants
from .halves import whole_loads
from .heat import Heat
from .host import few_collections
from .job import Job
from .layer_loads import LayerLoads, Loads
from .memory import JobMemory
from .plan import Variant
from .power_curve import Curve, power_curve
from .prepare import Prepared, prepare
from .report import Report
from .rests_on import refuse_weak
from .routing import EVEN, Even, Routing, has_experts
from .scheduler import Request, Step
from .skews import Skews
from .summary import evidence_of, summarise
from .watch import Watch

if TYPE_CHECKING:
    from . import numbers as numbers_room
    from .numbers import Numbers, StepNumbers
else:
    numbers_room = late(".numbers", __package__)  # with its kernels

Progress = Callable[[int, int | None, str], None]  # (steps done, steps in all if known, what is going on)


@dataclass(frozen=True)
class StepRecord:
    """One step as it ran: what its cards did as `columns`, and `variants` tells which program each card ran.

    `loads` gives the loads of its expert layers by extent; models draw them anew, as those of many steps are big.
    `clocks` are the hertz of the ranks that began it at less than their full clock.
    """

    step: Step
    start_ps: int
    end_ps: int
    columns: tuple[CardColumns, ...]
    told: Sequence[Span] = field(repr=False)
    exchanges: Sequence[Exchanged]
    variants: tuple[Variant, ...]
    loads: Callable[[], Mapping[str, LayerLoads]] = field(repr=False)
    clocks: Mapping[int, int] = field(default_factory=dict)

    @property
    def routed(self) -> dict[str, Loads]:
        """How many rows the experts of each layer got, by the extent's name."""
        return {name: own.loads for name, own in self.loads().items()}

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        """What its cards did as objects, in order: made when they are asked for."""
        return tuple(in_order(self.told))


@dataclass
class RunState:
    """What a run has gathered so far; the report is made from it, whether or not it came to its end.

    `not_finite` are the steps that gave logits with a NaN or infinity.
    """

    prepared: Prepared
    cluster: Machines
    memory: JobMemory
    requests: list[Request]
    watch: Watch
    skews: Skews
    heat: Heat
    records: list[StepRecord] = field(default_factory=list)
    first_token_ps: dict[int, int] = field(default_factory=dict)
    last_token_ps: dict[int, int] = field(default_factory=dict)
    logits: dict[str, list[Array]] = field(default_factory=dict)
    not_finite: list[int] = field(default_factory=list)
    oom: OutOfMemory | None = None
    load_s: float = 0.0
    run_s: float = 0.0


@dataclass(frozen=True)
class RunResult:
    """A finished run: the report, and what it was made from, for traces and files.

    `power_curve(rank, bins)` is there where the card states what energy needs.
    """

    report: Report
    records: tuple[StepRecord, ...]
    memory: Mapping[int, list[tuple[int, int, str]]]
    logits: dict[str, Array] | None
    programs: Mapping[tuple[int, Variant], Program]
    power_curve: Callable[[int, int], Curve] | None = None

    @property
    def spans(self) -> list[Span]:
        """All spans in step order."""
        return [span for record in self.records for span in record.spans]


@few_collections()
def run_job(
    job: Job, progress: Progress | None = None, routing: Routing | None = None, checkpoint: Checkpoint | None = None
) -> RunResult:
    """Run a job to its end, or to the allocation that did not fit, and report.

    `routing` deals tokens to experts where the payload does not (None: as the job says); `checkpoint` is the job's
    model where it is open already.
    """
    started = time.perf_counter()
    say = progress or (lambda done, total, text: None)
    say(0, None, "reading the model")
    prepared = prepare(job, checkpoint=checkpoint)
    if job.strict:
        refuse_weak(evidence_of(prepared))
    if routing is not None:
        prepared = replace(prepared, plan=replace(prepared.plan, routing=routing))
    state = start_run(prepared)
    try:
        _run(state, say)
    except OutOfMemory as error:
        state.oom = error
    report = summarise(state, started)
    if job.strict:
        refuse_weak(report.evidence)  # what lies outside a calibration is known only now
    return _result(state, report)


def start_run(prepared: Prepared) -> RunState:
    """Dark cards in their cluster, empty memories and fresh requests: a run before its first step."""
    plan = prepared.plan
    if isinstance(plan.routing, Even) and has_experts(plan.graph):
        prepared = replace(prepared, warnings=(*prepared.warnings, EVEN))
    job = prepared.job
    kind = partial(CompiledCluster, fold=job.fold, steady=job.steady) if job.calendar == "compiled" else Cluster
    cluster: Machines = kind(
        plan.card,
        prepared.cluster.topology(),
        plan.layout.cards,
        choose=prepared.cluster.choose,
        placement=prepared.placement,
    )
    # tokens that are computed may end a request early, on its own cards alone
    memory = plan.memory(plan.alike_of_holder if prepared.job.payload else plan.alike)
    return RunState(prepared, cluster, memory, prepared.requests(), Watch(plan), Skews(plan), Heat(cluster))


def _run(state: RunState, say: Progress) -> None:
    """Load, step until all requests are done, unload; memory is freed even when it ran out."""
    prepared, memory = state.prepared, state.memory
    begun = time.perf_counter()
    try:
        memory.load(0)
        numbers = _numbers(prepared, state.watch) if prepared.job.payload else None
        for request in state.requests:
            memory.grow_to(request, request.cached_len, 0)
        if numbers is not None:
            numbers.fill_cache(prepared.cached, state.requests, memory.pool)
        state.load_s = time.perf_counter() - begun
        begun = time.perf_counter()
        _steps(state, numbers, say)
        state.run_s = time.perf_counter() - begun
    finally:
        now = state.cluster.now_ps
        for request in state.requests:
            memory.release(request, now)
        memory.unload(now)


def _numbers(prepared: Prepared, watch: Watch) -> Numbers:
    seed, choose = prepared.job.seed, prepared.choose
    return numbers_room.Numbers(prepared.plan, prepared.checkpoint, seed, choose=choose, inspect=watch.inspect)


@dataclass(frozen=True)
class _Flight:
    """A step under way: the programs it runs, and the tokens it picks, which are known once it has ended."""

    step: Step
    ticket: Ran
    variants: tuple[Variant, ...]
    loads: Callable[[], Mapping[str, LayerLoads]]
    clocks: Mapping[int, int]
    picked: list[int] | None = None

    def landed(self, cluster: Machines) -> StepRecord:
        """The record of the step, once time has come to its end."""
        cluster.finish(self.ticket)
        ticket = self.ticket
        found = ticket.columns, ticket.spans, ticket.exchanged
        return StepRecord(self.step, ticket.start_ps, ticket.end_ps, *found, self.variants, self.loads, self.clocks)


def _steps(state: RunState, numbers: Numbers | None, say: Progress) -> None:
    """All steps: as many as there are micro-batches are in flight, and end in the order in which they began."""
    plan, requests = state.prepared.plan, state.requests
    lanes = plan.lanes(requests)
    expected = max(request.max_new_tokens for request in requests) * plan.micro_batches
    flying: deque[_Flight] = deque()
    while (step := lanes.next_step()) is not None or flying:
        if step is not None:
            say(step.index, max(expected, step.index + 1), f"step {step.index}, {step.kind}")
            flying.append(_take_off(state, numbers, step))
            continue
        flight = flying.popleft()
        record = flight.landed(state.cluster)
        state.records.append(record)
        state.heat.ended(record.step.index, record.end_ps)
        for index in [entry.request for entry in record.step.entries if entry.emits]:
            state.first_token_ps.setdefault(index, record.end_ps)
            state.last_token_ps[index] = record.end_ps
        for request in lanes.complete(record.step, flight.picked):
            state.memory.release(request, record.end_ps)
    say(expected, expected, "done")


def _take_off(state: RunState, numbers: Numbers | None, step: Step) -> _Flight:
    """Give a step its memory, compute its numbers, and hand its programs to the cards."""
    requests = state.requests
    state.memory.begin(step, requests, state.cluster.now_ps)
    result = numbers.run(step, requests, state.memory.pool) if numbers else None
    state.watch.ended(step)
    if result is None:
        return _submit(state, step, None)
    if not np.isfinite(result.logits).all():
        state.not_finite.append(step.index)
    if state.prepared.plan.all_logits:
        _keep_logits(state, step, result)
    return replace(_submit(state, step, result.routed), picked=result.picked)


def time_step(state: RunState, step: Step, routed: Mapping[str, LayerLoads] | None = None) -> StepRecord:
    """Emulate a step on all cards, from now until its last instruction ends.

    `routed` is what the step's numbers gave the experts; the run's routing model says it where there are none.
    """
    return _submit(state, step, routed).landed(state.cluster)


def _submit(state: RunState, step: Step, routed: Mapping[str, LayerLoads] | None) -> _Flight:
    plan = state.prepared.plan
    loads: Callable[[], Mapping[str, LayerLoads]]
    loads = partial(plan.routed, step) if routed is None else partial(dict, routed)
    bindings = step_bindings(plan, step, loads())
    state.skews.add(step, whole_loads(loads()))
    variants = tuple(step_variants(plan, step))
    submissions = [
        Submission(rank, plan.lowered(rank, variants[rank]).program, binding, plan.layout.groups(rank))
        for rank, binding in enumerate(bindings)
    ]
    # programs of one card use the same buffers, so that one must be over before the next begins
    ticket = state.cluster.start(submissions, in_turn=plan.micro_batches > 1)
    return _Flight(step, ticket, variants, loads, state.heat.stepped_down)


def _keep_logits(state: RunState, step: Step, result: StepNumbers) -> None:
    """File the rows of a step: every prompt position, and the row that each generated token was picked from."""
    row = 0
    for entry in step.entries:
        rows = result.logits[row : row + entry.count]
        row += entry.count
        request = state.requests[entry.request]
        if request.in_prefill:
            state.logits.setdefault(f"logits_{entry.request}", []).append(rows.copy())
        if entry.emits:
            state.logits.setdefault(f"decode_logits_{entry.request}", []).append(rows[-1:].copy())


def _histories(memory: JobMemory) -> dict[int, list[tuple[int, int, str]]]:
    """What every card's memory held over time; cards that share it share the list."""
    each = {id(hbm): list(hbm.history()) for hbm in memory.hbm.values()}
    return {rank: each[id(hbm)] for rank, hbm in memory.hbm.items()}


def _result(state: RunState, report: Report) -> RunResult:
    plan, ledger = state.prepared.plan, state.cluster.ledger
    curve = None if state.heat.unstated else partial(power_curve, plan.card, ledger, state.records)
    logits: dict[str, Array] | None = None
    if plan.all_logits:
        logits = {name: np.concatenate(parts) for name, parts in state.logits.items()}
        logits |= {f"tokens_{r.index}": np.array(r.tokens, np.int64) for r in state.requests}
    return RunResult(
        report=report,
        records=tuple(state.records),
        memory=_histories(state.memory),
        logits=logits,
        programs={
            used: plan.lowered(*used).program
            for used in {used for record in state.records for used in enumerate(record.variants)}
        },
        power_curve=curve,
    )
