"""GLM-4.5 to 4.7: half-turned heads, sigmoid experts with a correction, a shared one, dense layers first."""

from ..dense_decoder import build_dense, num_layers, read_dense
from ..family import Family
from ..fields import Fields
from ..model_config import ModelConfig
from ..moe import MoeConfig, MoeNames, check_groups, read_experts

ARCHITECTURE = "Glm4MoeForCausalLM"
NAMES = MoeNames(correction="mlp.gate.e_score_correction_bias", shared="mlp.shared_experts")


def read(fields: Fields, name: str) -> ModelConfig:
    """A glm4_moe config.json; multi-token-prediction layers stand in its files and are no part of a forward pass."""
    for skipped in ("num_nextn_predict_layers", "num_mtp_layers"):
        fields.take(skipped, None, record=False)
    layers = num_layers(fields)
    experts, top_k = read_experts(fields, "n_routed_experts")
    dense = fields.integer("first_k_dense_replace", 1, minimum=0)
    width = fields.integer("moe_intermediate_size")
    moe = MoeConfig(
        experts,
        top_k,
        width,
        tuple(index >= dense for index in range(layers)),
        scoring="sigmoid",
        renormalise=fields.flag("norm_topk_prob", True),
        eps=1e-20,
        scale=fields.number("routed_scaling_factor", 1.0),
        groups=fields.integer("n_group", 1),
        top_groups=fields.integer("topk_group", 1),
        group_best=2,
        shared_size=width * fields.integer("n_shared_experts", 1),
        names=NAMES,
    )
    return read_dense(
        fields,
        name,
        ARCHITECTURE,
        (0,) * layers,
        default_kv_heads=8,
        qkv_bias=fields.flag("attention_bias", False),
        qk_norm=fields.flag("use_qk_norm", False),
        moe=check_groups(fields, moe),
        partial_rotary=0.5,
    )


FAMILY = Family("glm4_moe", ARCHITECTURE, read, build_dense)
