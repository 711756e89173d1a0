"""Rope frequencies and tables equal those of transformers, rule by rule."""

import math
from typing import Any

import numpy as np
import pytest

from siltwin.isa.errors import ConfigError
from siltwin.models.config import read_config
from siltwin.models.rope import attention_scaling, inv_frequencies, rope_table

BASE = {
    "model_type": "llama",
    "vocab_size": 320,
    "hidden_size": 320,
    "intermediate_size": 100,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
}
LONG = {"short_factor": [1.0 + i / 40 for i in range(40)], "long_factor": [1.0 + i for i in range(40)]}
RULES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 128,
    },
    "llama3 without a blend": {
        "rope_type": "llama3",
        "factor": 16.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 1.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
    "yarn, not truncated": {
        "rope_type": "yarn",
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "truncate": False,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
    },
    "yarn with mscale": {
        "rope_type": "yarn",
        "factor": 40.0,
        "original_max_position_embeddings": 128,
        "mscale": 0.707,
        "mscale_all_dim": 1.0,
    },
    "yarn with attention_factor": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 128,
        "attention_factor": 0.9,
    },
    "longrope": {"rope_type": "longrope", "original_max_position_embeddings": 64, **LONG},
    "longrope with factor": {"rope_type": "longrope", "original_max_position_embeddings": 64, "factor": 3.0, **LONG},
}


def rope_of(table: dict[str, Any], theta: float = 500_000.0) -> Any:
    return read_config(BASE | {"rope_parameters": {**table, "rope_theta": theta}}).rope


def reference(table: dict[str, Any], length: int, theta: float) -> tuple[Any, float]:
    """inv_freq and the factor on cosines, by transformers' own functions."""
    pytest.importorskip("transformers")
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = LlamaConfig(**BASE, rope_parameters={**table, "rope_theta": theta})
    rule = table["rope_type"]
    compute: Any = ROPE_INIT_FUNCTIONS.get(rule, LlamaRotaryEmbedding.compute_default_rope_parameters)
    inv_freq, factor = compute(config, device="cpu", seq_len=length)
    return inv_freq.numpy(), factor


@pytest.mark.parametrize("length", [1, 64, 65, 513, 2000])
@pytest.mark.parametrize("name", RULES)
def test_frequencies_equal_those_of_transformers(name: str, length: int) -> None:
    for theta in (10_000.0, 500_000.0, 1_000_003.0):
        ours = rope_of(RULES[name], theta)
        inv_freq, factor = reference(RULES[name], length, theta)
        np.testing.assert_allclose(inv_frequencies(ours, length), inv_freq, rtol=1e-6, atol=0)
        assert attention_scaling(ours.scaling) == pytest.approx(factor, rel=1e-12)


@pytest.mark.parametrize("name", ["default", "llama3", "yarn", "longrope"])
def test_tables_equal_those_of_the_rotary_embedding(name: str) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = LlamaConfig(**BASE, rope_parameters={**RULES[name], "rope_theta": 10_000.0})
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), torch.arange(100)[None])
    ours = rope_table(rope_of(RULES[name], 10_000.0), 100)
    np.testing.assert_allclose(ours[0], cos[0, :, :40].numpy(), atol=6e-6)
    np.testing.assert_allclose(ours[1], sin[0, :, :40].numpy(), atol=6e-6)


def test_a_default_table_by_hand() -> None:
    cos, sin = rope_table(rope_of(RULES["default"], 10_000.0), 3)
    assert cos.shape == sin.shape == (3, 40)
    assert cos.dtype == sin.dtype == np.float32
    assert (cos[0] == 1).all() and (sin[0] == 0).all()
    # pair 20 of 40 turns by 10000 ** -(40 / 80) = 0.01 radians a position
    assert cos[2, 20] == pytest.approx(math.cos(0.02), abs=1e-7)
    assert sin[2, 0] == pytest.approx(math.sin(2.0), abs=1e-7)


def test_dynamic_changes_nothing_within_the_model_s_own_length() -> None:
    dynamic, default = rope_of(RULES["dynamic"]), rope_of(RULES["default"])
    assert (inv_frequencies(dynamic, 512) == inv_frequencies(default, 512)).all()
    assert inv_frequencies(dynamic, 513)[1] < inv_frequencies(default, 513)[1]


def test_longrope_takes_the_long_factors_one_token_beyond_the_original_length() -> None:
    rope, plain = rope_of(RULES["longrope"]), inv_frequencies(rope_of(RULES["default"]), 1)
    np.testing.assert_allclose(plain / inv_frequencies(rope, 64), LONG["short_factor"], rtol=1e-6)
    np.testing.assert_allclose(plain / inv_frequencies(rope, 65), LONG["long_factor"], rtol=1e-6)


def test_a_table_of_no_positions_is_refused() -> None:
    with pytest.raises(ConfigError, match="0 positions"):
        rope_table(rope_of(RULES["default"]), 0)
