"""DeepSeek-V3.2 and GLM-5 configs: which layers choose tokens, by which heads, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from siltwin.isa.errors import ConfigError, UnsupportedError
from siltwin.models.blocks import LatentAttention
from siltwin.models.config import read_config
from siltwin.models.facts import describe
from siltwin.models.graph import build_graph, parameter_shapes, total_parameters
from siltwin.models.scale import scaled

# As the hub holds it, in the spelling of transformers 4, cut down.
V32: dict[str, Any] = {
    "architectures": ["DeepseekV32ForCausalLM"],
    "attention_bias": False,
    "ep_size": 1,
    "first_k_dense_replace": 1,
    "hidden_act": "silu",
    "hidden_size": 64,
    "index_head_dim": 12,
    "index_n_heads": 16,
    "index_topk": 20,
    "intermediate_size": 96,
    "kv_lora_rank": 24,
    "max_position_embeddings": 128,
    "model_type": "deepseek_v32",
    "moe_intermediate_size": 20,
    "moe_layer_freq": 1,
    "n_group": 2,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 4,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 4,
    "num_key_value_heads": 4,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": 28,
    "qk_nope_head_dim": 10,
    "qk_rope_head_dim": 6,
    "rms_norm_eps": 1e-6,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 4,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 32,
        "type": "yarn",
    },
    "rope_theta": 10000,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "tie_word_embeddings": False,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "torch_dtype": "bfloat16",
    "v_head_dim": 14,
    "vocab_size": 120,
}
GLM = {key: value for key, value in V32.items() if key not in ("rope_scaling", "rope_theta", "architectures")} | {
    "model_type": "glm_moe_dsa",
    "rope_parameters": {"rope_theta": 1000000, "rope_type": "default"},
    "indexer_rope_interleave": True,
}


def attention(raw: dict[str, Any]) -> list[LatentAttention]:
    found = [layer.attention for layer in build_graph(read_config(raw)).layers]
    assert all(isinstance(one, LatentAttention) for one in found)
    return found  # type: ignore[return-value]


def choosing(raw: dict[str, Any]) -> str:
    return "".join("S" if one.takes_choice else "F" for one in attention(raw))


def test_every_layer_of_v32_chooses_for_itself() -> None:
    assert choosing(V32) == "FFFF"
    assert {one.top_k for one in attention(V32)} == {20}
    assert read_config(read_config(V32).to_hf()) == read_config(V32)


def test_an_indexer_has_the_published_tensors() -> None:
    shapes = parameter_shapes(build_graph(read_config(V32)))
    at = "model.layers.2.self_attn.indexer."
    assert {name.removeprefix(at): shape for name, shape in shapes.items() if at in name} == {
        "wq_b.weight": (16 * 12, 28),
        "wk.weight": (12, 64),
        "k_norm.weight": (12,),
        "k_norm.bias": (12,),
        "weights_proj.weight": (16, 64),
    }


def test_index_heads_are_turned_half_with_half_in_v32_and_by_neighbours_in_glm() -> None:
    for raw, interleaved in ((V32, False), (GLM, True)):
        one = attention(raw)[0]
        assert one.indexer is not None and one.rope is not None
        assert (one.rope.interleaved, one.indexer.rope.interleaved) == (True, interleaved)
        assert one.indexer.scale == pytest.approx((12 * 16) ** -0.5)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "FFFF"),
        ({"indexer_types": ["full", "shared", "full", "shared"]}, "FSFS"),
        ({"index_topk_pattern": "FSSF"}, "FSSF"),
        ({"index_topk_freq": 2}, "FFSF"),  # layers 0 and 1 choose, then every second
        ({"index_topk_freq": 3, "index_skip_topk_offset": 1}, "FSSF"),
        ({"index_topk_freq": 2, "indexer_types": ["full"] * 4}, "FFFF"),
    ],
)
def test_which_layers_of_glm_choose(changes: dict[str, Any], expected: str) -> None:
    assert choosing(GLM | changes) == expected
    assert read_config(read_config(GLM | changes).to_hf()) == read_config(GLM | changes)


def test_the_cache_holds_index_keys_of_the_layers_that_choose() -> None:
    assert describe(read_config(V32)).kv_bytes_per_token == 4 * (24 + 6 + 12) * 2
    shared = GLM | {"index_topk_pattern": "FSSF"}
    assert describe(read_config(shared)).kv_bytes_per_token == (4 * (24 + 6) + 2 * 12) * 2
    assert "20 tokens chosen by a layer before" in str(describe(read_config(shared)).blocks)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (V32 | {"q_lora_rank": None}, "q_lora_rank=None is not supported; the indexer makes its queries"),
        (V32 | {"indexer_rope_interleave": True}, "indexer_rope_interleave=True is not supported"),
        (GLM | {"indexer_rope_interleave": False}, "indexer_rope_interleave=False is not supported"),
        (V32 | {"rope_interleave": False}, "rope_interleave=False is not supported"),
        (V32 | {"indexer_types": ["full"] * 4}, "does not know indexer_types"),
        (V32 | {"layer_types": ["full_attention"] * 4}, "layer_types=.* is not supported"),
        (V32 | {"mlp_bias": True}, "mlp_bias=True is not supported"),
    ],
)
def test_other_mathematics_is_refused_by_name(raw: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        read_config(raw)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (V32 | {"index_topk": 0}, "index_topk is 0"),
        (V32 | {"index_head_dim": 4}, "index_head_dim 4 is below qk_rope_head_dim 6"),
        (GLM | {"indexer_types": ["shared", "full", "full", "full"]}, "must be full in the first layer"),
        (GLM | {"indexer_types": ["full"]}, "a list of 4 of full and shared"),
        (GLM | {"indexer_types": ["full", "half", "full", "full"]}, "a list of 4 of full and shared"),
        (V32 | {"mlp_layer_types": ["dense"]}, "a list of 4 of dense or sparse"),
    ],
)
def test_bad_sizes_are_named(raw: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_config(raw)


@pytest.mark.parametrize("raw", [V32, GLM, GLM | {"index_topk_freq": 3}])
@pytest.mark.parametrize("seed", range(4))
def test_transformers_builds_the_scaled_model(raw: dict[str, Any], seed: int) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from transformers import AutoConfig, AutoModelForCausalLM

    small = scaled(read_config(raw), seed)
    found = small.to_hf()
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(found.pop("model_type"), **found))
    assert sum(tensor.numel() for tensor in model.parameters()) == total_parameters(build_graph(small))
    assert small.latent is not None and small.latent.index is not None
    assert small.latent.index.heads >= 16 and small.latent.index.top_k < 40
