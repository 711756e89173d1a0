"""One model in the spelling of transformers 4, of transformers 5 and inside a wrapper: one and the same config."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from siltwin.isa.errors import ConfigError
from siltwin.models.config import read_config, read_json
from siltwin.models.registry import known_families
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
