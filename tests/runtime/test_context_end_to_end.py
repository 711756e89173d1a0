"""Contexts spread over cards give transformers' numbers: prefill by ring and by gathering, decode over split caches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import SIZES, reference, save
from latent_checkpoints import LATENT_FAMILIES, SPARSE_FAMILIES, save_latent
from linear_checkpoints import LINEAR_FAMILIES, save_linear
from scaled_checkpoints import SCALED_FAMILIES, save_scaled

from siltwin.isa.errors import ConfigError
from siltwin.runtime.align import align
from siltwin.runtime.fits import peaks
from siltwin.runtime.job import Job
from siltwin.runtime.prepare import prepare
from siltwin.runtime.routing import Recorded
from siltwin.runtime.run import RunResult, run_job

NEW_TOKENS = 24
PROMPTS = [[(7 * index + 3 * length) % SIZES["vocab_size"] for index in range(length)] for length in (1, 9, 40, 70)]
LAYOUTS = ["cp=2", "cp=4", "tp=2,cp=2", "dp=2,cp=2", "cp=2,pp=2", "tp=2,cp=2,pp=2", "dp=2,cp=2,tp=2"]
DENSE = ["llama", "mistral", "qwen2", "gpt_oss", *SCALED_FAMILIES]
SAVERS = {
    **dict.fromkeys(LINEAR_FAMILIES, save_linear),
    **dict.fromkeys([*LATENT_FAMILIES, *SPARSE_FAMILIES], save_latent),
    **dict.fromkeys(SCALED_FAMILIES, save_scaled),
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory):
    made: dict[str, tuple[Path, list]] = {}

    def make(family: str):
        if family not in made:
            path = SAVERS.get(family, save)(tmp_path_factory.mktemp("context"), family, 0)
            made[family] = path, [reference(path, prompt, NEW_TOKENS) for prompt in PROMPTS]
        return made[family]

    return make


def run(path: Path, layout: str, routing: Any = None, **changes: Any) -> RunResult:
    options = {
        "dtype": "float32",
        "kv_dtype": "float32",
        "prompt_ids": tuple(map(tuple, PROMPTS)),
        "max_new_tokens": NEW_TOKENS,
        "ignore_eos": True,
        "logits": True,
    }
    return run_job(Job(str(path), layout=layout, **{**options, **changes}), routing=routing)


def check(result: RunResult, expected: list, tolerance: float = 1e-4) -> None:
    assert result.logits is not None
    for index, (prompt_logits, tokens, rows) in enumerate(expected):
        allowed = tolerance * prompt_logits.std()
        assert np.abs(result.logits[f"logits_{index}"] - prompt_logits).max() <= allowed
        assert np.abs(result.logits[f"decode_logits_{index}"] - np.stack(rows)).max() <= allowed
        assert list(result.report.requests[index].tokens) == tokens
    assert all(card.live_at_end_bytes == 0 for card in result.report.cards)


@pytest.mark.parametrize("prefill", ["ring", "allgather"])
@pytest.mark.parametrize("family", [*DENSE, *LATENT_FAMILIES])
def test_a_split_context_gives_the_logits_of_transformers(checkpoint, family: str, prefill: str) -> None:
    """Windows, sinks, latents; a prompt of one token leaves all other shares without any."""
    path, expected = checkpoint(family)
    check(run(path, "cp=2", cp_prefill=prefill), expected)


@pytest.mark.parametrize("layout", LAYOUTS[1:])
def test_every_other_axis_goes_with_it(checkpoint, layout: str) -> None:
    path, expected = checkpoint("mistral")
    check(run(path, layout), expected)


@pytest.mark.long
@pytest.mark.parametrize("layout", LAYOUTS[1:])
@pytest.mark.parametrize("family", ["gpt_oss", *LATENT_FAMILIES])
def test_every_family_goes_with_every_axis(checkpoint, family: str, layout: str) -> None:
    path, expected = checkpoint(family)
    check(run(path, layout, chunk_tokens=7), expected)


@pytest.mark.parametrize("prefill", ["ring", "allgather"])
def test_chunked_prefill_and_mixed_batches_give_the_same_logits(checkpoint, prefill: str) -> None:
    path, expected = checkpoint("mistral")
    check(run(path, "cp=3", cp_prefill=prefill, chunk_tokens=7), expected)


@pytest.mark.parametrize("layout", ["dp=2,cp=2,ep=4", "cp=2,tp=2,ep=2"])
def test_experts_stand_on_the_cards_of_all_shares(checkpoint, layout: str) -> None:
    path, expected = checkpoint("mixtral")
    check(run(path, layout), expected)


@pytest.mark.parametrize("layout", ["cp=2", "tp=2,cp=2,pp=2"])
@pytest.mark.parametrize("family", SPARSE_FAMILIES)
def test_the_choice_of_sparse_attention_is_among_all_tokens_of_all_shares(checkpoint, family: str, layout: str) -> None:
    path, expected = checkpoint(family)
    check(run(path, layout, chunk_tokens=50), expected)


# transformers' chunked form of the delta rule is itself 1e-4 from its recurrent one, which test_linear_end_to_end shows
STATE_TOLERANCE = 2e-4


@pytest.mark.parametrize("family", LINEAR_FAMILIES)
def test_states_and_convolutions_pass_from_share_to_share(checkpoint, family: str) -> None:
    path, expected = checkpoint(family)
    check(run(path, "cp=2"), expected, STATE_TOLERANCE)


@pytest.mark.parametrize("layout", ["cp=4", "tp=2,cp=2,dp=2"])
def test_states_pass_between_chunks_too(checkpoint, layout: str) -> None:
    path, expected = checkpoint("kimi_linear")
    check(run(path, layout, chunk_tokens=19, max_new_tokens=NEW_TOKENS), expected, STATE_TOLERANCE)


@pytest.mark.parametrize("family", ["mistral", "deepseek_v3", "qwen3_next"])
@pytest.mark.parametrize("prefill", ["ring", "allgather"])
def test_without_numbers_time_and_memory_are_the_same(checkpoint, family: str, prefill: str) -> None:
    path, _ = checkpoint(family)
    options: dict[str, Any] = {"logits": False, "max_new_tokens": 4, "cp_prefill": prefill, "chunk_tokens": 50}
    on = run(path, "tp=2,cp=2", **options)
    loads = Recorded({record.step.index: record.routed for record in on.records})
    off = run(path, "tp=2,cp=2", loads, payload=False, **options)
    assert on.spans == off.spans and on.memory == off.memory


def test_what_stands_in_the_caches_already_is_spread_alike(checkpoint) -> None:
    """Seeded ids, so a run on one card is the reference."""
    for family in ("mistral", "kimi_linear"):
        path, _ = checkpoint(family)
        sizes: dict[str, Any] = {"prompt_ids": (), "max_new_tokens": None, "batch": 2, "output_len": 5}
        for lengths in ({"input_len": 6, "cached_len": 33}, {"cached_len": 33}):
            one, two = (run(path, layout, **sizes, **lengths) for layout in ("tp=1", "cp=3"))
            assert one.logits is not None and two.logits is not None
            for name, values in one.logits.items():
                np.testing.assert_allclose(two.logits[name], values, atol=2e-4 * values.std(), rtol=0)


def test_every_card_holds_its_share_of_the_pages_to_the_byte(checkpoint) -> None:
    """256 tokens on 4 shares are 64 each, 4 pages of 16 rows of 2 * 2 * 10 numbers in fp32 in each of 3 layers."""
    path, _ = checkpoint("mistral")
    page = 16 * 2 * 2 * 10 * 4 * 3
    sizes: dict[str, Any] = {"prompt_ids": (), "max_new_tokens": None, "batch": 1, "input_len": 128, "output_len": 0}
    for layout, pages in (("tp=1", 8), ("cp=2", 4), ("cp=4", 2)):
        result = run(path, layout, payload=False, logits=False, **sizes)
        assert {card.by_tag["kv"] for card in result.report.cards} == {pages * page}
        job = Job(str(path), layout=layout, dtype="float32", kv_dtype="float32", payload=False, batch=1, input_len=128)
        assert {peak.by_tag["kv"] for peak in peaks(prepare(job).plan)} == {pages * page}


def test_only_the_home_of_a_sequence_keeps_its_state(checkpoint) -> None:
    path, _ = checkpoint("qwen3_next")
    each = 3 * 4 * (4 * 12 * 10 + 3 * (2 * 24 + 40))
    result = run(path, "cp=2", payload=False, logits=False, max_new_tokens=2)
    assert [card.by_tag["state"] for card in result.report.cards] == [2 * each, 2 * each]


def test_a_ring_moves_every_row_past_every_other_card(checkpoint) -> None:
    """70 tokens of 2 * 2 * 10 fp32 numbers in 3 layers cross 3 of 4 links; parts and states move in no prefill."""
    path, _ = checkpoint("mistral")
    options: dict[str, Any] = {"prompt_ids": (tuple(PROMPTS[3]),), "max_new_tokens": 1, "logits": False}
    moved = 70 * 2 * 2 * 10 * 4 * 3 * 3
    for prefill in ("ring", "allgather"):
        report = run(path, "cp=4", payload=False, cp_prefill=prefill, **options).report
        (axis,) = [part for part in report.axes if part.axis == "cp"]
        assert axis.bytes == moved, prefill


def test_a_long_prompt_is_faster_on_more_shares_and_the_ring_hides_transfers_behind_attention() -> None:
    job: dict[str, Any] = {"payload": False, "batch": 1, "input_len": 8000, "output_len": 0, "dtype": "bfloat16"}
    whole, ring, gathered = (
        run_job(Job("SmolLM2-135M", layout=layout, cp_prefill=prefill, **job))
        for layout, prefill in (("cp=1", "ring"), ("cp=4", "ring"), ("cp=4", "allgather"))
    )
    for result in (ring, gathered):
        # more than a quarter: launches do not shrink with a share
        assert 0.25 < result.report.totals.elapsed_ps / whole.report.totals.elapsed_ps < 0.6
    busy = sum(span.end_ps - span.start_ps for span in ring.spans if span.card == 0)
    assert busy > 1.2 * ring.report.totals.elapsed_ps


def test_align_holds_layers_of_a_split_context_against_the_reference(checkpoint) -> None:
    path, _ = checkpoint("deepseek_v3")
    report = align(Job(str(path), layout="tp=2,cp=2", dtype="float32", kv_dtype="float32"))
    assert report.first_drift is None and report.logits.argmax_agreement == 1


def test_a_prefill_that_does_not_exist_is_refused(checkpoint) -> None:
    path, _ = checkpoint("llama")
    with pytest.raises(ConfigError, match="--cp-prefill 'rong' does not exist; choose one of ring, allgather"):
        run(path, "cp=2", cp_prefill="rong")
