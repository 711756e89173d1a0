"""OLMoE: attention with norms over all heads together, and softmax experts in every layer."""

from ..dense_decoder import build_dense, num_layers, read_dense
from ..family import Family
from ..fields import Fields
from ..model_config import ModelConfig
from ..moe import MoeConfig, read_experts

ARCHITECTURE = "OlmoeForCausalLM"


def read(fields: Fields, name: str) -> ModelConfig:
    """An olmoe config.json; intermediate_size is that of an expert."""
    fields.neutral("clip_qkv", None)
    fields.neutral("sliding_window", None)
    layers = num_layers(fields)
    experts, top_k = read_experts(fields, "num_experts")
    moe = MoeConfig(
        experts,
        top_k,
        fields.integer("intermediate_size"),
        (True,) * layers,
        renormalise=fields.flag("norm_topk_prob", False),
    )
    attention_bias = fields.flag("attention_bias", False)
    return read_dense(
        fields,
        name,
        ARCHITECTURE,
        (0,) * layers,
        qkv_bias=attention_bias,
        out_bias=attention_bias,
        qk_norm=True,
        full_qk_norm=True,
        moe=moe,
    )


FAMILY = Family("olmoe", ARCHITECTURE, read, build_dense)
