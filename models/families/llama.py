"""Llama 2, 3, 3.1 and the many models of its form: grouped-query attention, optional biases, any rope rule."""

from ..dense_decoder import build_dense, num_layers, read_dense
from ..family import Family
from ..fields import Fields
from ..model_config import ModelConfig

ARCHITECTURE = "LlamaForCausalLM"


def read(fields: Fields, name: str) -> ModelConfig:
    """A llama config.json; attention_bias puts a bias on q, k, v and o alike."""
    fields.neutral("pretraining_tp", 1, None)  # above 1 it changes the order of the sums
    fields.neutral("rope_interleaved", False)
    fields.neutral("sliding_window", None)
    attention_bias = fields.flag("attention_bias", False)
    return read_dense(
        fields,
        name,
        ARCHITECTURE,
        windows=(0,) * num_layers(fields),
        qkv_bias=attention_bias,
        out_bias=attention_bias,
        mlp_bias=fields.flag("mlp_bias", False),
    )


FAMILY = Family("llama", ARCHITECTURE, read, build_dense, gguf_architectures=("llama",))
