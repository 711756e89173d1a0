"""Long sequences with numbers: chunks of thousands of tokens; what a place says is its own, wherever all ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import siltwin
from siltwin.runtime.job import Job
from siltwin.runtime.run import RunResult, run_job

CONFIGS = Path(siltwin.__file__).parent / "models" / "configs"
TINY: dict[str, Any] = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "initializer_range": 0.2}


def linear_and_latent(directory: Path, positions: int) -> Path:
    """Kimi K3 as two layers of two heads: one of linear attention, one of latents."""
    raw = json.loads((CONFIGS / "Kimi-K3.json").read_text())
    raw.pop("quantization_config", None)
    text = raw["text_config"]
    text["linear_attn_config"] |= {"kda_layers": [1], "full_attn_layers": [2], "num_heads": 2, "head_dim": 8}
    text |= TINY | {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2}
    text |= {"q_lora_rank": 12, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8}
    text |= {"num_experts": 4, "num_experts_per_token": 2, "moe_intermediate_size": 16}
    text |= {"routed_expert_hidden_size": 16, "max_position_embeddings": positions}
    return saved(directory, raw)


def window_and_full(directory: Path, positions: int) -> Path:
    """gpt-oss as two layers of two heads: one with a window of 128, one that sees all."""
    raw = json.loads((CONFIGS / "gpt-oss-120b.json").read_text())
    raw.pop("quantization_config", None)
    raw |= TINY | {"num_hidden_layers": 2, "layer_types": raw["layer_types"][:2], "num_local_experts": 4, "head_dim": 8}
    raw |= {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": positions}
    return saved(directory, raw)


def saved(directory: Path, raw: dict[str, Any]) -> Path:
    path = directory / "config.json"
    path.write_text(json.dumps(raw))
    return path


def run(path: Path, tokens: int, chunk: int, **options: Any) -> RunResult:
    ids = tuple((index * index + 3 * index) % 61 for index in range(tokens))
    asked = {"dtype": "float32", "kv_dtype": "float32", "prompt_ids": (ids,), "max_new_tokens": 2, "ignore_eos": True}
    return run_job(Job(str(path), chunk_tokens=chunk, **{**asked, "logits": True, **options}))


def prompt_logits(result: RunResult) -> np.ndarray:
    assert result.logits is not None
    found = result.logits["logits_0"]
    assert np.isfinite(found).all()
    return found


MODELS = [linear_and_latent, window_and_full]


@pytest.mark.parametrize("model", MODELS)
def test_four_thousand_tokens_say_the_same_however_they_are_cut(tmp_path: Path, model: Any) -> None:
    path = model(tmp_path, 8192)
    even, odd = (run(path, 4000, chunk) for chunk in (1024, 1500))
    wanted = prompt_logits(even)
    assert np.abs(prompt_logits(odd) - wanted).max() <= 1e-4 * wanted.std()
    assert even.report.requests[0].tokens == odd.report.requests[0].tokens


def test_a_million_tokens_without_numbers_take_the_same_spans_on_both_calendars(tmp_path: Path) -> None:
    """Each chunk of 32,768 tokens takes 2,048 pages of 16 tokens of 16 + 4 elements, and more time than the last."""
    path, million, chunk = linear_and_latent(tmp_path, 1_048_576), 1_048_576, 32_768
    asked = {"prompt_ids": (), "batch": 1, "input_len": million, "output_len": 0, "max_new_tokens": None}
    options = {**asked, "payload": False, "logits": False}
    simpy, compiled = (run(path, 0, chunk, engine=engine, **options) for engine in ("simpy", "compiled"))
    assert simpy.spans == compiled.spans and simpy.memory == compiled.memory
    kv = [(ps, delta) for ps, delta, tag in compiled.memory[0] if tag == "kv" and delta > 0]
    starts = [record.start_ps for record in compiled.records]
    assert len(starts) == 32
    assert [sum(delta for ps, delta in kv if ps == start) for start in starts] == [chunk * 20 * 4] * 32
    took = [record.end_ps - record.start_ps for record in compiled.records]
    assert took == sorted(took) and took[-1] > 2 * took[0]


@pytest.mark.long
@pytest.mark.parametrize("model", MODELS)
def test_a_sequence_of_131072_tokens_completes(tmp_path: Path, model: Any) -> None:
    """What a place says depends on those before it alone: a sequence of 9,000 has the first 9,000 logits."""
    path = model(tmp_path, 131_072 + 16)
    long = run(path, 131_072, 8192)
    short = prompt_logits(run(path, 9000, 4000))
    found = prompt_logits(long)
    assert found.shape == (131_072, 64)
    assert np.abs(found[:9000] - short).max() <= 1e-4 * short.std()
    assert len(long.report.steps) == 16 + 1
    assert long.report.requests[0].output_tokens == 2
