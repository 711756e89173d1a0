"""Qwen3-Next: gated delta nets, every fourth layer gated attention; norms of 1 + weight; a gated shared expert."""

from ..dense_decoder import build_dense, num_layers, read_dense
from ..family import Family
from ..fields import Fields
from ..linear import read_gated_delta_net
from ..model_config import ModelConfig
from ..moe import MoeConfig, MoeNames, read_experts, sparse_layers

ARCHITECTURE = "Qwen3NextForCausalLM"
NAMES = MoeNames(shared="mlp.shared_expert", shared_gate="mlp.shared_expert_gate.weight")


def read(fields: Fields, name: str) -> ModelConfig:
    """A qwen3_next config.json; projections and norms of a key head's value heads stand packed in its files."""
    layers = num_layers(fields)
    experts, top_k = read_experts(fields, "num_experts")
    moe = MoeConfig(
        experts,
        top_k,
        fields.integer("moe_intermediate_size"),
        sparse_layers(fields, layers),
        renormalise=fields.flag("norm_topk_prob", True),
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
        linear=read_gated_delta_net(fields, layers, packed=True),
        partial_rotary=0.25,
    )


FAMILY = Family("qwen3_next", ARCHITECTURE, read, build_dense)
