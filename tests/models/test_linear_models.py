"""Configs with linear attention: what is refused of them."""

from __future__ import annotations

import pytest

from siltwin.isa.errors import ConfigError, UnsupportedError
from siltwin.models.config import read_config
from siltwin.models.shelf import shipped_configs


@pytest.mark.parametrize("name", ["Qwen3-Next-80B-A3B", "Qwen3.5-397B-A17B", "Kimi-Linear-48B-A3B"])
def test_an_activation_that_the_convolutions_would_take_too_is_refused(name: str) -> None:
    config = read_config(shipped_configs()[name]).to_hf()
    assert read_config(config | {"hidden_act": "swish"}).linear is not None
    with pytest.raises(UnsupportedError, match="hidden_act='gelu' is not supported beside linear attention"):
        read_config(config | {"hidden_act": "gelu"})


def test_kimi_linear_without_a_word_on_its_kinds_of_layers_is_refused() -> None:
    """Transformers would start full attention at the fifth layer, published files at the fourth."""
    config = read_config(shipped_configs()["Kimi-Linear-48B-A3B"]).to_hf()
    without = {key: value for key, value in config.items() if key not in ("layer_types", "linear_attn_config")}
    with pytest.raises(ConfigError, match="layer_types is missing"):
        read_config(without)
