"""Mistral: llama's form with one sliding window for every layer, and no bias anywhere."""

from ..dense_decoder import build_dense, num_layers, read_dense, window_of
from ..family import Family
from ..fields import Fields
from ..model_config import ModelConfig

ARCHITECTURE = "MistralForCausalLM"


def read(fields: Fields, name: str) -> ModelConfig:
    """A mistral config.json; sliding_window null is full attention, and absent it is 4096 as in transformers."""
    fields.neutral("attention_bias", False)
    fields.neutral("mlp_bias", False)
    layers, window = num_layers(fields), window_of(fields, default=4096)
    # transformers reads no layer_types here, so a list is harmless only where it says what it does anyway
    fields.neutral("layer_types", None, ["sliding_attention" if window else "full_attention"] * layers)
    return read_dense(fields, name, ARCHITECTURE, windows=(window,) * layers, default_kv_heads=8)


FAMILY = Family("mistral", ARCHITECTURE, read, build_dense)
