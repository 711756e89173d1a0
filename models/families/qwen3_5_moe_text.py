"""Qwen3.5-MoE's text model: Qwen3-Next with experts in every layer and the delta nets' projections apart."""

from ..dense_decoder import build_dense, num_layers, read_dense
from ..family import Family
from ..fields import Fields
from ..linear import read_gated_delta_net
from ..model_config import ModelConfig
from ..moe import MoeConfig, MoeNames, read_experts

ARCHITECTURE = "Qwen3_5MoeForCausalLM"
MROPE = frozenset({"mrope_section", "mrope_interleaved"})  # which of three positions, one and the same in text
NAMES = MoeNames(shared="mlp.shared_expert", shared_gate="mlp.shared_expert_gate.weight")


def read(fields: Fields, name: str) -> ModelConfig:
    """A qwen3_5_moe_text config.json. Of text the three position ids of its rope are one, so its sections are moot."""
    layers = num_layers(fields)
    experts, top_k = read_experts(fields, "num_experts")
    width = fields.integer("moe_intermediate_size")
    fields.neutral("attn_output_gate", True)
    fields.neutral("mamba_ssm_dtype", "float32", None)  # the states' dtype
    fields.neutral("mlp_only_layers", [], None)
    for ignored in ("intermediate_size", "mtp_num_hidden_layers", "mtp_use_dedicated_embeddings"):
        fields.take(ignored, None, record=False)  # no layer is dense, and prediction layers are not run
    moe = MoeConfig(
        experts,
        top_k,
        width,
        (True,) * layers,
        renormalise=True,
        shared_size=fields.integer("shared_expert_intermediate_size"),
        names=NAMES,
    )
    bias = fields.flag("attention_bias", False)
    return read_dense(
        fields,
        name,
        ARCHITECTURE,
        (0,) * layers,
        default_kv_heads=2,
        default_head_dim=256,
        qkv_bias=bias,
        out_bias=bias,
        qk_norm=True,
        moe=moe,
        plus_one=True,
        output_gate=True,
        linear=read_gated_delta_net(fields, layers, packed=False),
        intermediate_size=width,
        partial_rotary=0.25,
        rope_ignored=MROPE,
    )


FAMILY = Family("qwen3_5_moe_text", ARCHITECTURE, read, build_dense)
