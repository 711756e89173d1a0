"""Blocks carry the published names and shapes, and the counts that follow from them are the published ones."""

from pathlib import Path
from typing import Any

import pytest

from siltwin.models.blocks import DeltaNet
from siltwin.models.config import read_config
from siltwin.models.facts import describe
from siltwin.models.graph import (
    build_graph,
    kv_elements_per_token,
    parameter_shapes,
    total_parameters,
)
from siltwin.models.shelf import shipped_configs

BASE = {
    "vocab_size": 320,
    "hidden_size": 48,
    "intermediate_size": 100,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "rope_theta": 10000.0,
}
CASES: list[dict[str, Any]] = [
    {"model_type": "llama"},
    {"model_type": "llama", "tie_word_embeddings": True},
    {"model_type": "llama", "attention_bias": True, "mlp_bias": True},
    {"model_type": "mistral", "sliding_window": 8},
    {"model_type": "qwen2"},
    {"model_type": "qwen3"},
    {"model_type": "qwen3", "attention_bias": True, "tie_word_embeddings": True},
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case.values())))
def test_names_and_shapes_are_those_of_the_transformers_model(case: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from transformers import AutoConfig, AutoModelForCausalLM

    config = read_config(BASE | case)
    raw = config.to_hf()
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(raw.pop("model_type"), **raw))
    theirs = {name: tuple(tensor.shape) for name, tensor in model.named_parameters()}
    graph = build_graph(config)
    assert parameter_shapes(graph) == theirs
    assert total_parameters(graph) == sum(tensor.numel() for tensor in model.parameters())


EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 20}
LATENT = {
    "kv_lora_rank": 18,
    "qk_nope_head_dim": 10,
    "qk_rope_head_dim": 6,
    "v_head_dim": 9,
    "num_key_value_heads": None,
}
MOE_CASES: list[dict[str, Any]] = [
    {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
    {"model_type": "qwen2_moe", "num_experts": 5, "shared_expert_intermediate_size": 24, "mlp_only_layers": [0]}
    | EXPERTS,
    {"model_type": "qwen3_moe", "num_experts": 5, "decoder_sparse_step": 2, "attention_bias": True} | EXPERTS,
    {
        "model_type": "gpt_oss",
        "num_local_experts": 5,
        "num_experts_per_tok": 2,
        "rope_parameters": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    },
    {"model_type": "glm4_moe", "n_routed_experts": 6, "n_group": 3, "topk_group": 2, "use_qk_norm": True, "head_dim": 8}
    | EXPERTS,
    {"model_type": "minimax_m2", "num_local_experts": 5, "num_experts_per_tok": 2, "rotary_dim": 4},
    {"model_type": "deepseek_v2", "n_routed_experts": 6, "q_lora_rank": None, "first_k_dense_replace": 1}
    | LATENT
    | EXPERTS,
    {"model_type": "deepseek_v3", "n_routed_experts": 6, "n_group": 3, "topk_group": 2, "attention_bias": True}
    | {"first_k_dense_replace": 1, "q_lora_rank": 14}
    | LATENT
    | EXPERTS,
    {"model_type": "olmoe", "num_experts": 5, "num_experts_per_tok": 2, "num_attention_heads": 6, "head_dim": 8},
]


@pytest.mark.parametrize("case", MOE_CASES, ids=lambda case: case["model_type"])
def test_experts_have_the_names_that_transformers_saves(case: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from safetensors import safe_open
    from transformers import AutoConfig, AutoModelForCausalLM

    config = read_config(BASE | case)
    raw = config.to_hf()
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(raw.pop("model_type"), **raw))
    model.save_pretrained(tmp_path)
    with safe_open(tmp_path / "model.safetensors", framework="numpy") as file:
        theirs = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    graph = build_graph(config)
    assert parameter_shapes(graph) == theirs
    assert total_parameters(graph) == sum(tensor.numel() for tensor in model.parameters())
    assert read_config(config.to_hf()) == config


def test_projections_keep_the_order_of_their_weights() -> None:
    layer = build_graph(read_config(BASE | {"model_type": "qwen2"})).layers[1]
    qkv, out = layer.attention.qkv, layer.attention.out
    assert qkv.weights == tuple(f"model.layers.1.self_attn.{part}_proj.weight" for part in "qkv")
    assert qkv.biases == tuple(f"model.layers.1.self_attn.{part}_proj.bias" for part in "qkv")
    assert (qkv.out_features, qkv.in_features) == ((60, 20, 20), 48)
    assert (out.out_features, out.in_features, out.biases) == ((48,), 60, ())
    assert (layer.mlp.gate_up.out_features, layer.mlp.down.in_features) == ((100, 100), 100)
    assert layer.attention.scale == 10**-0.5


def test_only_qwen3_norms_its_heads() -> None:
    norms = {
        family: build_graph(read_config(BASE | {"model_type": family})).layers[0].attention.q_norm
        for family in ("llama", "qwen3")
    }
    assert norms["llama"] is None
    assert norms["qwen3"] is not None and norms["qwen3"].size == 10


def test_a_tied_head_is_the_embedding() -> None:
    graph = build_graph(read_config(BASE | {"model_type": "llama", "tie_word_embeddings": True}))
    assert graph.lm_head == graph.embedding == "model.embed_tokens.weight"
    assert "lm_head.weight" not in parameter_shapes(graph)


# Counts of transformers on the meta device; KV is layers * 2 * kv heads * head_dim * 2 bytes.
@pytest.mark.parametrize(
    ("name", "params", "kv_bytes"),
    [
        ("Llama-3.1-405B", 405_853_388_800, 126 * 2 * 8 * 128 * 2),
        ("SmolLM2-135M", 134_515_008, 30 * 2 * 3 * 64 * 2),
    ],
)
def test_published_sizes(name: str, params: int, kv_bytes: int) -> None:
    facts = describe(read_config(shipped_configs()[name]))
    assert (facts.total_params, facts.kv_bytes_per_token) == (params, kv_bytes)


# Active parameters in billions as published tables count them: with and without the input embedding.
@pytest.mark.parametrize(
    ("name", "params", "active", "without", "kv_bytes"),
    [
        ("Qwen3-235B-A22B", 235_093_634_560, 22.19, 21.57, 192_512),
        ("Mixtral-8x22B", 140_620_634_112, 39.15, 38.96, 229_376),
        ("OLMoE-1B-7B", 6_919_161_856, 1.28, 1.18, 131_072),
        ("GLM-4.5", 352_797_814_784, 33.63, 32.86, 376_832),
        ("MiniMax-M2", 228_689_748_992, 11.03, 10.42, 253_952),
        ("gpt-oss-120b", 116_829_156_672, 5.71, 5.13, 36_864),
        ("Qwen3-Next-80B-A3B", 79_674_391_296, 3.87, 3.56, 24_576),
        ("Qwen3.5-397B-A17B", 396_346_350_336, 17.35, 16.33, 30_720),
        ("Kimi-Linear-48B-A3B", 49_133_074_464, 3.49, 3.12, 6_912),
        ("DeepSeek-V3", 671_026_404_352, 37.55, 36.63, 70_272),
        ("DeepSeek-V3.2", 671_877_929_216, 38.40, 37.48, 85_888),
        ("GLM-5.1", 743_911_199_232, 41.78, 40.83, 109_824),
        ("Kimi-K2-Instruct", 1_026_408_209_408, 32.86, 31.69, 70_272),
        ("Kimi-K2.6", 1_026_408_209_408, 32.86, 31.69, 70_272),
        ("Llama-4-Maverick", 400_711_848_960, 17.18, 16.15, 49_152),
        ("Llama-3.1-405B", 405_853_388_800, 405.85, 403.75, 516_096),
    ],
)
def test_active_parameters_are_the_published_ones(
    name: str, params: int, active: float, without: float, kv_bytes: int
) -> None:
    facts = describe(read_config(shipped_configs()[name]))
    assert (facts.total_params, facts.kv_bytes_per_token) == (params, kv_bytes)
    assert round(facts.active_params / 1e9, 2) == active
    assert round(facts.active_params_excl_embedding / 1e9, 2) == without


def test_the_405b_caches_516096_bytes_a_token() -> None:
    graph = build_graph(read_config(shipped_configs()["Llama-3.1-405B"]))
    assert kv_elements_per_token(graph) * 2 == 516_096


def test_facts_say_which_blocks_there_are() -> None:
    keys = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
    facts = describe(read_config(BASE | {"model_type": "qwen3"} | keys))
    assert facts.blocks == (
        "4 x rms norm",
        "1 x attention 6/2 heads of 10, default rope, head norms",
        "2 x gated silu mlp of 100",
        "1 x attention 6/2 heads of 10, window 8, default rope, head norms",
    )


def test_states_of_qwen3_next_are_counted_by_hand() -> None:
    """36 delta nets: 32 heads of 128 x 128 in fp32, and 3 inputs of 2 * 16 * 128 + 32 * 128 channels in 16 bits."""
    facts = describe(read_config(shipped_configs()["Qwen3-Next-80B-A3B"]))
    assert facts.state_bytes_per_sequence == 36 * (4 * 32 * 128 * 128 + 2 * 3 * 8192)


def test_packed_rows_of_a_key_head_are_dealt_out_by_value_head() -> None:
    """2 key heads of 12, 2 value heads of 10 each: q 12, k 12, v 20 and gate 20 rows, then those of the next."""
    raw = {**read_config(shipped_configs()["Qwen3-Next-80B-A3B"]).to_hf(), "linear_num_key_heads": 2}
    raw |= {"linear_num_value_heads": 4, "linear_key_head_dim": 12, "linear_value_head_dim": 10}
    delta = build_graph(read_config(raw)).layers[0].attention
    assert isinstance(delta, DeltaNet)
    assert [part.start(1) for part in (delta.q, delta.k)] == [64, 76]
    assert [delta.v.start(head) for head in range(4)] == [24, 34, 88, 98]
    assert [delta.gate.start(head) for head in range(4)] == [44, 54, 108, 118]
    assert [delta.beta.start(head) for head in range(4)] == [0, 1, 4, 5]
    assert [delta.decay.start(head) for head in range(4)] == [2, 3, 6, 7]
