"""Random configs of the families with latent attention, dense and sparse, over random layouts, against transformers."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import reference
from latent_checkpoints import LATENT_FAMILIES, SPARSE_FAMILIES, save_latent
from test_random_configs import ACTIVATIONS, CARDS, LIMIT, rope_of
from test_random_experts import layout_of

from siltwin.runtime.job import Job
from siltwin.runtime.run import run_job

NEW_TOKENS = 8


def config_of(draw: random.Random, family: str) -> dict[str, Any]:
    """Heads whose parts have any sizes, latents of any rank, experts in groups or not, and the switches either way."""
    heads, layers, rope_dim = draw.choice([1, 2, 3, 4, 6, 8]), draw.randint(1, 5), 2 * draw.randint(2, 8)
    groups = draw.choice([1, 2, 4])
    experts = groups * draw.randint(2, 7)
    even = 2 if family == "deepseek_v2" else 1  # transformers' complex numbers start at even columns there
    top_groups, width = draw.randint(1, groups), draw.randint(1, 8) * heads
    config: dict[str, Any] = {
        "vocab_size": draw.randint(17, 300),
        "hidden_size": heads * draw.randint(2, 11) if family == "deepseek_v2" else draw.randint(9, 90),
        "intermediate_size": draw.randint(1, 9) * heads,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "max_position_embeddings": LIMIT,
        "rms_norm_eps": draw.choice([1e-6, 1e-5, 1e-3]),
        "hidden_act": draw.choice(ACTIVATIONS),
        "tie_word_embeddings": draw.random() < 0.5,
        "initializer_range": draw.choice([0.05, 0.12]),
        "attention_bias": draw.random() < 0.5,
        "rope_parameters": rope_of(draw, rope_dim),
        "q_lora_rank": draw.randint(5, 40),
        "kv_lora_rank": even * draw.randint(3, 20),
        "qk_nope_head_dim": even * draw.randint(1, 10),
        "qk_rope_head_dim": rope_dim,
        "v_head_dim": draw.randint(1, 25),
        "n_routed_experts": experts,
        "num_experts_per_tok": draw.randint(1, min(4, experts * top_groups // groups)),
        "moe_intermediate_size": width,
        "n_shared_experts": draw.choice([1, 2, 3]),
        "n_group": groups,
        "topk_group": top_groups,
        "routed_scaling_factor": draw.choice([1.0, 2.5, 2.827]),
        "first_k_dense_replace": draw.randint(0, layers),
    }
    return config | _switches(draw, family, layers, rope_dim)


def _switches(draw: random.Random, family: str, layers: int, rope_dim: int) -> dict[str, Any]:
    direct = {"q_lora_rank": None} if draw.random() < 0.3 else {}
    renormalise = {"norm_topk_prob": draw.random() < 0.5}
    if family == "deepseek_v2":
        return direct | {"topk_method": draw.choice(["greedy", "group_limited_greedy"])}
    if family == "deepseek_v3":
        return direct | renormalise | {"rope_interleave": draw.random() < 0.5}
    index = {
        "index_n_heads": draw.choice([16, 17, 24, 64]),
        "index_head_dim": rope_dim + draw.randint(0, 20),
        "index_topk": draw.choice([1, 2, 7, 16, 33, 64, 200]),
    }
    kinds = ["full", *(draw.choice(["full", "shared"]) for _ in range(layers - 1))]
    sharing = {"indexer_types": kinds if draw.random() < 0.7 else None} if family == "glm_moe_dsa" else {}
    return renormalise | index | sharing


@pytest.mark.parametrize("family", [*LATENT_FAMILIES, *SPARSE_FAMILIES])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 25))])
def test_a_random_config_with_latents_gives_the_logits_of_transformers(tmp_path: Path, family: str, seed: int) -> None:
    draw = random.Random(f"latent {family} {seed}")
    config = config_of(draw, family)
    path = save_latent(tmp_path, family, seed, **config, stored_as=draw.choice(["float32", "bfloat16", "float16"]))
    layout = layout_of(draw, path, config["num_hidden_layers"])
    lengths = [draw.choice([1, 2, draw.randint(3, 100)]) for _ in range(draw.choice([1, 2, 4]))]
    prompts = tuple(tuple(draw.randrange(config["vocab_size"]) for _ in range(length)) for length in lengths)
    options: dict[str, Any] = {"chunk_tokens": draw.choice([None, 1, 5, 40]), "card": draw.choice(CARDS)}
    options |= {"dtype": "float32", "kv_dtype": "float32", "max_new_tokens": NEW_TOKENS}
    result = run_job(Job(str(path), layout=layout, prompt_ids=prompts, ignore_eos=True, logits=True, **options))
    assert result.logits is not None
    for index, prompt in enumerate(prompts):
        logits, tokens, rows = reference(path, list(prompt), NEW_TOKENS)
        for name, theirs in (("logits", logits), ("decode_logits", np.stack(rows))):
            assert np.abs(result.logits[f"{name}_{index}"] - theirs).max() <= 1e-4 * logits.std(), (config, layout)
        assert list(result.report.requests[index].tokens) == tokens, (config, layout)
