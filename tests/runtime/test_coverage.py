"""Coverage: what a model needs of a card is native, composed at costs that are emulated, or missing with its reason."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from checkpoints import save
from latent_checkpoints import save_latent

from siltwin.emulator.spec import CARDS
from siltwin.isa.errors import GateError
from siltwin.runtime.coverage import cover
from siltwin.runtime.job import Job
from siltwin.runtime.report_coverage import CoverageReport, OperatorPart
from siltwin.runtime.run import run_job


@pytest.fixture(scope="session")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("coverage")


@cache
def checkpoint(directory: Path, family: str) -> Path:
    return (save_latent if family.startswith("deepseek") else save)(directory, family, 1)


def job(directory: Path, family: str, native: str | None = None, **options: object) -> Job:
    given: dict[str, object] = {"dtype": "bfloat16", "batch": 3, "input_len": 20, "output_len": 4, "payload": False}
    overrides = (("native", native),) if native else ()
    return Job(str(checkpoint(directory, family)), overrides=overrides, **{**given, **options})


def operator(report: CoverageReport, mnemonic: str) -> OperatorPart:
    (found,) = [item for item in report.operators if item.mnemonic == mnemonic]
    return found


def test_every_issue_of_a_step_is_counted_once(places: Path) -> None:
    asked = job(places, "llama", layout="pp=2")
    report = cover(asked)
    issued = [span.mnemonic for span in run_job(asked).spans if span.call >= 0][
        : sum(o.issues for o in report.operators)
    ]
    assert report.complete and {item.status for item in report.operators} == {"native"}
    assert sum(item.issues for item in report.operators) == len(issued)
    for item in report.operators:
        assert item.issues == issued.count(item.mnemonic) == sum(item.blocks.values())
    assert operator(report, "matmul").blocks == {"Attention + GatedMlp": 12, "head": 1}
    assert [(step.kind, step.tokens, step.context) for step in report.steps] == [("prefill", 60, 20), ("decode", 3, 24)]


def test_a_composition_costs_what_its_program_takes(places: Path) -> None:
    """Of 3 layers with 8 heads on 2 kv heads of 8 elements: by hand, bytes of scores, weights and cache rows."""
    report = cover(job(places, "llama", "all,-attention"))
    found = operator(report, "attention")
    assert (found.status, found.issues) == ("composed", 3)
    assert found.parts == ("paged_scores", "masked_softmax", "paged_values")
    prefill, decode = found.costs
    assert prefill.native is not None and decode.native is not None
    assert (prefill.composed.launches, prefill.native.launches) == (9, 3)
    for cost, tokens, columns, rows in ((prefill, 60, 32, 60), (decode, 3, 32, 72)):
        scores, weights = 4 * tokens * 8 * columns, 2 * tokens * 8 * columns
        q = 2 * tokens * 64
        kv = rows * 2 * 8 * 2
        assert cost.composed.hbm_bytes == 3 * (q + kv + scores + scores + weights + weights + kv + q)
        assert cost.native.hbm_bytes == 3 * (2 * q + 2 * kv)
        assert cost.composed.time_ps > cost.native.time_ps > 0
    assert all(step.elapsed_ps > step.native_ps for step in report.steps if step.elapsed_ps and step.native_ps)


def test_times_of_steps_are_those_of_the_run(places: Path) -> None:
    asked = job(places, "llama", "all,-attention,-gated", layout="tp=2")
    steps = run_job(asked).report.steps
    report = cover(asked)
    assert [step.elapsed_ps for step in report.steps] == [step.end_ps - step.start_ps for step in (steps[0], steps[-1])]


def test_attention_over_shares_of_a_context_is_covered_as_each_step_runs_it(places: Path) -> None:
    """Shares go round a ring in the prompt's step, and queries go round in those that decode."""
    asked = job(places, "llama", "all,-gated", layout="cp=2,tp=2")
    report, steps = cover(asked), run_job(asked).report.steps
    assert operator(report, "partial_attention").status == "native" and report.complete
    assert [step.elapsed_ps for step in report.steps] == [step.end_ps - step.start_ps for step in (steps[0], steps[-1])]


def test_in_place_norms_and_latents_have_costs(places: Path) -> None:
    report = cover(job(places, "deepseek_v3", "all,-latent_attention,-rmsnorm", layout="tp=2,ep=2"))
    assert report.complete
    for name in ("latent_attention", "rmsnorm"):
        found = operator(report, name)
        assert found.status == "composed" and all(cost.native is not None for cost in found.costs)
    assert set(operator(report, "rmsnorm").blocks) == {"LatentAttention + GatedMlp", "LatentAttention + Moe", "head"}


def test_what_is_missing_says_why_and_leaves_the_rest_told(places: Path) -> None:
    report = cover(job(places, "mixtral", "all,-attention,-masked_softmax,-route,-gated,-grouped_gated"))
    assert not report.complete
    assert {item.mnemonic: item.reason for item in report.missing} == {
        "attention": "masked_softmax is not native, and attention is composed of it",
        "route": "nothing composes it",
    }
    assert operator(report, "grouped_gated").parts == ("sigmoid_gate", "multiply")
    assert all(step.elapsed_ps is None and step.native_ps is not None for step in report.steps)
    assert all(saving.time_ps is None for item in report.fusions for saving in item.savings)


def test_strict_refuses_costs_that_rest_on_assumed_numbers(places: Path) -> None:
    with pytest.raises(GateError, match="--strict: time rests on assumed numbers"):
        cover(job(places, "llama", strict=True))


def test_an_element_type_that_a_unit_lacks_is_missing(places: Path, tmp_path: Path) -> None:
    card = tmp_path / "card.yaml"
    text = (CARDS / "reference-npu.yaml").read_text()
    assert "dtypes: [fp32, bf16, fp16," in text and "fp16: 1," in text
    card.write_text(text.replace("dtypes: [fp32, bf16, fp16,", "dtypes: [fp32, bf16,").replace("fp16: 1,", ""))
    report = cover(job(places, "llama", card=str(card), dtype="float16"))
    reasons = {item.mnemonic: item.reason or "" for item in report.missing}
    assert {"matmul", "attention", "rmsnorm", "rope", "add"} <= reasons.keys()
    assert "no tensor unit for fp16" in reasons["matmul"] and "no vector lanes for fp16" in reasons["rmsnorm"]
    assert operator(report, "argmax").status == "native"
    assert cover(job(places, "llama", card=str(card))).complete


@pytest.mark.parametrize("name", ["norm-matmul", "swiglu", "rope-attention"])
def test_what_a_fusion_saves_is_what_a_run_with_it_saves(places: Path, name: str) -> None:
    report = cover(job(places, "llama", layout="tp=2"))
    (found,) = [item for item in report.fusions if item.name == name]
    plain, fused = (run_job(job(places, "llama", layout="tp=2", fuse=text)) for text in (None, name))
    for saving, before, after in zip(
        found.savings,
        (plain.report.steps[0], plain.report.steps[-1]),
        (fused.report.steps[0], fused.report.steps[-1]),
        strict=True,
    ):
        assert saving.time_ps == (before.end_ps - before.start_ps) - (after.end_ps - after.start_ps) > 0
    assert (found.is_on, found.places) == (False, fused.report.passes[0].places // 2)
    assert found.launches_saved == -fused.report.passes[0].launches // 2


def test_decoding_in_the_product_is_a_fusion_that_is_on(places: Path) -> None:
    """Three layers of four products of int8 weights by row: decoded values are neither written nor read again."""
    report = cover(job(places, "llama", weights="int8"))
    found = next(item for item in report.fusions if item.name == "dequantise-matmul")
    assert (found.is_on, found.places, found.launches_saved) == (True, 12, 12)
    decoded = 2 * 3 * (96 * 48 + 48 * 64 + 112 * 48 + 48 * 56)
    assert [saving.hbm_bytes for saving in found.savings] == [2 * decoded, 2 * decoded]
    assert all(saving.time_ps is not None and saving.time_ps > 0 for saving in found.savings)
    assert operator(report, "packed_matmul").status == "native"
    composed = cover(job(places, "llama", "all,-packed_matmul", weights="int8"))
    assert composed.complete and operator(composed, "dequantise").issues == 12
    assert not any(item.mnemonic == "packed_matmul" for item in composed.operators)


def test_bytes_that_fusions_save_by_hand(places: Path) -> None:
    """Three layers of 48 hidden and 56 wide, seven norms: what stood between is neither written nor read again."""
    report = cover(job(places, "llama"))
    savings = {item.name: [saving.hbm_bytes for saving in item.savings] for item in report.fusions}
    assert savings["norm-matmul"] == [2 * 2 * 48 * (6 * tokens + 3) for tokens in (60, 3)]
    assert savings["swiglu"] == [3 * 2 * 2 * 112 * tokens for tokens in (60, 3)]
    turned, cached = (8 + 2) * 8, 2 * 2 * 8  # rotated in place, then read by scatter and attention
    assert savings["rope-attention"] == [3 * 2 * tokens * (2 * turned + cached + 64 - (64 + 32)) for tokens in (60, 3)]
