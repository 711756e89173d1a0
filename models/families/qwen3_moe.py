"""Qwen3-MoE: qwen3's attention with a norm on every head, softmax experts and no shared one."""

from ..dense_decoder import build_dense, num_layers, read_dense, window_of
from ..family import Family
from ..fields import Fields
from ..model_config import ModelConfig
from ..moe import MoeConfig, read_experts, sparse_layers

ARCHITECTURE = "Qwen3MoeForCausalLM"


def read(fields: Fields, name: str) -> ModelConfig:
    """A qwen3_moe config.json; weights are renormalised only where norm_topk_prob says so (published models do)."""
    layers = num_layers(fields)
    experts, top_k = read_experts(fields, "num_experts")
    fields.assume("norm_topk_prob", False)
    moe = MoeConfig(
        experts,
        top_k,
        fields.integer("moe_intermediate_size"),
        sparse_layers(fields, layers),
        renormalise=fields.flag("norm_topk_prob", False),
    )
    attention_bias = fields.flag("attention_bias", False)
    use = fields.flag("use_sliding_window", False)
    window = window_of(fields, 4096) if use else 0
    for unused in ("sliding_window", "max_window_layers"):  # transformers reads the second for no layer
        fields.take(unused, None, record=use and unused == "sliding_window")
    return read_dense(
        fields,
        name,
        ARCHITECTURE,
        (window,) * layers,
        default_kv_heads=4,
        qkv_bias=attention_bias,
        out_bias=attention_bias,
        qk_norm=True,
        moe=moe,
    )


FAMILY = Family("qwen3_moe", ARCHITECTURE, read, build_dense)
