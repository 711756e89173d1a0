"""Data-parallel replicas, alone and with every other axis, give transformers' numbers and hold their own caches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import SIZES, reference, save
from linear_checkpoints import save_linear

from siltwin.runtime.fits import peaks
from siltwin.runtime.job import Job
from siltwin.runtime.prepare import prepare
from siltwin.runtime.routing import Recorded
from siltwin.runtime.run import RunResult, run_job

NEW_TOKENS = 5
PROMPTS = [[(5 * index + 3 * length) % SIZES["vocab_size"] for index in range(length)] for length in (1, 9, 40)]
LAYOUTS = ["dp=2", "dp=4", "dp=2,tp=2", "dp=2,tp=2,pp=2", "dp=4,pp=2", "cards=8,tp=2"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory):
    made: dict[str, tuple[Path, list]] = {}

    def make(family: str):
        if family not in made:
            path = save(tmp_path_factory.mktemp("replicas"), family, 0)
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


def check(result: RunResult, expected: list) -> None:
    assert result.logits is not None
    for index, (prompt_logits, tokens, rows) in enumerate(expected):
        spread = prompt_logits.std()
        assert np.abs(result.logits[f"logits_{index}"] - prompt_logits).max() <= 1e-4 * spread
        assert np.abs(result.logits[f"decode_logits_{index}"] - np.stack(rows)).max() <= 1e-4 * spread
        assert list(result.report.requests[index].tokens) == tokens
    assert all(card.live_at_end_bytes == 0 for card in result.report.cards)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("family", ["qwen2", "mixtral"])
def test_replicas_give_the_logits_of_transformers(checkpoint, family: str, layout: str) -> None:
    """Of three requests four replicas leave one without any, which runs along with nothing to do."""
    path, expected = checkpoint(family)
    check(run(path, layout), expected)


@pytest.mark.parametrize("layout", ["dp=2,tp=2,ep=2", "dp=2,tp=4,etp=2", "dp=2,tp=4,ep=2,etp=2"])
def test_experts_may_be_copied_to_every_replica(checkpoint, layout: str) -> None:
    path, expected = checkpoint("mixtral")
    check(run(path, layout, chunk_tokens=7), expected)


def test_states_of_linear_attention_stand_with_their_replica(tmp_path: Path) -> None:
    path = save_linear(tmp_path, "qwen3_next", 0)
    check(run(path, "dp=2,tp=2"), [reference(path, prompt, NEW_TOKENS) for prompt in PROMPTS])


@pytest.mark.parametrize("layout", ["dp=2,tp=2", "dp=4,pp=2"])
@pytest.mark.parametrize("family", ["qwen2", "mixtral"])
def test_without_numbers_replicas_take_the_same_time_and_memory(checkpoint, family: str, layout: str) -> None:
    path, _ = checkpoint(family)
    on = run(path, layout, logits=False)
    loads = Recorded({record.step.index: record.routed for record in on.records})
    off = run(path, layout, loads, payload=False, logits=False)
    assert on.spans == off.spans and on.memory == off.memory


def test_each_replica_holds_the_caches_of_its_own_requests(checkpoint) -> None:
    """Pages of 16 tokens, 2 kv heads of 6 in fp32 and 3 layers; sequences of 5, 13 and 44 tokens take 1, 1 and 3."""
    path, _ = checkpoint("qwen2")
    page = 16 * 2 * 2 * 6 * 4 * 3
    job = Job(str(path), layout="dp=2", dtype="float32", kv_dtype="float32", payload=False, ignore_eos=True,
              prompt_ids=tuple(map(tuple, PROMPTS)), max_new_tokens=NEW_TOKENS)  # fmt: skip
    report = run_job(job).report
    assert [card.by_tag["kv"] for card in report.cards] == [4 * page, page]
    weights = [card.by_tag["weight"] for card in report.cards]
    assert weights[0] == weights[1]
    assert [peak.by_tag["kv"] for peak in peaks(prepare(job).plan)] == [4 * page, page]


def test_requests_are_dealt_to_replicas_in_turn_each_with_a_budget(checkpoint) -> None:
    path, _ = checkpoint("qwen2")
    options: dict[str, Any] = {"logits": False, "payload": False, "chunk_tokens": 8}
    two, one = run(path, "dp=2", **options), run(path, "tp=1", **options)
    first = two.records[0].step
    assert [(entry.request, entry.count) for entry in first.entries] == [(0, 1), (2, 7), (1, 8)]
    assert two.report.totals.elapsed_ps < one.report.totals.elapsed_ps
