"""Kimi Linear: Kimi delta attention, some layers latent attention without rotation; sigmoid experts."""

from dataclasses import replace

from ..dense_decoder import build_dense, num_layers, read_dense
from ..family import Family
from ..fields import Fields
from ..latent import LatentConfig, read_latent
from ..linear import read_kda, require_silu
from ..model_config import ModelConfig
from ..moe import MIXTRAL_NAMES, MoeConfig, check_groups, sparse_by_kind

ARCHITECTURE = "KimiLinearForCausalLM"
NAMES = replace(
    MIXTRAL_NAMES,
    correction="block_sparse_moe.gate.e_score_correction_bias",
    shared="block_sparse_moe.shared_experts",
)


def read(fields: Fields, name: str) -> ModelConfig:
    """A kimi_linear config.json, as transformers or the hub spells it; Kimi K3's keys make it a kimi_k3."""
    layers = num_layers(fields)
    moe = read_moe(fields, layers)
    require_silu(fields)
    linear = read_kda(fields, layers)
    config = read_dense(
        fields,
        name,
        ARCHITECTURE,
        (0,) * layers,
        moe=check_groups(fields, moe),
        latent=read_nope(fields),
        linear=linear,
        limit_key=limit_key(fields),
    )
    return without_rope(config)


def without_rope(config: ModelConfig) -> ModelConfig:
    """The config; what its file does not say of a rope is no assumption, for nothing is rotated."""
    return replace(config, assumed=tuple(said for said in config.assumed if not said.startswith("rope_")))


def read_moe(fields: Fields, layers: int) -> MoeConfig:
    """Kimi Linear's expert layers, and the keys that leave its mathematics alone or may say nothing else."""
    experts = fields.integer("num_experts", maximum=1 << 16)
    width = fields.integer("moe_intermediate_size")
    for ignored in ("pretraining_tp", "output_router_logits", "router_aux_loss_coef", "use_grouped_topk"):
        fields.take(ignored, None, record=False)
    for key, value in (("mla_use_nope", True), ("moe_router_activation_func", "sigmoid"), ("topk_method", "noaux_tc")):
        fields.neutral(key, value, None)
    fields.take("num_nextn_predict_layers", None, record=False)
    return MoeConfig(
        experts,
        fields.integer("num_experts_per_token", maximum=experts),
        width,
        sparse_by_kind(fields, layers, 1),
        scoring="sigmoid",
        renormalise=fields.flag("moe_renormalize", True),
        eps=1e-20,
        scale=fields.number("routed_scaling_factor"),
        groups=fields.integer("num_expert_group", 1),
        top_groups=fields.integer("topk_group", 1),
        group_best=2,
        shared_size=width * fields.integer("num_shared_experts", 1, minimum=0),
        names=NAMES,
    )


def read_nope(fields: Fields) -> LatentConfig:
    """Latent attention without rotation; queries come of no latent unless the file says how large it is."""
    return replace(read_latent(fields, fields.integer("num_attention_heads"), default_q_rank=None), turned=False)


def limit_key(fields: Fields) -> str:
    """The key that says how long a sequence may be: the hub's or transformers'."""
    return "max_position_embeddings" if "max_position_embeddings" in fields.raw else "model_max_length"


FAMILY = Family("kimi_linear", ARCHITECTURE, read, build_dense)
