"""Qwen2 and Qwen2.5: llama's form with a bias on q, k and v, and windows on the layers of its choice."""

from ..dense_decoder import build_dense, read_dense, windows_by_layer_kind
from ..family import Family
from ..fields import Fields
from ..model_config import ModelConfig

ARCHITECTURE = "Qwen2ForCausalLM"


def read(fields: Fields, name: str) -> ModelConfig:
    """A qwen2 config.json; the bias is part of the family, no key turns it off."""
    fields.neutral("attention_bias", True)
    fields.neutral("mlp_bias", False)
    fields.neutral("use_mrope", False)
    windows = windows_by_layer_kind(fields)
    return read_dense(fields, name, ARCHITECTURE, windows, default_kv_heads=32, qkv_bias=True)


FAMILY = Family("qwen2", ARCHITECTURE, read, build_dense, gguf_architectures=("qwen2",))
