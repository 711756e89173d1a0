"""Random configs of every family, saved by transformers in random formats, against transformers in fp32."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import reference, save

from siltwin.models.config import read_config
from siltwin.models.graph import build_graph
from siltwin.runtime.job import Job
from siltwin.runtime.layout import legal_tp
from siltwin.runtime.run import run_job

ACTIVATIONS = ["silu", "swish", "gelu", "gelu_new", "gelu_pytorch_tanh"]
CARDS = ["ascend-910b2", "h100-sxm", "reference-npu", "a100-sxm", "ascend-910c"]
LIMIT = 160


def rope_of(draw: random.Random, head_dim: int) -> dict[str, Any]:
    """A table of any rule, whose prompts stay within the lengths at which transformers keeps one set of frequencies."""
    rule = draw.choice(["default", "linear", "dynamic", "llama3", "yarn", "longrope"])
    table: dict[str, Any] = {"rope_type": rule, "rope_theta": draw.choice([3.0, 100.0, 1e4, 12345.6, 5e5])}
    original = {"original_max_position_embeddings": draw.choice([16, 32, 64])}
    if rule != "default":
        table["factor"] = draw.choice([1.0, 2.0, 3.7, 8.0])
    if rule == "llama3":
        table |= original | {"low_freq_factor": draw.choice([0.5, 1.0]), "high_freq_factor": draw.choice([4.0, 5.5])}
    if rule == "yarn":
        table |= original | {"truncate": draw.random() < 0.5, "beta_fast": draw.choice([4.0, 32.0])}
        if draw.random() < 0.5:
            table |= {"mscale": draw.choice([0.7, 1.0]), "mscale_all_dim": draw.choice([0.5, 1.0])}
    if rule == "longrope":
        lists = {"short_factor": 0.13, "long_factor": 0.5}
        table |= {name: [1 + step * pair for pair in range(head_dim // 2)] for name, step in lists.items()}
        table["original_max_position_embeddings"] = LIMIT
    if rule in ("yarn", "longrope") and draw.random() < 0.3:
        table["attention_factor"] = draw.choice([0.8, 1.3])
    return table


def config_of(draw: random.Random, family: str) -> dict[str, Any]:
    """Odd sizes, heads that need not fill the hidden size, and the family's own switches either way."""
    kv_heads, group = draw.choice([1, 2, 3, 4]), draw.choice([1, 2, 3, 4])
    heads, head_dim, layers = kv_heads * group, 2 * draw.randint(2, 13), draw.randint(1, 5)
    hidden = {"llama": heads * draw.randint(2, 9), "qwen2": heads * head_dim}.get(family, draw.randint(9, 90))
    config: dict[str, Any] = {
        "vocab_size": draw.randint(17, 300),
        "hidden_size": hidden,
        "intermediate_size": draw.randint(3, 30) * draw.choice([1, heads]),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": LIMIT,
        "rms_norm_eps": draw.choice([1e-12, 1e-6, 1e-5, 1e-3]),
        "hidden_act": draw.choice(ACTIVATIONS),
        "tie_word_embeddings": draw.random() < 0.5,
        "initializer_range": draw.choice([0.05, 0.12]),
        "rope_parameters": rope_of(draw, head_dim),
    }
    if family != "qwen2":
        config["head_dim"] = head_dim
    if family in ("llama", "qwen3"):
        config["attention_bias"] = draw.random() < 0.5
    if family == "llama":
        config["mlp_bias"] = draw.random() < 0.5
    if family == "mistral":
        config["sliding_window"] = draw.choice([None, 2, 5, 12, 33, 200])  # transformers' own cache is wrong at 1
    if family in ("qwen2", "qwen3"):
        config |= {"use_sliding_window": draw.random() < 0.7, "sliding_window": draw.choice([2, 5, 16, 33])}
        config["max_window_layers"] = draw.randint(0, layers)
    return config


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("seed", [*range(2), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 25))])
def test_a_random_config_gives_the_logits_and_tokens_of_transformers(tmp_path: Path, family: str, seed: int) -> None:
    draw = random.Random(f"{family} {seed}")
    config = config_of(draw, family)
    path = save(tmp_path, family, seed, **config, stored_as=draw.choice(["float32", "bfloat16", "float16"]))
    stages = draw.randint(1, config["num_hidden_layers"])
    layout = f"tp={draw.choice(legal_tp(build_graph(read_config(path))))},pp={stages}"
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
