"""DeepSeek-V2 and V2-Lite: latent attention, softmax experts not renormalised, shared ones, dense layers first."""

from ...isa.errors import UnsupportedError
from ..dense_decoder import build_dense, num_layers, read_dense
from ..family import Family
from ..fields import Fields
from ..latent import read_latent
from ..model_config import ModelConfig
from ..moe import DEEPSEEK_NAMES, MoeConfig, check_groups, first_dense, read_experts, skip_training

ARCHITECTURE = "DeepseekV2ForCausalLM"


def read(fields: Fields, name: str) -> ModelConfig:
    """A deepseek_v2 config.json; groups are chosen by their best expert, and only by group_limited_greedy."""
    skip_training(fields)
    fields.neutral("scoring_func", "softmax", None)
    if fields.take("norm_topk_prob", None, record=False) not in (False, None):
        raise UnsupportedError(
            f"{fields.where}: norm_topk_prob=True is not supported; transformers renormalises no deepseek_v2 and the "
            "published code does, without routed_scaling_factor: say false, as all published files do"
        )
    fields.neutral("mlp_bias", False)
    layers = num_layers(fields)
    experts, top_k = read_experts(fields, "n_routed_experts")
    groups, top_groups = _groups(fields)
    fields.assume("n_shared_experts", 2)
    fields.assume("routed_scaling_factor", 1.0)
    width = fields.integer("moe_intermediate_size")
    moe = MoeConfig(
        experts,
        top_k,
        width,
        first_dense(fields, layers, 0),
        scale=fields.number("routed_scaling_factor", 1.0),
        groups=groups,
        top_groups=top_groups,
        shared_size=width * fields.integer("n_shared_experts", 2),
        names=DEEPSEEK_NAMES,
    )
    latent = read_latent(fields, fields.integer("num_attention_heads"))
    return read_dense(fields, name, ARCHITECTURE, (0,) * layers, moe=check_groups(fields, moe), latent=latent)


def _groups(fields: Fields) -> tuple[int, int]:
    """(groups, how many of them experts are chosen from)."""
    fields.assume("topk_method", "greedy")
    method = fields.text("topk_method", "greedy")
    if method == "greedy":
        fields.take("n_group", None)
        fields.take("topk_group", None)
        return 1, 1
    if method != "group_limited_greedy":
        raise UnsupportedError(
            f"{fields.where}: topk_method={method!r} is not supported; known: greedy, group_limited_greedy"
        )
    return fields.integer("n_group"), fields.integer("topk_group")


FAMILY = Family("deepseek_v2", ARCHITECTURE, read, build_dense)
