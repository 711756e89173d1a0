"""Prompts cut into chunks that end about a page give the numbers of the whole prompt, whatever attends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import save
from latent_checkpoints import save_latent
from linear_checkpoints import save_linear
from scaled_checkpoints import save_scaled

from siltwin.runtime.job import Job
from siltwin.runtime.run import RunResult, run_job

PROMPTS = tuple(tuple((7 * index + 3 * length) % 131 for index in range(length)) for length in (33, 70))
# windows of 12 and shorter, chunks, index budgets of 16 and 23, states with a convolution before them
SAVERS = {
    **dict.fromkeys(["llama", "mistral", "gpt_oss"], save),
    **dict.fromkeys(["gemma3_text", "llama4_text"], save_scaled),
    **dict.fromkeys(["deepseek_v3", "deepseek_v32", "glm_moe_dsa"], save_latent),
    **dict.fromkeys(["qwen3_next", "kimi_linear"], save_linear),
}
CHUNKS = (15, 16, 17, 31, 32, 33)  # of pages of 16
# of the logits' deviation: codes and halves flip where sums are added in another order, a step of 2^-8, 2^-3 or 1/127
WITHIN = {"fp32": 1e-4, "bf16": 2e-2, "fp8": 0.2, "int8": 5e-2}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory):
    """A checkpoint of a family, and its numbers of whole prompts on one card."""
    made: dict[tuple[str, str], tuple[Path, RunResult]] = {}

    def make(family: str, kv_dtype: str = "fp32"):
        key = family, kv_dtype
        if key not in made:
            path = SAVERS[family](tmp_path_factory.mktemp("chunks"), family, 0)
            made[key] = path, run(path, kv_dtype=kv_dtype)
        return made[key]

    return make


def run(path: Path, **options: Any) -> RunResult:
    asked = {"dtype": "float32", "kv_dtype": "fp32", "prompt_ids": PROMPTS, "max_new_tokens": 4, "ignore_eos": True}
    return run_job(Job(str(path), logits=True, **{**asked, **options}))


def check(found: RunResult, wanted: RunResult, within: float) -> None:
    assert found.logits is not None and wanted.logits is not None
    for index in range(len(PROMPTS)):
        name = f"logits_{index}"
        assert np.abs(found.logits[name] - wanted.logits[name]).max() <= within * wanted.logits[name].std()
    if within <= 1e-4:
        assert [r.tokens for r in found.report.requests] == [r.tokens for r in wanted.report.requests]


QUICK = [("mistral", 16, {}), ("deepseek_v32", 17, {}), ("kimi_linear", 15, {}), ("gpt_oss", 16, {"layout": "cp=2"})]


@pytest.mark.parametrize(("family", "chunk", "options"), QUICK, ids=[f"{case[0]}-{case[1]}" for case in QUICK])
def test_chunks_about_a_page_give_the_numbers_of_the_whole(
    whole, family: str, chunk: int, options: dict[str, Any]
) -> None:
    path, wanted = whole(family)
    check(run(path, chunk_tokens=chunk, **options), wanted, WITHIN["fp32"])


@pytest.mark.long
@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("layout", ["tp=1", "tp=2", "cp=2", "cp=3"])
@pytest.mark.parametrize("family", SAVERS)
def test_every_kind_of_attention_does_so_over_every_share(whole, family: str, layout: str, chunk: int) -> None:
    path, wanted = whole(family)
    check(run(path, layout=layout, chunk_tokens=chunk), wanted, WITHIN["fp32"])


@pytest.mark.long
@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("prefill", ["ring", "allgather"])
@pytest.mark.parametrize("family", ["gpt_oss", "deepseek_v3"])
def test_every_way_to_reach_a_spread_context_does_so(whole, family: str, prefill: str, chunk: int) -> None:
    path, wanted = whole(family)
    check(run(path, layout="cp=2,tp=2", cp_prefill=prefill, chunk_tokens=chunk), wanted, WITHIN["fp32"])


@pytest.mark.parametrize(("kv_dtype", "family"), [("int8", "mistral"), ("fp8", "deepseek_v3")])
def test_a_cache_of_codes_is_read_alike_by_chunks(whole, kv_dtype: str, family: str) -> None:
    path, wanted = whole(family, kv_dtype)
    check(run(path, chunk_tokens=17, kv_dtype=kv_dtype), wanted, WITHIN[kv_dtype])


@pytest.mark.long
@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("kv_dtype", ["bf16", "fp8", "int8"])
@pytest.mark.parametrize("family", ["mistral", "gpt_oss", "gemma3_text", "llama4_text", "deepseek_v3", "qwen3_next"])
def test_every_cache_is_read_alike_by_every_chunk(whole, family: str, kv_dtype: str, chunk: int) -> None:
    path, wanted = whole(family, kv_dtype)
    check(run(path, chunk_tokens=chunk, kv_dtype=kv_dtype), wanted, WITHIN[kv_dtype])
