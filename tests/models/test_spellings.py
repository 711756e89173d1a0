"""One model in the spelling of transformers 4, of transformers 5 and inside a wrapper: one and the same config."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from siltwin.isa.errors import ConfigError
from siltwin.models.config import read_config, read_json
from siltwin.models.graph import build_graph, total_parameters
from siltwin.models.registry import known_families
from siltwin.models.rope import inv_frequencies
from siltwin.models.shelf import shipped_configs

SUPPORTED = [name for name, path in shipped_configs().items() if read_json(path).get("model_type") in known_families()]
GEMMA3 = {
    "model_type": "gemma3_text",
    "hidden_size": 2560,
    "intermediate_size": 10240,
    "num_hidden_layers": 34,
    "sliding_window": 1024,
}


def in_version_4(raw: dict[str, Any]) -> dict[str, Any]:
    """rope_theta and rope_scaling beside each other, partial_rotary_factor outside them, torch_dtype."""
    old = copy.deepcopy(raw)
    table = old.pop("rope_parameters", None)
    if table is not None:
        old["rope_theta"] = table.pop("rope_theta")
        if "partial_rotary_factor" in table:
            old["partial_rotary_factor"] = table.pop("partial_rotary_factor")
        table["type"] = table.pop("rope_type")
        old["rope_scaling"] = table if table["type"] != "default" else None
    if "dtype" in old:
        old["torch_dtype"] = old.pop("dtype")
    return old


@pytest.mark.parametrize("name", SUPPORTED)
def test_version_4s_keys_read_as_version_5s(name: str) -> None:
    config = read_config(shipped_configs()[name])
    published = config.to_hf()
    assert read_config(in_version_4(published), name=config.name) == config


def test_gemma3_in_both_spellings() -> None:
    scaling = {"rope_type": "linear", "factor": 8.0}
    old = read_config(
        GEMMA3 | {"rope_theta": 2e6, "rope_local_base_freq": 2e4, "rope_scaling": scaling, "sliding_window_pattern": 3},
        name="g",
    )
    tables = {
        "full_attention": scaling | {"rope_theta": 2e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
    }
    kinds = ["full_attention" if index % 3 == 2 else "sliding_attention" for index in range(34)]
    assert old == read_config(GEMMA3 | {"rope_parameters": tables, "layer_types": kinds}, name="g")
    assert old == read_config(old.to_hf(), name="g")
    assert old.rope.theta == 2e6 and old.rope.scaling.factor == 8 and old.local_rope is not None
    assert old.local_rope.theta == 2e4 and old.local_rope.scaling.rule == "default"
    assert [bool(window) for window in old.windows[:4]] == [True, True, False, True]


def test_gemma3s_defaults_are_those_of_transformers() -> None:
    """What Gemma 3 4B's published file leaves out."""
    config = read_config(GEMMA3 | {"rope_scaling": {"rope_type": "linear", "factor": 8.0}})
    assert (config.num_heads, config.num_kv_heads, config.head_dim, config.vocab_size) == (8, 4, 256, 262_208)
    assert (config.rope.theta, config.score_scale, config.tied) == (1e6, 1 / 16, True)
    assert any(text.startswith("rms_norm_eps=1e-06") for text in config.assumed)


def test_gemma3s_yarn_is_that_of_transformers_though_a_kinds_table_asks_for_no_truncation() -> None:
    """Transformers looks for `truncate` beside the tables of the kinds, where it never stands."""
    from transformers import AutoConfig
    from transformers.models.gemma3.modeling_gemma3 import Gemma3RotaryEmbedding

    yarn = {"rope_type": "yarn", "rope_theta": 12345.6, "factor": 2.0, "original_max_position_embeddings": 64}
    tables = {"full_attention": yarn | {"truncate": False}, "sliding_attention": {"rope_type": "default"}}
    raw = GEMMA3 | {"head_dim": 20, "rope_parameters": tables, "max_position_embeddings": 128}
    rope = read_config(raw).rope
    theirs = Gemma3RotaryEmbedding(AutoConfig.for_model(**raw)).full_attention_inv_freq
    assert inv_frequencies(rope, 1).tolist() == pytest.approx(theirs.tolist(), rel=1e-6)


@pytest.mark.parametrize(
    "tables",
    [
        {"rope_type": "default", "rope_theta": 1e4},
        {"full_attention": 3},
        {"full_attention": {"rope_type": "default"}, "other_attention": {}},
    ],
)
def test_gemma3s_rope_tables_are_one_a_kind(tables: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="rope_parameters is"):
        read_config(GEMMA3 | {"rope_parameters": tables})


@pytest.mark.parametrize(
    ("wrapper", "text_type"),
    [("gemma3", "gemma3_text"), ("qwen3_5_moe", "qwen3_5_moe_text"), ("kimi_k25", "kimi_k2"), ("llama4", None)],
)
def test_a_wrapper_reads_as_its_text_config(wrapper: str, text_type: str | None) -> None:
    shipped = {
        "gemma3": None,
        "qwen3_5_moe": "Qwen3.5-397B-A17B",
        "kimi_k25": "Kimi-K2.6",
        "llama4": "Llama-4-Maverick",
    }[wrapper]
    alone = read_config(GEMMA3 if shipped is None else shipped_configs()[shipped], name="m")
    text: dict[str, Any] = {**alone.raw, "model_type": text_type}
    if text_type is None:
        del text["model_type"]
    outer = {"model_type": wrapper, "text_config": text, "vision_config": {"hidden_size": 8}, "image_token_id": 5}
    assert read_config(outer, name="m") == alone


# As published: Llama 4 Scout's text_config, Gemma 3 1B and Gemma 2 9B; sizes are those of transformers' own models.
PUBLISHED: dict[str, dict[str, Any]] = {
    "Llama 4 Scout": {
        "architectures": ["Llama4ForConditionalGeneration"],
        "boi_token_index": 200080,
        "eoi_token_index": 200081,
        "image_token_index": 200092,
        "model_type": "llama4",
        "text_config": {
            "_attn_implementation_autoset": True,
            "attention_bias": False,
            "attention_chunk_size": 8192,
            "attention_dropout": 0.0,
            "attn_scale": 0.1,
            "attn_temperature_tuning": 4,
            "bos_token_id": 200000,
            "cache_implementation": "hybrid",
            "eos_token_id": [200001, 200007, 200008],
            "floor_scale": 8192,
            "for_llm_compressor": False,
            "head_dim": 128,
            "hidden_act": "silu",
            "hidden_size": 5120,
            "initializer_range": 0.02,
            "interleave_moe_layer_step": 1,
            "intermediate_size": 8192,
            "intermediate_size_mlp": 16384,
            "max_position_embeddings": 10485760,
            "model_type": "llama4_text",
            "no_rope_layers": [],
            "num_attention_heads": 40,
            "num_experts_per_tok": 1,
            "num_hidden_layers": 48,
            "num_key_value_heads": 8,
            "num_local_experts": 16,
            "output_router_logits": False,
            "pad_token_id": 200018,
            "rms_norm_eps": 1e-05,
            "rope_scaling": {
                "factor": 16.0,
                "high_freq_factor": 1.0,
                "low_freq_factor": 1.0,
                "original_max_position_embeddings": 8192,
                "rope_type": "llama3",
            },
            "rope_theta": 500000.0,
            "router_aux_loss_coef": 0.001,
            "router_jitter_noise": 0.0,
            "torch_dtype": "bfloat16",
            "use_cache": True,
            "use_qk_norm": True,
            "vocab_size": 202048,
        },
        "torch_dtype": "bfloat16",
        "transformers_version": "4.51.0",
        "vision_config": {"model_type": "llama4_vision_model"},
    },
    "Gemma 3 1B": {
        "architectures": ["Gemma3ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attn_logit_softcapping": None,
        "bos_token_id": 2,
        "cache_implementation": "hybrid",
        "eos_token_id": [1, 106],
        "final_logit_softcapping": None,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 1152,
        "initializer_range": 0.02,
        "intermediate_size": 6912,
        "max_position_embeddings": 32768,
        "model_type": "gemma3_text",
        "num_attention_heads": 4,
        "num_hidden_layers": 26,
        "num_key_value_heads": 1,
        "pad_token_id": 0,
        "query_pre_attn_scalar": 256,
        "rms_norm_eps": 1e-06,
        "rope_local_base_freq": 10000,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "sliding_window": 512,
        "sliding_window_pattern": 6,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": 262144,
    },
    "Gemma 2 9B": {
        "architectures": ["Gemma2ForCausalLM"],
        "attention_bias": False,
        "attn_logit_softcapping": 50.0,
        "cache_implementation": "hybrid",
        "eos_token_id": 1,
        "final_logit_softcapping": 30.0,
        "head_dim": 256,
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 3584,
        "intermediate_size": 14336,
        "max_position_embeddings": 8192,
        "model_type": "gemma2",
        "num_attention_heads": 16,
        "num_hidden_layers": 42,
        "num_key_value_heads": 8,
        "query_pre_attn_scalar": 256,
        "rms_norm_eps": 1e-06,
        "rope_theta": 10000.0,
        "sliding_window": 4096,
        "sliding_window_size": 4096,
        "torch_dtype": "float32",
        "vocab_size": 256000,
    },
}


@pytest.mark.parametrize(
    ("name", "params"), [("Llama 4 Scout", 107_769_861_120), ("Gemma 3 1B", 999_885_952), ("Gemma 2 9B", 9_241_705_984)]
)
def test_published_files_read_and_count_as_transformers_does(name: str, params: int) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    config = read_config(PUBLISHED[name], name=name)
    made = config.to_hf()
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(
            transformers.AutoConfig.for_model(made.pop("model_type"), **made)
        )
    assert sum(tensor.numel() for tensor in model.parameters()) == total_parameters(build_graph(config))
    assert total_parameters(build_graph(config)) == params
