"""Linear attention against transformers over every layout, and the laws of its states' bytes and times."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import SIZES, reference
from linear_checkpoints import LINEAR_FAMILIES, save_linear

from siltwin.runtime.job import Job
from siltwin.runtime.routing import Recorded
from siltwin.runtime.run import RunResult, run_job

NEW_TOKENS = 24
LAYOUTS = ["tp=1", "tp=2", "tp=4", "pp=2", "tp=2,ep=2", "tp=4,pp=2"]
PROMPTS = [[(7 * index + 3 * length) % SIZES["vocab_size"] for index in range(length)] for length in (1, 9, 40, 70)]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory):
    """Checkpoints and what the reference makes of the prompts, made once each."""
    made: dict[tuple[str, int], tuple[Path, list]] = {}

    def make(family: str, seed: int = 0):
        if (family, seed) not in made:
            path = save_linear(tmp_path_factory.mktemp("linear"), family, seed)
            expected = [reference(path, prompt, NEW_TOKENS) for prompt in PROMPTS]
            own = token_by_token(path, PROMPTS)
            made[family, seed] = path, [(*one, by_token) for one, by_token in zip(expected, own, strict=True)]
        return made[family, seed]

    return make


def token_by_token(path: Path, prompts: list[list[int]]) -> list[np.ndarray]:
    """Prompt logits by the recurrent form: how far its two forms differ is how well transformers knows its numbers."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
    found = []
    with torch.no_grad():
        for prompt in prompts:
            out, rows = None, []
            for token in prompt:
                past = out.past_key_values if out is not None else None
                out = model(torch.tensor([[token]]), past_key_values=past, use_cache=True)
                rows.append(out.logits[0, -1].numpy())
            found.append(np.stack(rows))
    return found


def run(path: Path, layout: str, **changes: Any) -> RunResult:
    options = {
        "dtype": "float32",
        "kv_dtype": "float32",
        "prompt_ids": tuple(map(tuple, PROMPTS)),
        "max_new_tokens": NEW_TOKENS,
        "ignore_eos": True,
        "logits": True,
    }
    return run_job(Job(str(path), layout=layout, **{**options, **changes}))


def check(result: RunResult, expected: list) -> None:
    assert result.logits is not None
    for index, (prompt_logits, tokens, rows, by_token) in enumerate(expected):
        allowed = max(1e-4 * prompt_logits.std(), 2 * np.abs(prompt_logits - by_token).max())
        assert np.abs(result.logits[f"logits_{index}"] - prompt_logits).max() <= allowed
        assert np.abs(result.logits[f"decode_logits_{index}"] - np.stack(rows)).max() <= allowed
        assert list(result.report.requests[index].tokens) == tokens
    assert all(card.live_at_end_bytes == 0 for card in result.report.cards)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("family", LINEAR_FAMILIES)
def test_logits_and_tokens_equal_those_of_transformers(checkpoint, family: str, layout: str) -> None:
    path, expected = checkpoint(family)
    check(run(path, layout), expected)


@pytest.mark.parametrize("layout", ["tp=1", "tp=2,pp=2"])
def test_chunked_prefill_and_mixed_batches_give_the_same_logits(checkpoint, layout: str) -> None:
    path, expected = checkpoint("qwen3_next")
    check(run(path, layout, chunk_tokens=7), expected)


def test_a_sequence_alone_gives_what_it_gives_in_a_batch(checkpoint) -> None:
    path, expected = checkpoint("qwen3_next")
    alone = run(path, "tp=2", prompt_ids=(tuple(PROMPTS[2]),))
    check(alone, expected[2:3])


def test_states_are_held_while_their_sequence_lives_and_counted_by_hand(checkpoint) -> None:
    """Five layers, three of them linear: 4 value heads of 12 x 10 in fp32, and 3 inputs of 2 * 24 + 40 channels."""
    path, _ = checkpoint("qwen3_next")
    each = 3 * 4 * (4 * 12 * 10 + 3 * (2 * 24 + 40))
    for layout, share in (("tp=1", 1), ("tp=2", 2)):
        result = run(path, layout, payload=False, logits=False, max_new_tokens=2)
        assert {card.by_tag["state"] for card in result.report.cards} == {4 * each // share}
        assert all(card.live_at_end_bytes == 0 for card in result.report.cards)


def test_without_numbers_time_and_memory_are_the_same(checkpoint) -> None:
    path, _ = checkpoint("qwen3_next")
    options = {"max_new_tokens": 4, "logits": False}
    on = run(path, "tp=2,pp=2", **options)
    loads = Recorded({record.step.index: record.routed for record in on.records})
    job = {"dtype": "float32", "kv_dtype": "float32", "prompt_ids": tuple(map(tuple, PROMPTS)), "ignore_eos": True}
    off = run_job(Job(str(path), layout="tp=2,pp=2", payload=False, **job, **options), routing=loads)
    assert on.spans == off.spans
    assert on.memory == off.memory
