"""Folding whole runs: the report of folded cards is that of every card simulated, and SimPy's, whatever the job."""

from __future__ import annotations

from typing import Any

import pytest

from siltwin.emulator.span import Span
from siltwin.runtime.job import Job
from siltwin.runtime.routing import Recorded
from siltwin.runtime.run import RunResult, run_job

SIZES: dict[str, Any] = {"batch": 8, "input_len": 24, "output_len": 2, "chunk_tokens": 16}


def ran(model: str, layout: str, **options: Any) -> RunResult:
    """A run of a scaled model without numbers."""
    return run_job(Job(model=model, layout=layout, scale=True, payload=False, **{**SIZES, **options}))


def told(result: RunResult) -> dict[str, Any]:
    """All of a report but what concerns this machine and how the calendar is called."""
    report: dict[str, Any] = result.report.model_dump(mode="json")
    return {name: part for name, part in report.items() if name not in ("host", "engine")}


def spans(result: RunResult) -> list[list[Span]]:
    """What every card did in every step, in one order."""
    return [sorted(record.told) for record in result.records]


QUICK = (
    ("SmolLM2-135M", "tp=3,dp=2", {}),
    ("Mixtral-8x22B", "tp=2,dp=2,ep=4", {}),
    ("Kimi-K3", "tp=2,dp=2,ep=4", {"weights": "mxfp4"}),
    ("DeepSeek-V3", "tp=2,pp=2,dp=2,ep=4", {"micro_batches": 2}),
    ("Qwen3-Next-80B-A3B", "tp=2,dp=2", {"routing": "zipf:1.0", "seed": 3}),
)
LONG = (
    ("Llama-3.1-405B", "tp=2,pp=2,dp=2", {"micro_batches": 2}),
    ("Llama-3.1-405B", "tp=2,cp=2", {"batch": 3}),
    ("gpt-oss-120b", "tp=2,dp=4,ep=8", {"kv_pages": "ideal"}),
    ("GLM-4.5", "tp=2,dp=4,ep=8", {"redundant_experts": 8, "routing": "zipf:1.5"}),
    ("DeepSeek-V3.2", "tp=2,dp=2,ep=4", {"routing": "multinomial"}),
    ("DeepSeek-V3", "tp=4,dp=2,ep=8", {"routing": "zipf:1.0"}),
    ("DeepSeek-V3", "tp=2,dp=4,ep=4,etp=2", {}),
    ("Kimi-K3", "tp=2,pp=2,dp=2,ep=4", {"micro_batches": 2, "sequence_parallel": True}),
    ("Kimi-K3", "tp=2,dp=3,ep=6", {"batch": 7}),
    ("Kimi-Linear-48B-A3B", "tp=2,dp=2,ep=4", {"batch": 5, "routing": "multinomial"}),
    ("MiniMax-M2", "tp=2,dp=2", {"cached_len": 40}),
    ("Llama-4-Maverick", "tp=2,dp=2,ep=4", {}),
    ("Qwen3-235B-A22B", "tp=4,dp=2,ep=8", {"cluster": "h100-4x8", "card": "h100-sxm"}),
)


@pytest.mark.parametrize(("model", "layout", "options"), QUICK)
def test_a_folded_run_reports_what_the_whole_run_does(model: str, layout: str, options: dict[str, Any]) -> None:
    folded, whole = ran(model, layout, **options), ran(model, layout, fold=False, **options)
    assert told(folded) == told(whole)
    assert spans(folded) == spans(whole)


@pytest.mark.long
@pytest.mark.parametrize(("model", "layout", "options"), LONG)
def test_every_kind_of_layout_reports_the_same_folded_or_not(model: str, layout: str, options: dict[str, Any]) -> None:
    test_a_folded_run_reports_what_the_whole_run_does(model, layout, options)


@pytest.mark.parametrize(
    ("model", "layout", "options"), [*QUICK[:2], *(pytest.param(*case, marks=pytest.mark.long) for case in LONG)]
)
def test_a_folded_run_is_told_as_under_simpy(model: str, layout: str, options: dict[str, Any]) -> None:
    folded, simpy = ran(model, layout, **options), ran(model, layout, engine="simpy", **options)
    assert spans(folded) == spans(simpy)
    assert told(folded) == told(simpy)


def test_even_loads_fold_and_uneven_ones_tell_cards_apart() -> None:
    """All 128 dies of the reference prefill of Kimi K3, at its full size, do the same while loads are even."""
    job = Job(
        model="Kimi-K3", card="ascend-910c", cluster="cloudmatrix-384", layout="tp=8,dp=16,ep=128", weights="mxfp4",
        batch=16, input_len=4096, payload=False,
    )  # fmt: skip
    (record,) = run_job(job).records
    assert [card.ranks for card in record.columns] == [tuple(range(128))]
    sizes = {"batch": 4, "input_len": 64, "output_len": 0, "chunk_tokens": None}
    uneven = ran("Mixtral-8x22B", "dp=4,ep=4", routing="zipf:1.0", **sizes)
    assert [len(record.columns) for record in uneven.records] == [4]


def test_one_longer_sequence_changes_the_spans_of_those_who_meet_its_card_alone() -> None:
    """Without experts replicas never meet: of four the one with a longer prompt is told apart, the rest fold on."""
    model, layout = "Llama-3.1-405B", "tp=2,dp=4"
    prompts = tuple(tuple(range(1, 19 + 8 * (index == 2))) for index in range(4))  # of two pages, all of them
    given: dict[str, Any] = {"model": model, "layout": layout, "scale": True, "payload": False, "max_new_tokens": 1}
    mixed = run_job(Job(prompt_ids=prompts, **given))
    equal = run_job(Job(prompt_ids=(prompts[0],) * 4, **given))
    assert [[card.ranks for card in record.columns] for record in mixed.records][0] == [(0, 1, 2, 3, 6, 7), (4, 5)]
    others = [
        [span for span in record.told if span.card not in (4, 5)] for record in (mixed.records[0], equal.records[0])
    ]
    assert sorted(others[0]) == sorted(others[1])


def test_one_hot_expert_in_one_layer_shows_in_the_spans_that_it_touches_alone() -> None:
    """Half of what a replica sent to the last card goes to the first, in the second layer: nothing else changes length.

    Where a card is late its peers wait: `issued` of the next collective moves, and no other length.
    """
    given: dict[str, Any] = {"batch": 4, "input_len": 64, "output_len": 0, "chunk_tokens": None}
    job = Job(model="Mixtral-8x22B", layout="dp=4,ep=4", scale=True, payload=False, **given)
    even = run_job(job)
    routed = dict(even.records[0].routed)
    name = "layers.1.experts"
    hot = routed[name].copy()
    moved = hot[1, 0, -1] // 2  # to the first card from the last
    hot[1, 0, 0], hot[1, 0, -1] = hot[1, 0, 0] + moved, hot[1, 0, -1] - moved
    assert hot[1, 0, 0] <= 64, "a token chooses distinct experts"
    skewed = run_job(job, routing=Recorded({0: routed | {name: hot}}))
    changed = set()
    for before, after in zip(
        *(sorted(run.records[0].told, key=lambda span: span[:4]) for run in (even, skewed)), strict=True
    ):
        assert before[:5] == after[:5]
        if after.end_ps - after.start_ps != before.end_ps - before.start_ps:
            changed.add((after.call, after.mnemonic))
    layers = [n for n, call in enumerate(even.programs[0, even.records[0].variants[0]].calls) if "layer" in call.block]
    touched = {"permute", "grouped_matmul", "grouped_gated", "combine", "regroup", "tally", "all_to_all"}
    assert changed and changed <= {(layers[1], mnemonic) for mnemonic in touched}
