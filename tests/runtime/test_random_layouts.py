"""Products of all axes, drawn at random on up to eight cards, against transformers, and without numbers."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import SIZES, reference, save
from latent_checkpoints import save_latent
from linear_checkpoints import save_linear
from scaled_checkpoints import save_scaled

from siltwin.isa.errors import ConfigError
from siltwin.models.checkpoint import open_checkpoint
from siltwin.runtime.job import Job
from siltwin.runtime.layout import Layout, check_layout
from siltwin.runtime.routing import Recorded
from siltwin.runtime.run import run_job

MAKERS: dict[str, Any] = {
    "qwen2": save,
    "mixtral": save,
    "qwen2_moe": save,
    "gpt_oss": save,
    "glm4_moe": save,
    "minimax_m2": save,
    "deepseek_v3": save_latent,
    "qwen3_next": save_linear,
    "kimi_linear": save_linear,
    "gemma3_text": save_scaled,
    "llama4_text": save_scaled,
}
MOST_CARDS, NEW_TOKENS = 8, 4


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory):
    made: dict[str, Path] = {}

    def make(family: str) -> Path:
        if family not in made:
            made[family] = MAKERS[family](tmp_path_factory.mktemp("products"), family, 0)
        return made[family]

    return make


def layout_of(draw: random.Random, path: Path) -> Layout:
    """A legal mesh of two to eight cards, every axis of it drawn."""
    graph = open_checkpoint(path).graph
    while True:
        degrees = {axis: draw.choice([1, 1, 2, 2, 3, 4, 8]) for axis in ("tp", "pp", "dp", "cp")}
        layout = Layout(**degrees, ep=draw.choice([1, 2, 4, 8]), etp=draw.choice([0, 0, 0, 1, 2, 4]))
        if not 1 < layout.cards <= MOST_CARDS:
            continue
        if layout.ep > 1:
            layout = replace(layout, redundant=draw.choice([0, 0, 1, 3]))
        try:
            check_layout(layout, graph, None)
        except ConfigError:
            continue
        return layout


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(3, 40))])
def test_a_random_product_of_axes_gives_the_logits_of_transformers(checkpoint, seed: int) -> None:
    draw = random.Random(f"product {seed}")
    path = checkpoint(draw.choice(sorted(MAKERS)))
    layout = layout_of(draw, path)
    lengths = [draw.choice([1, 2, draw.randint(3, 70)]) for _ in range(draw.choice([1, 2, 4, 5]))]
    prompts = tuple(tuple(draw.randrange(SIZES["vocab_size"]) for _ in range(length)) for length in lengths)
    options: dict[str, Any] = {
        "layout": str(layout),
        "redundant_experts": layout.redundant,
        "micro_batches": draw.choice([1, 1, 2, 3]),
        "sequence_parallel": draw.random() < 0.4,
        "cp_prefill": draw.choice([None, "ring", "allgather"]),
        "chunk_tokens": draw.choice([None, 1, 5, 24]),
        "prompt_ids": prompts,
        "dtype": "float32",
        "kv_dtype": "float32",
        "max_new_tokens": NEW_TOKENS,
        "ignore_eos": True,
    }
    if options["cp_prefill"] is None:
        del options["cp_prefill"]
    result = run_job(Job(str(path), logits=True, **options))
    for index, prompt in enumerate(prompts):
        logits, tokens, rows = reference(path, list(prompt), NEW_TOKENS)
        for name, theirs in (("logits", logits), ("decode_logits", np.stack(rows))):
            ours = result.logits[f"{name}_{index}"]  # type: ignore[index]
            assert np.abs(ours - theirs).max() <= 1e-4 * logits.std(), (path.name, options)
        assert list(result.report.requests[index].tokens) == tokens, (path.name, options)
    assert all(card.live_at_end_bytes == 0 for card in result.report.cards)
    on = run_job(Job(str(path), **options))
    loads = Recorded({record.step.index: record.routed for record in on.records})
    off = run_job(Job(str(path), payload=False, **options), routing=loads)
    assert on.spans == off.spans and on.memory == off.memory, (path.name, options)
