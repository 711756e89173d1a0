"""Steps in two halves, one computing beside the other's exchanges: the same numbers, time that is hidden, its price."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from checkpoints import SIZES, save
from kimi_k3_checkpoints import save_kimi_k3
from latent_checkpoints import save_latent
from linear_checkpoints import save_linear
from races import races
from scaled_checkpoints import save_scaled

from siltwin.emulator.payload_binding import Site
from siltwin.isa.errors import NotYetError
from siltwin.isa.program import Program
from siltwin.models.blocks import Moe
from siltwin.runtime.align import align
from siltwin.runtime.budget import Budget
from siltwin.runtime.halves import halves, whole_loads
from siltwin.runtime.job import Job
from siltwin.runtime.lowering.passes.overlap import SECOND, is_second
from siltwin.runtime.places import layer_of
from siltwin.runtime.planning import budgets
from siltwin.runtime.prepare import prepare
from siltwin.runtime.recorded import summed
from siltwin.runtime.report_breakdown import OverlapReport
from siltwin.runtime.routing import Recorded
from siltwin.runtime.run import RunResult, run_job
from siltwin.runtime.scheduler import Entry, Step

MAKERS = {"deepseek_v3": save_latent, "qwen3_next": save_linear, "gemma3_text": save_scaled}
PROMPTS = [[(5 * index + 3 * length) % SIZES["vocab_size"] for index in range(length)] for length in (1, 9, 40)]
WIDE = {"card": "ascend-910c", "layout": "tp=1,dp=8,ep=8", "payload": False, "batch": 8, "input_len": 4096}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory):
    made: dict[str, Path] = {}

    def make(family: str) -> Path:
        if family not in made:
            directory = tmp_path_factory.mktemp("halves")
            saved = save_kimi_k3(directory, 0)[0] if family == "kimi_k3" else None
            made[family] = saved or MAKERS.get(family, save)(directory, family, 0)
        return made[family]

    return make


def job(path: Path, layout: str, **changes: Any) -> Job:
    options = {
        "dtype": "float32",
        "kv_dtype": "float32",
        "prompt_ids": tuple(map(tuple, PROMPTS)),
        "max_new_tokens": 3,
        "ignore_eos": True,
        "overlap": True,
    }
    return Job(str(path), layout=layout, **{**options, **changes})


def same_numbers(halved: RunResult, whole: RunResult) -> None:
    assert halved.logits is not None and whole.logits is not None
    assert halved.logits.keys() == whole.logits.keys()
    for name, theirs in whole.logits.items():
        if not name.startswith("tokens"):
            assert np.abs(halved.logits[name] - theirs).max() <= 1e-4 * theirs.std(), name
    assert [r.tokens for r in halved.report.requests] == [r.tokens for r in whole.report.requests]


@pytest.mark.parametrize(
    ("family", "layout"),
    [
        ("qwen2", "tp=2,pp=2"),
        ("mixtral", "tp=2,dp=2,ep=4"),
        ("mixtral", "dp=4,ep=4"),
        ("deepseek_v3", "dp=2,ep=2"),
        ("qwen3_next", "tp=2"),
        ("gemma3_text", "tp=2"),
    ],
)
def test_halves_give_the_numbers_of_whole_steps(checkpoint, family: str, layout: str) -> None:
    """50 prompt tokens are cut inside the longest prompt; a replica with one sequence leaves its second half empty."""
    path = checkpoint(family)
    halved, whole = (run_job(job(path, layout, overlap=on, logits=True)) for on in (True, False))
    same_numbers(halved, whole)
    assert all(card.live_at_end_bytes == 0 for card in halved.report.cards)


@pytest.mark.parametrize("changes", [{"sequence_parallel": True}, {"chunk_tokens": 7}, {"kv_pages": "ideal"}])
def test_halves_go_with_other_ways_to_run(checkpoint, changes: dict[str, Any]) -> None:
    path = checkpoint("gemma3_text")
    halved = run_job(job(path, "tp=2", logits=True, **changes))
    same_numbers(halved, run_job(job(path, "tp=1", logits=True, overlap=False)))


@pytest.mark.long
def test_halves_give_kimis_numbers_over_stages_and_experts(checkpoint) -> None:
    path = checkpoint("kimi_k3")
    layout = "tp=2,dp=2,pp=2,ep=4"
    halved, whole = (run_job(job(path, layout, overlap=on, logits=True)) for on in (True, False))
    same_numbers(halved, whole)


@pytest.mark.parametrize("layout", ["tp=2,dp=2,ep=4", "tp=2,pp=2"])
def test_without_numbers_halves_take_the_same_time_and_memory(checkpoint, layout: str) -> None:
    """The loads of each half are recorded for themselves; SimPy and the compiled calendar agree, folded or not."""
    path = checkpoint("mixtral")
    on = run_job(job(path, layout))
    loads = Recorded({record.step.index: record.routed for record in on.records})
    assert {name.endswith(SECOND) for name in on.records[0].routed} == {False, True}
    for fold in (True, False):
        off = run_job(job(path, layout, payload=False, fold=fold), routing=loads)
        assert on.spans == off.spans and on.memory == off.memory


@pytest.mark.parametrize(
    ("family", "layout"), [("mixtral", "tp=2,dp=2,ep=4"), ("deepseek_v3", "tp=2"), ("kimi_k3", "tp=2,pp=2,ep=2")]
)
def test_programs_over_halves_are_race_free(checkpoint, family: str, layout: str) -> None:
    plan = prepare(job(checkpoint(family), layout)).plan
    for variant in plan.variants:
        for rank in sorted(set(plan.classes)):
            result = plan.lowered(rank, variant)
            assert races(result.program, result) == []


def test_a_step_is_dealt_by_tokens_replica_by_replica(checkpoint) -> None:
    """Of 1 + 40 tokens 21 come first: the second sequence is cut behind 20. Of 9, 5; of one token none is left."""
    path = checkpoint("mixtral")
    plan = prepare(job(path, "dp=2,ep=2")).plan
    step = Step(3, "prefill", (Entry(0, 0, 1, True), Entry(2, 16, 40, True), Entry(1, 0, 9, False)))
    first, second = halves(plan, step)
    assert first.entries == (Entry(0, 0, 1, True), Entry(2, 16, 20, False), Entry(1, 0, 5, False))
    assert second.entries == (Entry(2, 36, 20, True), Entry(1, 5, 4, False))
    alone = Step(4, "decode", (Entry(0, 1, 1, True), Entry(1, 9, 1, True)))
    assert halves(plan, alone)[0].entries == alone.entries and halves(plan, alone)[1].entries == ()
    whole = prepare(job(path, "dp=2,ep=2", overlap=False)).plan
    assert halves(whole, step) == (step,)


def test_both_halves_choose_experts_as_often_as_the_whole_step() -> None:
    plan = prepare(Job("OLMoE-1B-7B", overlap=True, **{**WIDE, "input_len": 31}, routing="zipf:1")).plan
    step = plan.lanes(plan.requests()).next_step()
    assert step is not None
    loads = plan.routed(step)
    extent = "layers.0.experts"
    sums = [int(loads[name].loads.sum()) for name in (extent, extent + SECOND)]
    assert sums == [8 * 16 * 8, 8 * 15 * 8], "8 replicas, 16 and 15 tokens, 8 experts each"
    assert int(whole_loads(loads)[extent].loads.sum()) == sum(sums)
    assert not np.array_equal(loads[extent].loads * 15, loads[extent + SECOND].loads * 16), "each half draws its own"


def on_wires(run: RunResult) -> OverlapReport:
    assert run.report.phases.prefill is not None
    return next(row for row in run.report.phases.prefill.breakdown.overlap if row.axis == "ep")


def test_an_exchange_is_hidden_behind_the_other_half() -> None:
    """A layer's two big exchanges of a half are as long as half of a whole step's, and computation runs beside them."""
    halved, whole = (run_job(Job("OLMoE-1B-7B", overlap=on, output_len=0, **WIDE)) for on in (True, False))
    before, after = map(on_wires, (whole, halved))
    assert before.hidden_ps <= 0.02 * before.time_ps
    assert after.hidden_ps >= 0.8 * after.time_ps
    step, apart = (run.records[0].end_ps - run.records[0].start_ps for run in (halved, whole))
    assert step < apart
    busy: dict[str, int] = {}
    for span in halved.spans:
        if span.card == 0:
            busy[span.queue] = busy.get(span.queue, 0) + span.end_ps - span.start_ps
    assert step >= max(busy.values()), "no queue does two things at once"
    # and a little where a kernel of one half uses cores that the other's leaves idle
    assert apart - step <= 1.05 * before.time_ps, "nothing more is saved than time on the wires"


def test_little_work_over_much_weight_loses() -> None:
    """A decode step reads its experts' weights once for each half, which its short exchanges do not outweigh."""
    sizes = {**WIDE, "batch": 128, "input_len": 0, "cached_len": 1024, "output_len": 1}
    halved, whole = (run_job(Job("OLMoE-1B-7B", overlap=on, **sizes)).records[0] for on in (True, False))
    assert halved.end_ps - halved.start_ps > whole.end_ps - whole.start_ps


def test_the_budget_counts_both_halves(checkpoint) -> None:
    asked = job(checkpoint("mixtral"), "tp=2,dp=2,ep=4")
    budget = {rank: card.by_tag for card in budgets(Budget(prepare(asked).plan)) for rank in card.ranks}
    for card in run_job(asked).report.cards:
        kept = {tag: held for tag, held in budget[card.rank].items() if tag in ("weight", "activation", "input")}
        assert kept and kept == {tag: card.by_tag[tag] for tag in kept}


def test_programs_are_doubled_only_where_that_is_asked_for(checkpoint) -> None:
    on, off = (prepare(job(checkpoint("mixtral"), "tp=2", overlap=on)).plan for on in (True, False))
    plain, halved = (plan.built(0, plan.variants[0]).program for plan in (off, on))
    seconds = [is_second(issue.instruction) for block in plain.blocks for issue in block.body]
    assert not any(seconds) and not any(buffer.name.endswith(SECOND) for buffer in plain.buffers)
    counts = [sum(len(program.block[call.block].body) for call in program.calls) for program in (plain, halved)]
    assert counts[1] == 2 * counts[0], "every instruction once for each half, in one call or the next"
    assert [call.block.partition(".")[0] for call in halved.calls] == [
        call.block.partition(".")[0] for call in plain.calls
    ]


def test_what_halves_do_not_go_with_is_said(checkpoint) -> None:
    path = checkpoint("qwen2")
    with pytest.raises(NotYetError, match="--overlap with cp"):
        prepare(job(path, "cp=2"))
    with pytest.raises(NotYetError, match="--overlap with align"):
        align(job(path, "tp=2"))
    warnings = prepare(job(path, "tp=1")).warnings
    assert any(text.startswith("--overlap hides nothing") for text in warnings)


def test_a_saved_routing_counts_both_halves_when_experts_are_copied(checkpoint) -> None:
    """Layer 0's experts got what both halves of the recorded step chose."""
    graph = prepare(job(checkpoint("mixtral"), "tp=1", overlap=False)).plan.graph
    mlp = graph.layers[0].mlp
    assert isinstance(mlp, Moe)
    first, second = np.arange(mlp.experts.count), np.ones(mlp.experts.count, np.int64)
    steps = {0: {"layers.0.experts": first.reshape(1, 1, -1), "layers.0.experts.b": second.reshape(1, 1, -1)}}
    assert dict(summed(steps, graph)) == {0: [1 + index for index in range(mlp.experts.count)]}


def test_what_the_second_half_ends_in_the_next_call_is_told_of_its_own_layer(checkpoint) -> None:
    """Layer by layer both halves together do twice what a whole step does."""
    counts = []
    for on in (False, True):
        plan = prepare(job(checkpoint("mixtral"), "tp=2", overlap=on)).plan
        program = plan.built(0, plan.variants[0]).program
        image: Any = SimpleNamespace(program=program, rank=0)
        memory: Any = None
        sites = (
            Site(image, call, block, position, issue.instruction, memory)
            for call, block in enumerate(program.block[each.block] for each in program.calls)
            for position, issue in enumerate(block.body)
        )
        counts.append(Counter(layer_of(plan, site) for site in sites))
    assert counts[1] == {layer: 2 * count for layer, count in counts[0].items()}


def test_halves_take_turns_and_what_has_no_product_stands_within_the_others_turn() -> None:
    """In Kimi K3 the sum of experts' outputs, between two exchanges, stands before the other's last product."""
    plan = prepare(Job("Kimi-K3", scale=True, layout="tp=2,dp=2,ep=4", batch=4, input_len=8, overlap=True)).plan
    program = plan.built(0, plan.variants[0]).program
    call = next(call for call in program.calls if "combine" in _body(program, call.block))
    body = _body(program, call.block)
    at = body.index("combine")
    before, after = body[at - 1], body[at + 1 : at + 3]
    assert before.endswith(SECOND), "the second half's experts are under way"
    assert after[0] == "all_reduce" and "matmul" in after[1] and after[1].endswith(SECOND)


def _body(program: Program, block: str) -> list[str]:
    found = (issue.instruction for issue in program.block[block].body)
    return [one.mnemonic + SECOND * is_second(one) for one in found]
