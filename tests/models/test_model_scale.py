"""scaled keeps the architecture and shrinks the rest, to something transformers runs."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from siltwin.isa.dtype import DTYPES
from siltwin.models.config import read_config
from siltwin.models.graph import build_graph, parameter_shapes, total_parameters
from siltwin.models.model_config import ModelConfig
from siltwin.models.scale import scaled, scaled_checkpoint, scaled_pattern
from siltwin.models.shelf import list_models, shipped_configs

BIG: dict[str, Any] = {
    "vocab_size": 151936,
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-6,
    "hidden_act": "gelu",
    "rope_theta": 1e6,
    "eos_token_id": [151643, 151645],
}
YARN = {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}}
LONGROPE = {
    "rope_scaling": {
        "type": "longrope",
        "short_factor": [1.0 + i / 64 for i in range(64)],
        "long_factor": [1.0 + i for i in range(64)],
        "original_max_position_embeddings": 4096,
    }
}
SLIDING = {"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 21}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": BIG | {"model_type": "llama", "attention_bias": True, "tie_word_embeddings": True},
    "llama longrope": BIG | {"model_type": "llama"} | LONGROPE,
    "mistral": BIG | {"model_type": "mistral", "sliding_window": 4096},
    "qwen2 sliding": BIG | {"model_type": "qwen2"} | SLIDING | YARN,
    "qwen3": BIG | {"model_type": "qwen3", "head_dim": 64},
    "qwen3 alternating": BIG
    | {"model_type": "qwen3", "head_dim": 128, "use_sliding_window": True, "sliding_window": 512}
    | {"layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"] * 7},
}


def big(name: str) -> ModelConfig:
    return read_config(shipped_configs()[name] if name in shipped_configs() else CONFIGS[name], name=name)


@pytest.mark.parametrize("name", [*CONFIGS, "Llama-3.1-405B", "SmolLM2-135M"])
@pytest.mark.parametrize("seed", range(6))
def test_the_architecture_is_kept_and_the_sizes_shrink(name: str, seed: int) -> None:
    config = big(name)
    small = scaled(config, seed)
    kept = ("family", "activation", "tied", "qkv_bias", "out_bias", "mlp_bias", "qk_norm", "dtype", "norm_eps")
    assert all(getattr(small, field) == getattr(config, field) for field in kept)
    assert small.num_heads * config.num_kv_heads == config.num_heads * small.num_kv_heads
    is_derived = [c.hidden_size == c.num_heads * c.head_dim for c in (config, small)]
    assert is_derived[0] == is_derived[1]
    assert (small.rope.theta, small.rope.scaling.rule) == (config.rope.theta, config.rope.scaling.rule)
    assert small.rope.scaling.factor == config.rope.scaling.factor
    assert max(small.windows) < 16 and small.rope.scaling.original_max_position_embeddings <= 64
    assert small.max_position_embeddings >= 128
    assert total_parameters(build_graph(small)) < 2_000_000
    assert all(size & (size - 1) for size in (small.hidden_size, small.intermediate_size, small.vocab_size))
    assert all(index < small.vocab_size for index in small.eos_ids)


def test_a_scaled_config_is_a_function_of_its_seed() -> None:
    config = big("Llama-3.1-405B")
    assert scaled(config, 4) == scaled(config, 4)
    assert len({scaled(config, seed).hidden_size for seed in range(12)}) > 2


def test_layer_kinds_keep_their_order_for_two_periods() -> None:
    assert [bool(window) for window in scaled(big("qwen3 alternating")).windows] == [True, True, True, False] * 2
    assert [bool(window) for window in scaled(big("qwen2 sliding")).windows] == [False, False, True, True]
    assert len(scaled(big("mistral")).windows) == 2


@pytest.mark.parametrize(
    ("kinds", "pattern"),
    [
        ([1, 1, 1, 0] * 5, (1, 1, 1, 0, 1, 1, 1, 0)),
        ([1, 0, 0, 1, 0, 0, 1], (1, 0, 0, 1, 0, 0)),
        ([0] * 28 + [4] * 4, (0, 0, 4, 4)),
        ([3, 0, 0, 0, 0], (3, 0, 0)),
        ([7], (7,)),
    ],
)
def test_patterns_by_hand(kinds: list[int], pattern: tuple[int, ...]) -> None:
    assert scaled_pattern(kinds) == pattern


@given(st.lists(st.integers(0, 2), min_size=1, max_size=40))
@example([1, 0, 0, 0, 1, 0, 0, 1])
def test_a_pattern_loses_no_kind_and_no_change_of_kind(kinds: list[int]) -> None:
    pattern = scaled_pattern(kinds)
    assert set(pattern) == set(kinds)
    assert set(zip(pattern, pattern[1:], strict=False)) == set(zip(kinds, kinds[1:], strict=False))
    assert scaled_pattern(pattern) == pattern


SPARSE = {"num_experts": 60, "num_experts_per_tok": 4, "moe_intermediate_size": 1408}
MOE: dict[str, dict[str, Any]] = {
    "qwen2_moe": BIG
    | SPARSE
    | {"model_type": "qwen2_moe", "shared_expert_intermediate_size": 5632, "decoder_sparse_step": 2},
    "glm4_moe": BIG
    | {"model_type": "glm4_moe", "n_routed_experts": 256, "n_group": 8, "topk_group": 4, "num_experts_per_tok": 8}
    | {"moe_intermediate_size": 1408, "first_k_dense_replace": 3, "head_dim": 128},
    "minimax_m2": BIG
    | {"model_type": "minimax_m2", "num_local_experts": 256, "num_experts_per_tok": 8, "rotary_dim": 64},
    "gpt_oss": BIG
    | {
        "model_type": "gpt_oss",
        "num_local_experts": 128,
        "num_experts_per_tok": 4,
        "head_dim": 64,
        "hidden_act": "silu",
    }
    | {"rope_scaling": {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096}},
    "deepseek_v2": BIG
    | {"model_type": "deepseek_v2", "n_routed_experts": 160, "num_experts_per_tok": 6, "n_group": 8, "topk_group": 3}
    | {"topk_method": "group_limited_greedy", "moe_intermediate_size": 1536, "first_k_dense_replace": 1}
    | {"num_key_value_heads": 28, "hidden_act": "silu"},
    "deepseek_v3": BIG
    | {"model_type": "deepseek_v3", "n_routed_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 2048}
    | {"num_key_value_heads": 28, "head_dim": 64, "hidden_act": "silu"},
    "qwen3_moe": BIG | SPARSE | {"model_type": "qwen3_moe", "mlp_only_layers": [0], "norm_topk_prob": True},
}


@pytest.mark.parametrize("name", [*MOE, "Mixtral-8x22B", "OLMoE-1B-7B", "Qwen3-235B-A22B"])
@pytest.mark.parametrize("seed", range(4))
def test_expert_layers_keep_their_rules_and_their_order(name: str, seed: int) -> None:
    config = read_config(MOE[name], name=name) if name in MOE else big(name)
    small = scaled(config, seed)
    assert config.moe is not None and small.moe is not None
    kept = ("scoring", "renormalise", "eps", "scale", "names")
    assert all(getattr(small.moe, field) == getattr(config.moe, field) for field in kept)
    assert small.moe.num_experts <= 24 and small.moe.top_k <= config.moe.top_k
    assert bool(small.moe.shared_size) == bool(config.moe.shared_size)
    assert set(small.moe.sparse) == set(config.moe.sparse)
    assert total_parameters(build_graph(small)) < 12_000_000
    if name == "qwen2_moe":
        assert small.moe.sparse == (False, True, False, True)
    if name == "qwen3_moe":
        assert small.moe.sparse == (False, True, True)
    if name == "glm4_moe":
        assert small.moe.sparse == (False, False, True, True)
        assert (small.moe.groups, small.moe.top_groups) == (4, 3)
    if name == "gpt_oss":
        assert [bool(window) for window in small.windows] == [True, False] * 2
    if config.latent is None:
        assert small.rope.rotary_dim * config.head_dim == config.rope.rotary_dim * small.head_dim
    else:
        assert small.latent is not None and small.latent.rope_dim == small.rope.rotary_dim
        assert bool(small.latent.q_rank) == bool(config.latent.q_rank)
        assert small.moe.group_best == config.moe.group_best and small.moe.top_groups < small.moe.groups
    assert read_config(small.to_hf(), name=small.name) == small


@pytest.mark.parametrize("name", [*CONFIGS, "Llama-3.1-405B"])
def test_transformers_builds_the_scaled_model(name: str) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from transformers import AutoConfig, AutoModelForCausalLM

    small = scaled(big(name), seed=1)
    raw = small.to_hf()
    theirs = AutoConfig.for_model(raw.pop("model_type"), **raw)
    model = AutoModelForCausalLM.from_config(theirs).eval()
    shapes = {name: tuple(tensor.shape) for name, tensor in model.named_parameters()}
    assert shapes == parameter_shapes(build_graph(small))
    logits = model(torch.arange(70)[None] % small.vocab_size).logits
    assert logits.shape == (1, 70, small.vocab_size) and bool(logits.isfinite().all())
    assert read_config(theirs.to_dict(), name=small.name) == small


def test_only_supported_shelf_models_scale() -> None:
    for entry in list_models():
        if entry.supported and not entry.has_weights and entry.path is not None:
            assert scaled(read_config(entry.path)).family == entry.family


def test_scaling_looks_at_the_config_and_at_no_weight_of_the_big_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS["qwen3"]))
    (tmp_path / "model.safetensors").write_bytes(b"no weights at all")
    small = scaled_checkpoint(str(tmp_path), seed=3)
    assert small.config == scaled(read_config(tmp_path), seed=3)
    assert small.load(small.names()[0], DTYPES["fp32"]).shape == (small.config.vocab_size, small.config.hidden_size)
