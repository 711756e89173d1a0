"""Random configs of Llama 4 and Gemma over random meshes, against transformers in fp32."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import reference
from scaled_checkpoints import SCALED_FAMILIES, save_scaled
from test_random_configs import ACTIVATIONS, CARDS, LIMIT, rope_of

from siltwin.models.config import read_config
from siltwin.models.graph import build_graph
from siltwin.runtime.job import Job
from siltwin.runtime.layout import Layout, legal_tp
from siltwin.runtime.run import run_job


def plain_rope(draw: random.Random, head_dim: int) -> dict[str, Any]:
    """A table of a rule that keeps one set of frequencies whatever the length."""
    table = rope_of(draw, head_dim)
    while table["rope_type"] in ("dynamic", "longrope"):
        table = rope_of(draw, head_dim)
    return table


def config_of(draw: random.Random, family: str) -> dict[str, Any]:
    """Odd sizes, and the family's own switches either way."""
    kv_heads, group = draw.choice([1, 2, 3]), draw.choice([1, 2, 3])
    heads, head_dim, layers = kv_heads * group, 2 * draw.randint(2, 11), draw.randint(1, 5)
    config: dict[str, Any] = {
        "vocab_size": draw.randint(17, 300),
        "hidden_size": heads * draw.randint(3, 20),
        "intermediate_size": heads * draw.randint(1, 9),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "max_position_embeddings": LIMIT,
        "rms_norm_eps": draw.choice([1e-6, 1e-5, 1e-3]),
        "tie_word_embeddings": draw.random() < 0.5,
        "attention_bias": draw.random() < 0.5,
        "initializer_range": draw.choice([0.05, 0.12]),
    }
    if family == "llama4_text":
        return config | _llama4(draw, heads, layers, head_dim)
    caps = [None, draw.choice([0.8, 5.0, 30.0])]
    config |= {
        "hidden_activation": draw.choice(ACTIVATIONS),
        "query_pre_attn_scalar": draw.choice([head_dim, 7, 256]),
        "sliding_window": draw.choice([2, 5, 16, 33]),
        "layer_types": [draw.choice(["sliding_attention", "full_attention"]) for _ in range(layers)],
        "final_logit_softcapping": draw.choice(caps),
    }
    if family == "gemma2":
        return config | {"attn_logit_softcapping": draw.choice(caps), "rope_parameters": plain_rope(draw, head_dim)}
    tables = {kind: plain_rope(draw, head_dim) for kind in ("full_attention", "sliding_attention")}
    return config | {"rope_parameters": tables}


def _llama4(draw: random.Random, heads: int, layers: int, head_dim: int) -> dict[str, Any]:
    experts = draw.randint(1, 9)
    return {
        "hidden_act": draw.choice(ACTIVATIONS),
        "rope_parameters": plain_rope(draw, head_dim),
        "intermediate_size_mlp": heads * draw.randint(1, 9),
        "num_local_experts": experts,
        "num_experts_per_tok": draw.randint(1, min(3, experts)),
        "moe_layers": draw.choice([None, draw.sample(range(layers), draw.randint(0, layers))]),
        "interleave_moe_layer_step": draw.choice([1, 2]),
        "no_rope_layers": [draw.choice([0, 1, 1]) for _ in range(layers)],
        "attention_chunk_size": draw.choice([2, 7, 16, 40]),
        "layer_types": None,
        "use_qk_norm": draw.random() < 0.5,
        "attn_temperature_tuning": draw.random() < 0.7,
        "floor_scale": draw.choice([1, 5, 16]),
        "attn_scale": draw.choice([0.1, 0.7]),
    }


def mesh_of(draw: random.Random, path: Path, stages: int) -> str:
    graph = build_graph(read_config(path))
    counts = [layer.mlp.experts.count for layer in graph.layers if hasattr(layer.mlp, "experts")]
    ep = draw.choice([degree for degree in (1, 2, 3) if degree == 1 or degree <= min(counts, default=1)])
    tp = draw.choice(legal_tp(graph, ep) or [1])
    return str(Layout(tp=tp, pp=draw.randint(1, stages), ep=ep if tp % ep == 0 else 1))


@pytest.mark.parametrize("family", SCALED_FAMILIES)
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 16))])
def test_a_random_config_gives_the_logits_and_tokens_of_transformers(tmp_path: Path, family: str, seed: int) -> None:
    draw = random.Random(f"{family} {seed}")
    config = config_of(draw, family)
    path = save_scaled(tmp_path, family, seed, **config)
    layout = mesh_of(draw, path, config["num_hidden_layers"])
    lengths = [draw.choice([1, 2, draw.randint(3, 100)]) for _ in range(draw.choice([1, 2, 4]))]
    prompts = tuple(tuple(draw.randrange(config["vocab_size"]) for _ in range(length)) for length in lengths)
    options: dict[str, Any] = {"chunk_tokens": draw.choice([None, 1, 5, 40]), "card": draw.choice(CARDS)}
    options |= {"dtype": "float32", "kv_dtype": "float32", "max_new_tokens": 8, "ignore_eos": True, "logits": True}
    options |= {"kv_pages": draw.choice(["unified", "ideal"])}
    result = run_job(Job(str(path), layout=layout, prompt_ids=prompts, **options))
    assert result.logits is not None
    for index, prompt in enumerate(prompts):
        logits, tokens, rows = reference(path, list(prompt), 8)
        for name, theirs in (("logits", logits), ("decode_logits", np.stack(rows))):
            assert np.abs(result.logits[f"{name}_{index}"] - theirs).max() <= 1e-4 * logits.std(), (config, layout)
        assert list(result.report.requests[index].tokens) == tokens, (config, layout)
