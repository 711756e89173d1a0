"""Models with latent attention against transformers over every layout, and what each card then holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import SIZES, reference
from latent_checkpoints import LATENT_FAMILIES, pack_fp8, save_latent

from siltwin.runtime.job import Job
from siltwin.runtime.run import RunResult, run_job

NEW_TOKENS = 24
LAYOUTS = ["tp=1", "tp=2", "tp=4", "pp=2", "tp=2,ep=2", "tp=4,ep=4", "tp=4,pp=2,ep=2"]
PROMPTS = [[(7 * index + 3 * length) % SIZES["vocab_size"] for index in range(length)] for length in (1, 9, 40, 70)]
# The other way to make queries, to choose experts, to turn pairs and to scale.
PLAIN = {"rope_type": "default", "rope_theta": 10000.0}
OTHERS: list[tuple[str, dict[str, Any]]] = [
    ("deepseek_v2", {"q_lora_rank": 22, "topk_method": "greedy", "attention_bias": True, "rope_parameters": PLAIN}),
    ("deepseek_v3", {"q_lora_rank": None, "rope_interleave": False, "n_group": 1, "topk_group": 1}),
    ("deepseek_v3", {"first_k_dense_replace": 3, "norm_topk_prob": False, "tie_word_embeddings": True}),
    ("deepseek_v3", {"first_k_dense_replace": 0, "num_attention_heads": 4, "num_key_value_heads": 4, "v_head_dim": 3}),
]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory):
    """Checkpoints and what the reference makes of the prompts, made once each."""
    made: dict[str, tuple[Path, list]] = {}

    def make(family: str, seed: int = 0, **changes: Any):
        key = f"{family} {seed} {changes}"
        if key not in made:
            path = save_latent(tmp_path_factory.mktemp("latent"), family, seed, **changes)
            made[key] = path, [reference(path, prompt, NEW_TOKENS) for prompt in PROMPTS]
        return made[key]

    return make


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
    for index, (prompt_logits, tokens, rows) in enumerate(expected):
        spread = prompt_logits.std()
        assert np.abs(result.logits[f"logits_{index}"] - prompt_logits).max() <= 1e-4 * spread
        assert np.abs(result.logits[f"decode_logits_{index}"] - np.stack(rows)).max() <= 1e-4 * spread
        assert list(result.report.requests[index].tokens) == tokens
    assert all(card.live_at_end_bytes == 0 for card in result.report.cards)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("family", LATENT_FAMILIES)
def test_logits_and_tokens_equal_those_of_transformers(checkpoint, family: str, layout: str) -> None:
    path, expected = checkpoint(family)
    check(run(path, layout), expected)


@pytest.mark.parametrize(("family", "changes"), OTHERS, ids=[str(at) for at in range(len(OTHERS))])
def test_every_switch_of_the_families_agrees(checkpoint, family: str, changes: dict[str, Any]) -> None:
    path, expected = checkpoint(family, **changes)
    check(run(path, "tp=2"), expected)


@pytest.mark.long
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("family", LATENT_FAMILIES)
def test_other_seeds_agree_too(checkpoint, family: str, seed: int, layout: str) -> None:
    path, expected = checkpoint(family, seed)
    check(run(path, layout), expected)


def test_chunked_prefill_gives_the_same_logits(checkpoint) -> None:
    path, expected = checkpoint("deepseek_v3")
    check(run(path, "tp=2", chunk_tokens=7), expected)


@pytest.mark.parametrize("layout", ["tp=1", "tp=4", "tp=2,pp=2,ep=2"])
def test_deepseeks_fp8_is_read_by_heads_that_no_block_ends_with(tmp_path: Path, layout: str) -> None:
    from safetensors.torch import save_file

    sizes = {"hidden_size": 160, "q_lora_rank": 140, "kv_lora_rank": 136, "intermediate_size": 168}
    heads = {"qk_nope_head_dim": 24, "qk_rope_head_dim": 8, "attention_bias": False, "initializer_range": 0.06}
    path = save_latent(tmp_path / "packed", "deepseek_v3", 0, **sizes, **heads)
    plain = save_latent(tmp_path / "plain", "deepseek_v3", 0, **sizes, **heads)
    save_file(pack_fp8(path), plain / "model.safetensors", metadata={"format": "pt"})
    check(run(path, layout), [reference(plain, prompt, NEW_TOKENS) for prompt in PROMPTS])


def weights_by_hand(tp: int) -> int:
    """Elements of deepseek_v3's weights on a rank whose experts are cut along their width, but for the vocabulary.

    Hidden 48, 8 heads of 10 + 6 with values of 14, latents of 26 and 18; a dense layer of 56, two of 15 experts of 20.
    """
    hidden, heads = 48, 8 // tp
    latents = (26 + 18 + 6) * (hidden + 1) + 26 + 18  # replicated: both low-rank products with biases, and their norms
    made = heads * (10 + 6) * 26 + heads * (10 + 14) * 18 + hidden * heads * 14
    experts = 15 * hidden + 15 + (15 + 1) * 3 * hidden * 20 // tp
    return 3 * (latents + made + 2 * hidden) + 3 * hidden * 56 // tp + 2 * experts + hidden


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_latents_are_made_on_every_rank_and_heads_are_cut(checkpoint, tp: int) -> None:
    path, _ = checkpoint("deepseek_v3")
    report = run(path, f"tp={tp}", payload=False, max_new_tokens=1, logits=False).report
    for index, card in enumerate(report.cards):
        rows = 131 // tp + (index < 131 % tp)
        bias = 3 * 48 * (index == 0)  # of the output products, whose partial sums are added
        assert card.by_tag["weight"] == 4 * (weights_by_hand(tp) + bias + 2 * rows * 48)


@pytest.mark.parametrize("layout", ["tp=1", "tp=4", "pp=2"])
def test_every_rank_caches_whole_latents_and_nothing_else(checkpoint, layout: str) -> None:
    path, _ = checkpoint("deepseek_v2")
    report = run(path, layout, payload=False, max_new_tokens=1, logits=False).report
    pages = sum(-(-len(prompt) // 16) for prompt in PROMPTS)
    layers = [2, 1] if layout == "pp=2" else [3] * len(report.cards)
    for card, held in zip(report.cards, layers, strict=True):
        assert card.by_tag["kv"] == pages * held * 16 * (18 + 6) * 4


@pytest.mark.parametrize("layout", ["tp=1", "tp=2,pp=2"])
def test_the_payload_changes_no_span(checkpoint, layout: str) -> None:
    path, _ = checkpoint("deepseek_v3", first_k_dense_replace=3)
    options = {"max_new_tokens": 6, "logits": False}
    on, off = run(path, layout, **options), run(path, layout, payload=False, **options)
    assert on.spans == off.spans
    assert on.memory == off.memory
