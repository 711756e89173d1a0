"""Qwen3 (dense): a norm on every head of q and k, head_dim of its own, and windows on the layers of its choice."""

from ..dense_decoder import build_dense, read_dense, windows_by_layer_kind
from ..family import Family
from ..fields import Fields
from ..model_config import ModelConfig

ARCHITECTURE = "Qwen3ForCausalLM"


def read(fields: Fields, name: str) -> ModelConfig:
    """A qwen3 config.json; attention_bias puts a bias on q, k, v and o alike."""
    fields.neutral("mlp_bias", False)
    attention_bias = fields.flag("attention_bias", False)
    return read_dense(
        fields,
        name,
        ARCHITECTURE,
        windows_by_layer_kind(fields),
        default_kv_heads=32,
        default_head_dim=128,
        qkv_bias=attention_bias,
        out_bias=attention_bias,
        qk_norm=True,
    )


FAMILY = Family("qwen3", ARCHITECTURE, read, build_dense, gguf_architectures=("qwen3",))
