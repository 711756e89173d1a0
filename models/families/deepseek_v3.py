"""DeepSeek-V3 and R1: latent attention, sigmoid experts in groups with a correction, dense layers first."""

from dataclasses import replace

from ..dense_decoder import build_dense, num_layers, read_dense
from ..family import Family
from ..fields import Fields
from ..latent import read_latent
from ..model_config import ModelConfig
from ..moe import DEEPSEEK_NAMES, MoeConfig, check_groups, first_dense, read_experts, skip_training

ARCHITECTURE = "DeepseekV3ForCausalLM"


def read(fields: Fields, name: str) -> ModelConfig:
    """A deepseek_v3 config.json; multi-token-prediction layers stand in its files and are no part of a forward pass."""
    skip_training(fields)
    fields.neutral("scoring_func", "sigmoid", None)
    fields.neutral("topk_method", "noaux_tc", None)
    layers = num_layers(fields)
    experts, top_k = read_experts(fields, "n_routed_experts")
    for key, value in (("n_group", 8), ("topk_group", 4), ("n_shared_experts", 1), ("routed_scaling_factor", 2.5)):
        fields.assume(key, value)
    width = fields.integer("moe_intermediate_size")
    moe = MoeConfig(
        experts,
        top_k,
        width,
        first_dense(fields, layers, 3),
        scoring="sigmoid",
        renormalise=fields.flag("norm_topk_prob", True),
        eps=1e-20,
        scale=fields.number("routed_scaling_factor", 2.5),
        groups=fields.integer("n_group", 8),
        top_groups=fields.integer("topk_group", 4),
        group_best=2,
        shared_size=width * fields.integer("n_shared_experts", 1),
        names=replace(DEEPSEEK_NAMES, correction="mlp.gate.e_score_correction_bias"),
    )
    latent = read_latent(fields, fields.integer("num_attention_heads"))
    latent = replace(latent, interleaved=fields.flag("rope_interleave", True))
    return read_dense(fields, name, ARCHITECTURE, (0,) * layers, moe=check_groups(fields, moe), latent=latent)


FAMILY = Family("deepseek_v3", ARCHITECTURE, read, build_dense)
