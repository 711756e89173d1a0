"""MiniMax-M2: norms over all heads together, partly turned heads, sigmoid experts with a correction."""

from dataclasses import replace

from ..dense_decoder import build_dense, num_layers, read_dense
from ..family import Family
from ..fields import Fields
from ..model_config import ModelConfig
from ..moe import MIXTRAL_NAMES, MoeConfig, read_experts

ARCHITECTURE = "MiniMaxM2ForCausalLM"
NAMES = replace(MIXTRAL_NAMES, correction="block_sparse_moe.e_score_correction_bias")


def read(fields: Fields, name: str) -> ModelConfig:
    """A minimax_m2 config.json; intermediate_size is that of an expert, rotary_dim how much of a head is turned."""
    layers = num_layers(fields)
    _accept_published_keys(fields, layers)
    experts, top_k = read_experts(fields, "num_local_experts")
    moe = MoeConfig(
        experts,
        top_k,
        fields.integer("intermediate_size"),
        (True,) * layers,
        scoring="sigmoid",
        renormalise=True,
        names=NAMES,
    )
    head_dim = fields.integer("head_dim", 128)
    rotary_dim = fields.integer_or_none("rotary_dim", head_dim) or head_dim
    fields.resolved.pop("rotary_dim")
    return read_dense(
        fields,
        name,
        ARCHITECTURE,
        (0,) * layers,
        default_kv_heads=8,
        default_head_dim=128,
        qk_norm=True,
        full_qk_norm=True,
        moe=moe,
        default_theta=5e6,
        partial_rotary=rotary_dim / head_dim,
    )


def _accept_published_keys(fields: Fields, layers: int) -> None:
    """Keys of the published files that only repeat what the family is, or say what stands beside the forward pass."""
    fields.neutral("use_qk_norm", True)
    fields.neutral("qk_norm_type", "per_layer")
    fields.neutral("scoring_func", "sigmoid")
    fields.neutral("use_routing_bias", True)
    fields.neutral("attn_type_list", [1] * layers)
    fields.neutral("shared_intermediate_size", 0)
    fields.neutral("sliding_window", None)
    for skipped in ("use_mtp", "num_mtp_modules", "mtp_transformer_layers", "layernorm_full_attention_beta"):
        fields.take(skipped, None, record=False)
    for skipped in ("layernorm_linear_attention_beta", "layernorm_mlp_beta", "mlp_alpha"):
        fields.take(skipped, None, record=False)


FAMILY = Family("minimax_m2", ARCHITECTURE, read, build_dense)
