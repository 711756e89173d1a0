"""Norms and sums on shares of the tokens: the same numbers, fewer bytes of activations, half collectives in pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import SIZES, reference, save
from kimi_k3_checkpoints import save_kimi_k3
from latent_checkpoints import save_latent
from linear_checkpoints import save_linear
from scaled_checkpoints import save_scaled

from siltwin.runtime.align import align
from siltwin.runtime.job import Job
from siltwin.runtime.routing import Recorded
from siltwin.runtime.run import RunResult, run_job

NEW_TOKENS = 4
MAKERS = {
    "deepseek_v3": save_latent,
    "qwen3_next": save_linear,
    "gemma3_text": save_scaled,
    "llama4_text": save_scaled,
}
PROMPTS = [[(5 * index + 3 * length) % SIZES["vocab_size"] for index in range(length)] for length in (1, 9, 40)]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory):
    made: dict[str, Path] = {}

    def make(family: str) -> Path:
        if family not in made:
            directory = tmp_path_factory.mktemp("shares")
            made[family] = _saved(directory, family)
        return made[family]

    return make


def _saved(directory: Path, family: str) -> Path:
    if family == "kimi_k3":
        return save_kimi_k3(directory, 0)[0]
    makers = {
        "deepseek_v3": save_latent,
        "qwen3_next": save_linear,
        "gemma3_text": save_scaled,
        "llama4_text": save_scaled,
    }
    return makers.get(family, save)(directory, family, 0)


def run(path: Path, layout: str, routing: Any = None, **changes: Any) -> RunResult:
    options = {
        "dtype": "float32",
        "kv_dtype": "float32",
        "prompt_ids": tuple(map(tuple, PROMPTS)),
        "max_new_tokens": NEW_TOKENS,
        "ignore_eos": True,
        "logits": True,
        "sequence_parallel": True,
    }
    return run_job(Job(str(path), layout=layout, **{**options, **changes}), routing=routing)


@pytest.mark.parametrize("layout", ["tp=2", "tp=4,pp=2", "tp=4,dp=2", "tp=1"])
@pytest.mark.parametrize("family", ["qwen2", "mixtral"])
def test_shares_give_the_logits_of_transformers(checkpoint, family: str, layout: str) -> None:
    """A prompt of one token and decode steps of three leave some of four ranks without a token."""
    path = checkpoint(family)
    result = run(path, layout)
    assert result.logits is not None
    for index, prompt in enumerate(PROMPTS):
        logits, tokens, rows = reference(path, prompt, NEW_TOKENS)
        assert np.abs(result.logits[f"logits_{index}"] - logits).max() <= 1e-4 * logits.std()
        assert np.abs(result.logits[f"decode_logits_{index}"] - np.stack(rows)).max() <= 1e-4 * logits.std()
        assert list(result.report.requests[index].tokens) == tokens
    assert all(card.live_at_end_bytes == 0 for card in result.report.cards)


@pytest.mark.parametrize(
    "family", ["deepseek_v3", "qwen3_next", "gemma3_text", "llama4_text", "kimi_k3", "minimax_m2", "gpt_oss"]
)
def test_every_scheme_of_blocks_may_hold_shares(checkpoint, family: str) -> None:
    """Latents, states, norms behind the blocks, soft caps, attention residuals, norms over all ranks' heads."""
    path = checkpoint(family)
    layout = "tp=2,dp=2,pp=2" + ("" if family == "gemma3_text" else ",ep=4")
    shared, whole = (run(path, degrees, sequence_parallel=on) for degrees, on in ((layout, True), ("tp=1", False)))
    for name, theirs in whole.logits.items():
        if not name.startswith("tokens"):
            assert np.abs(shared.logits[name] - theirs).max() <= 1e-4 * theirs.std(), name
    assert [r.tokens for r in shared.report.requests] == [r.tokens for r in whole.report.requests]


@pytest.mark.parametrize("layout", ["tp=4,pp=2", "tp=2,dp=2,ep=4"])
def test_without_numbers_shares_take_the_same_time_and_memory(checkpoint, layout: str) -> None:
    path = checkpoint("mixtral")
    on = run(path, layout, logits=False)
    loads = Recorded({record.step.index: record.routed for record in on.records})
    off = run(path, layout, loads, payload=False, logits=False)
    assert on.spans == off.spans and on.memory == off.memory


def test_shares_take_fewer_bytes_and_cross_links_in_halves() -> None:
    """Of x a rank holds a quarter; a reduce-scatter and an all-gather move what an all-reduce does."""
    jobs = [
        Job("Llama-3.1-405B", card="h100-sxm", layout="tp=8,pp=2", payload=False, batch=8, input_len=2048, output_len=0,
            sequence_parallel=on)
        for on in (False, True)
    ]  # fmt: skip
    whole, shared = (run_job(job).report for job in jobs)
    assert shared.cards[0].by_tag["weight"] == whole.cards[0].by_tag["weight"]
    tokens, hidden = 8 * 2048, 16384
    saved = whole.cards[8].by_tag["activation"] - shared.cards[8].by_tag["activation"]
    assert saved >= tokens * hidden * 2 // 2
    kinds = [{row.kind: row.count for row in report.collectives if row.axis == "tp"} for report in (whole, shared)]
    assert kinds[0].keys() == {"all_reduce", "all_gather"}
    assert kinds[1].keys() == {"reduce_scatter", "all_gather"}
    assert kinds[1]["reduce_scatter"] == kinds[0]["all_reduce"]


def test_stages_hand_on_shares(checkpoint) -> None:
    path = checkpoint("qwen2")
    sent = {}
    for on in (False, True):
        report = run(path, "tp=4,pp=2", sequence_parallel=on, logits=False).report
        sent[on] = sum(row.bytes for row in report.collectives if row.axis == "pp")
    assert sent[True] * 4 == sent[False]


def test_layers_align_from_shares(checkpoint) -> None:
    job = Job(str(checkpoint("qwen2")), layout="tp=4,dp=2,pp=2", dtype="float32", kv_dtype="float32",
              sequence_parallel=True, prompt_ids=tuple(map(tuple, PROMPTS)), max_new_tokens=3)  # fmt: skip
    report = align(job)
    assert report.verdict == "aligned" and len(report.layers) == SIZES["num_hidden_layers"] + 1
