"""The budget of a job equals what the allocator holds when it runs, to the byte, or says by name why it may not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from checkpoints import save

from siltwin.runtime.budget import Budget, differences
from siltwin.runtime.fits import fits, peaks
from siltwin.runtime.helps import growths
from siltwin.runtime.job import Job
from siltwin.runtime.plan import Lengths
from siltwin.runtime.planning import budgets, plan_job
from siltwin.runtime.prepare import prepare
from siltwin.runtime.report_plan import CardBudget
from siltwin.runtime.run import run_job

SCALED = [
    ("Llama-3.1-405B", "tp=2,pp=2"),
    ("Mixtral-8x22B", "tp=2,ep=2"),
    ("OLMoE-1B-7B", "dp=2,ep=2"),
    ("MiniMax-M2", "tp=2,dp=2,ep=4"),
    ("gpt-oss-120b", "tp=2"),
    ("DeepSeek-V3", "tp=2,cp=2"),
    ("DeepSeek-V3.2", "tp=2,pp=2"),
    ("Qwen3-Next-80B-A3B", "tp=2,ep=2"),
    ("Kimi-Linear-48B-A3B", "cp=2"),
    ("Kimi-K3", "tp=2,dp=2,ep=4"),
    ("Llama-4-Maverick", "tp=2,pp=2"),
]
SIZES = {"batch": 5, "cached_len": 37, "input_len": 21, "output_len": 9}


def job(model: str | Path, **asked: Any) -> Job:
    return Job(str(model), payload=False, **{**SIZES, **asked})


def held(asked: Job) -> dict[int, dict[str, int]]:
    """Bytes by tag of every rank, by the budget."""
    return {rank: card.by_tag for card in cards(asked) for rank in card.ranks}


def cards(asked: Job) -> tuple[CardBudget, ...]:
    return budgets(Budget(prepare(asked).plan))


@pytest.mark.parametrize(("model", "layout"), SCALED)
def test_a_budget_is_what_the_allocator_holds(model: str, layout: str) -> None:
    asked = job(model, scale=True, layout=layout)
    assert differences(prepare(asked).plan) == []
    assert held(asked) == {peak.rank: peak.by_tag for peak in peaks(prepare(asked).plan)}
    for card in cards(asked):
        assert card.peak_bytes == sum(card.by_tag.values()) == sum(line.num_bytes for line in card.lines)


@pytest.mark.parametrize(
    ("model", "layout", "asked"),
    [
        ("Kimi-K3", "tp=2,dp=2,ep=4", {"batch": 6}),
        ("gpt-oss-120b", "tp=2", {"kv_dtype": "fp8", "kv_scales": "head"}),
        ("DeepSeek-V3.2", "tp=2,pp=2", {"kv_policy": "virtual", "kv_granule": "3000"}),
        ("Llama-4-Maverick", "tp=2,pp=2", {"offload": "experts=0.6"}),
        ("Llama-3.1-405B", "tp=4", {"kv_policy": "preallocated", "weights": "int4", "group": 32}),
    ],
)
def test_a_budget_is_what_a_run_reports(model: str, layout: str, asked: dict[str, Any]) -> None:
    ran = job(model, scale=True, layout=layout, **asked)
    assert held(ran) == {card.rank: card.by_tag for card in run_job(ran).report.cards}


@pytest.mark.parametrize(
    ("model", "asked"),
    [
        pytest.param("DeepSeek-V3", {"layout": "tp=8,ep=8", "batch": 4}, marks=pytest.mark.long),
        ("gpt-oss-120b", {"layout": "tp=4", "weights": "as-stored", "batch": 8}),
        ("Qwen3-235B-A22B", {"layout": "tp=4,dp=2,ep=8", "batch": 16}),
    ],
)
def test_the_budget_of_a_big_model_is_what_its_allocator_holds(model: str, asked: dict[str, Any]) -> None:
    ran = job(model, **{"card": "h100-sxm", "cached_len": 4000, "input_len": 96, "output_len": 4, **asked})
    assert held(ran) == {peak.rank: peak.by_tag for peak in peaks(prepare(ran).plan)}


def test_a_formula_shows_its_numbers(tmp_path: Path) -> None:
    """Three layers, hidden 24, two kv heads of 8; five sequences of 37 + 21 + 9 tokens on pages of 16."""
    path = save(tmp_path, "llama", 0)
    lines = {line.name: line for line in cards(job(path, dtype="float32", kv_dtype="float32"))[0].lines}
    assert lines["layers.*.cache"].formula == "3 x (5 sequences x 5 pages) x [16, 32] x 4 B (fp32)"
    assert lines["layers.*.cache"].num_bytes == 3 * 25 * 16 * 32 * 4
    config = json.loads((path / "config.json").read_text())
    width, hidden = config["intermediate_size"], config["hidden_size"]
    assert lines["layers.*.gate_up"].formula == f"3 x [{2 * width}, {hidden}] x 4 B (fp32)"
    assert lines["layers.*.gate_up"].num_bytes == 3 * 2 * width * hidden * 4
    assert lines["x"].formula == f"[tokens {5 * 21}, {hidden}] x 4 B (fp32)"


def test_cards_that_hold_more_stand_apart(tmp_path: Path) -> None:
    """Six sequences over four replicas: two on each of the first two, one on each of the others."""
    found = cards(job(save(tmp_path, "llama", 0), layout="dp=4", batch=6))
    assert [card.ranks for card in found] == [(0, 1), (2, 3)]
    assert [card.by_tag["kv"] for card in found] == [3 * 16 * 32 * 2 * pages for pages in (2 * 5, 5)]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"chunk_tokens": 16}, "sequences end in different steps"),
        ({"micro_batches": 2}, "sequences end in different steps"),
        ({"kv_pages": "ideal"}, "pages that windows let go"),
    ],
)
def test_where_a_run_may_stay_below_the_budget_it_is_named(tmp_path: Path, asked: dict[str, Any], said: str) -> None:
    ran = job(save(tmp_path, "mistral", 0), **asked)
    assert any(said in line for line in differences(prepare(ran).plan))
    for card, peak in zip(cards(ran), peaks(prepare(ran).plan), strict=True):
        assert 0.9 * card.peak_bytes < peak.peak_bytes <= card.peak_bytes


@pytest.mark.parametrize(
    ("model", "asked"),
    [
        ("Mixtral-8x22B", {"layout": "tp=8,ep=8", "batch": 40, "input_len": 512}),
        pytest.param(
            "gpt-oss-120b",
            {"layout": "tp=2,dp=2", "weights": "as-stored", "batch": 64, "input_len": 0},
            marks=pytest.mark.long,
        ),
    ],
)
def test_inversion_ends_where_the_allocator_does(model: str, asked: dict[str, Any]) -> None:
    ran = job(model, card="h100-sxm", **{"cached_len": 1000, "output_len": 2, **asked})
    plan, report = prepare(ran).plan, plan_job(ran)
    (one,) = set(plan.sequences)
    assert fits(plan.with_lengths([one] * report.largest_batch))
    assert not fits(plan.with_lengths([one] * (report.largest_batch + 1)))
    for more, fit in ((0, True), (1, False)):
        own = report.largest_context + more - one.prompt_len - one.max_new_tokens + bool(one.prompt_len)
        assert fits(plan.with_lengths([replace(one, cached_len=own)] * len(plan.sequences))) == fit


def test_inversion_of_a_spread_context_meets_programs_of_other_lengths() -> None:
    """Where prompts are a token long no ring goes round: other programs, of which the budget knows the sizes too."""
    plan = prepare(job("DeepSeek-V3", scale=True, layout="tp=2,cp=2")).plan
    budget = Budget(plan)
    for prompt in (0, 1, 300):
        other = plan.with_lengths([Lengths(prompt, 3, 40)] * 3)
        assert budget.need_bytes(other) == max(peak.high_water_bytes for peak in peaks(other))


def test_a_budget_beyond_the_capacity_says_so(tmp_path: Path) -> None:
    path = save(tmp_path, "llama", 0)
    need = Budget(plan := prepare(job(path)).plan).need_bytes(plan)
    assert need == max(peak.high_water_bytes for peak in peaks(plan))
    for room, fit in ((0, True), (512, False)):
        report = plan_job(job(path, overrides=(("hbm.capacity_bytes", str(need - room)),)))
        assert (report.fits, report.largest_batch >= 5) == (fit, fit)


def test_what_grows_is_told_by_its_tags(tmp_path: Path) -> None:
    """A page of 16 tokens of five sequences over three layers; a sixth sequence has its own five pages."""
    page = 3 * 16 * 32 * 2
    plan = prepare(job(save(tmp_path, "llama", 0), input_len=0, cached_len=60)).plan
    sequence, tokens = growths(Budget(plan))
    assert sequence.tags["kv"] == 5 * page and sequence.tags["activation"] > 0
    assert tokens.tags["kv"] == 5 * page
    assert set(tokens.tags) <= {"kv", "input", "padding"}


def test_every_change_that_helps_is_a_budget_of_its_own() -> None:
    small = (("hbm.capacity_bytes", str(8 << 20)), ("hbm.reserved_bytes", "0"))
    asked = job("DeepSeek-V3", scale=True, layout="tp=2", batch=4, input_len=0, overrides=small)
    helps = {found.change: found for found in plan_job(asked, with_helps=True).helps}
    changed = replace(asked, offload="experts=1")
    need = max(peak.high_water_bytes for peak in peaks(prepare(changed).plan))
    assert helps["--offload experts=1"].need_bytes == need
    before = max(peak.high_water_bytes for peak in peaks(prepare(asked).plan))
    assert helps["--offload experts=1"].saves_bytes == before - need
    wider = helps["--layout tp=4"]
    assert wider.cards == 4 and wider.saves_bytes is not None and wider.saves_bytes > 0
    assert all((found.need_bytes is None) == (found.refused is not None) for found in helps.values())
