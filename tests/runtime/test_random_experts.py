"""Random configs of every family with experts, over random placements of them, against transformers in fp32."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import MOE_FAMILIES, reference, save
from test_random_configs import ACTIVATIONS, CARDS, LIMIT, rope_of

from siltwin.models.config import read_config
from siltwin.models.graph import build_graph
from siltwin.runtime.job import Job
from siltwin.runtime.layout import Layout, legal_tp
from siltwin.runtime.run import run_job

EXPERT_KEYS = {"qwen2_moe": "num_experts", "olmoe": "num_experts", "glm4_moe": "n_routed_experts"}
HEADS_FILL_HIDDEN = ("qwen2_moe", "olmoe")


def rope_with_part(draw: random.Random, head_dim: int) -> dict[str, Any]:
    """A table of a rule that can turn a part of a head, and how much it turns."""
    table = rope_of(draw, head_dim)
    while table["rope_type"] in ("longrope", "dynamic"):
        table = rope_of(draw, head_dim)
    return table | {"partial_rotary_factor": draw.choice([0.5, 1.0])}


def config_of(draw: random.Random, family: str) -> dict[str, Any]:
    """Odd sizes, from one expert to many, and the family's own switches either way."""
    kv_heads, group = draw.choice([1, 2, 4]), draw.choice([1, 2, 3])
    heads, head_dim, layers = kv_heads * group, 4 * draw.randint(1, 6), draw.randint(1, 4)
    has_part = family in ("glm4_moe", "minimax_m2")
    groups = draw.choice([1, 2, 4]) if family == "glm4_moe" else 1
    experts = groups * draw.randint(2, 9)
    width = draw.randint(1, 8) * draw.choice([1, heads])
    config: dict[str, Any] = {
        "vocab_size": draw.randint(17, 300),
        "hidden_size": heads * head_dim if family in HEADS_FILL_HIDDEN else draw.randint(9, 90),
        "intermediate_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": LIMIT,
        "rms_norm_eps": draw.choice([1e-6, 1e-5, 1e-3]),
        "hidden_act": "silu" if family == "gpt_oss" else draw.choice(ACTIVATIONS),
        "tie_word_embeddings": draw.random() < 0.5,
        "initializer_range": draw.choice([0.05, 0.12]),
        "rope_parameters": rope_with_part(draw, head_dim) if has_part else rope_of(draw, head_dim),
        EXPERT_KEYS.get(family, "num_local_experts"): experts,
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    if family not in HEADS_FILL_HIDDEN:
        config["head_dim"] = head_dim
    top_groups = draw.randint(1, groups)
    config["num_experts_per_tok"] = draw.randint(1, min(4, experts * top_groups // groups))
    return config | _switches(draw, family, layers, width, heads, (groups, top_groups))


def _switches(
    draw: random.Random, family: str, layers: int, width: int, heads: int, groups: tuple[int, int]
) -> dict[str, Any]:
    window = draw.choice([2, 5, 16, 33])
    renormalise = {"norm_topk_prob": draw.random() < 0.5}
    bias = {"attention_bias": draw.random() < 0.5}
    sizes = {"moe_intermediate_size": width, "intermediate_size": draw.randint(1, 9) * heads}
    sparse = {
        "decoder_sparse_step": draw.choice([1, 1, 2]),
        "mlp_only_layers": draw.sample(range(layers), draw.randint(0, layers - 1)),
    }
    slides = {"use_sliding_window": draw.random() < 0.5, "sliding_window": window}
    if family == "mixtral":
        return {"sliding_window": draw.choice([None, window])}
    if family == "qwen2_moe":
        shared = {"shared_expert_intermediate_size": draw.randint(1, 5) * heads, "qkv_bias": draw.random() < 0.7}
        return sizes | sparse | renormalise | slides | shared | {"max_window_layers": draw.randint(0, layers)}
    if family == "qwen3_moe":
        return sizes | sparse | renormalise | slides | bias
    if family == "olmoe":
        return renormalise | bias
    if family == "gpt_oss":
        kinds = ["sliding_attention", "full_attention"]
        return bias | {"sliding_window": window, "layer_types": [draw.choice(kinds) for _ in range(layers)]}
    if family == "glm4_moe":
        rules = {"n_group": groups[0], "topk_group": groups[1], "routed_scaling_factor": draw.choice([1.0, 2.5])}
        shared = {"n_shared_experts": draw.choice([1, 2]), "first_k_dense_replace": draw.randint(0, layers)}
        return sizes | renormalise | bias | rules | shared | {"use_qk_norm": draw.random() < 0.5}
    return {}


def layout_of(draw: random.Random, path: Path, stages: int) -> str:
    """Any legal mesh: the experts cut along their width, dealt out, or both copied and dealt out."""
    graph = build_graph(read_config(path))
    counts = [layer.mlp.experts.count for layer in graph.layers if hasattr(layer.mlp, "experts")]
    ep = draw.choice([degree for degree in (1, 2, 3, 4) if degree == 1 or degree <= min(counts, default=1)])
    tp = draw.choice(legal_tp(graph, ep) or [1])
    return str(Layout(tp=tp, pp=draw.randint(1, stages), ep=ep if tp % ep == 0 else 1))


@pytest.mark.parametrize("family", MOE_FAMILIES)
@pytest.mark.parametrize("seed", [*range(2), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 25))])
def test_a_random_config_with_experts_gives_the_logits_of_transformers(tmp_path: Path, family: str, seed: int) -> None:
    draw = random.Random(f"{family} {seed}")
    config = config_of(draw, family)
    path = save(tmp_path, family, seed, **config, stored_as=draw.choice(["float32", "bfloat16", "float16"]))
    layout = layout_of(draw, path, config["num_hidden_layers"])
    lengths = [draw.choice([1, 2, draw.randint(3, 100)]) for _ in range(draw.choice([1, 2, 4]))]
    prompts = tuple(tuple(draw.randrange(config["vocab_size"]) for _ in range(length)) for length in lengths)
    options: dict[str, Any] = {"chunk_tokens": draw.choice([None, 1, 5, 40]), "card": draw.choice(CARDS)}
    options |= {"dtype": "float32", "kv_dtype": "float32", "max_new_tokens": 8, "ignore_eos": True, "logits": True}
    result = run_job(Job(str(path), layout=layout, prompt_ids=prompts, **options))
    assert result.logits is not None
    for index, prompt in enumerate(prompts):
        logits, tokens, rows = reference(path, list(prompt), 8)
        for name, theirs in (("logits", logits), ("decode_logits", np.stack(rows))):
            assert np.abs(result.logits[f"{name}_{index}"] - theirs).max() <= 1e-4 * logits.std(), (config, layout)
        assert list(result.report.requests[index].tokens) == tokens, (config, layout)
