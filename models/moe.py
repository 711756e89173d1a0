"""Expert layers: what a config says about routing and experts, and the block it becomes under published names."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from ..isa.errors import ConfigError
from .blocks import Activation, Experts, GatedMlp, LatentExperts, Moe, Norm, Projection, Router, Scoring
from .fields import Fields


@dataclass(frozen=True)
class MoeNames:
    """Where a family's checkpoints keep an expert layer, below `model.layers.N.`; {} stands for the expert.

    Names of experts without {} are those of one tensor for all experts, [experts, in, out], in which gate and up
    columns alternate, or all gates stand before all ups where they are not `alternating`.
    """

    router: str = "mlp.gate.weight"
    router_bias: str | None = None
    correction: str | None = None
    gate_up: tuple[str, ...] = ("mlp.experts.{}.gate_proj.weight", "mlp.experts.{}.up_proj.weight")
    down: str = "mlp.experts.{}.down_proj.weight"
    gate_up_bias: str | None = None
    down_bias: str | None = None
    shared: str = ""
    shared_gate: str | None = None
    latent: tuple[str, str, str] = ("", "", "")  # what makes latents, their norm, what makes outputs of them
    alternating: bool = True


MIXTRAL_NAMES = MoeNames(
    router="block_sparse_moe.gate.weight",
    gate_up=("block_sparse_moe.experts.{}.w1.weight", "block_sparse_moe.experts.{}.w3.weight"),
    down="block_sparse_moe.experts.{}.w2.weight",
)

DEEPSEEK_NAMES = MoeNames(shared="mlp.shared_experts")


@dataclass(frozen=True)
class MoeConfig:
    """The expert layers of a model; `sparse` says of every layer whether it has experts or a dense feed-forward.

    `expert_size` and `shared_size` are widths in elements (0: no shared expert); routed experts take latents of
    `latent_size` (0: the whole stream), whose sum is normed if `latent_norm`. The routing rules are those of
    `blocks.Router`.
    """

    num_experts: int
    top_k: int
    expert_size: int
    sparse: tuple[bool, ...]
    scoring: Scoring = "softmax"
    renormalise: bool = False
    eps: float = 0.0
    scale: float = 1.0
    groups: int = 1
    top_groups: int = 1
    group_best: int = 1
    shared_size: int = 0
    latent_size: int = 0
    latent_norm: bool = False
    activation: Activation | None = None
    scales_input: bool = False
    names: MoeNames = field(default=MoeNames(), repr=False)


def read_experts(fields: Fields, key: str) -> tuple[int, int]:
    """(experts, how many a token takes); `key` is the family's own name for the first, transformers' another."""
    for other in ("num_experts", "num_local_experts", "n_routed_experts"):
        if other != key and other in fields.raw and key not in fields.raw:
            key = other
    experts = fields.integer(key, maximum=1 << 16)
    top_k = fields.integer("num_experts_per_tok", maximum=experts)
    for ignored in ("output_router_logits", "router_aux_loss_coef", "router_jitter_noise"):
        fields.take(ignored, None, record=False)  # training only
    return experts, top_k


def sparse_layers(fields: Fields, layers: int) -> tuple[bool, ...]:
    """Qwen's rule: every decoder_sparse_step-th layer has experts, those in mlp_only_layers do not."""
    step = fields.integer("decoder_sparse_step", 1)
    dense: Any = fields.take("mlp_only_layers", None)
    if dense is not None and not (isinstance(dense, list) and all(type(index) is int for index in dense)):
        raise fields.fault("mlp_only_layers", "a list of layer numbers")
    return tuple((index + 1) % step == 0 and index not in (dense or ()) for index in range(layers))


def first_dense(fields: Fields, layers: int, default: int) -> tuple[bool, ...]:
    """DeepSeek's rule: the first first_k_dense_replace layers are dense, all others have experts."""
    fields.assume("first_k_dense_replace", default)
    fields.neutral("moe_layer_freq", 1)
    dense = fields.integer("first_k_dense_replace", default, minimum=0)
    return tuple(index >= dense for index in range(layers))


def sparse_by_kind(fields: Fields, layers: int, default: int) -> tuple[bool, ...]:
    """mlp_layer_types, or all but the first first_k_dense_replace layers."""
    fields.neutral("moe_layer_freq", 1, None)
    dense = fields.integer("first_k_dense_replace", default, minimum=0)
    fields.resolved.pop("first_k_dense_replace", None)
    kinds: Any = fields.take("mlp_layer_types", None)
    if kinds is None:
        kinds = ["dense" if index < dense else "sparse" for index in range(layers)]
    if not isinstance(kinds, list) or len(kinds) != layers or not set(map(str, kinds)) <= {"dense", "sparse"}:
        raise fields.fault("mlp_layer_types", f"a list of {layers} of dense or sparse")
    fields.resolved["mlp_layer_types"] = list(kinds)
    return tuple(kind == "sparse" for kind in kinds)


def read_sigmoid_experts(fields: Fields, sparse: tuple[bool, ...], groups: int, top_groups: int) -> MoeConfig:
    """DeepSeek-V3's expert layers: sigmoid scores, chosen with a correction by groups' best two, shared experts."""
    skip_training(fields)
    fields.neutral("scoring_func", "sigmoid", None)
    fields.neutral("topk_method", "noaux_tc", None)
    experts, top_k = read_experts(fields, "n_routed_experts")
    defaults = {"n_group": groups, "topk_group": top_groups, "n_shared_experts": 1, "routed_scaling_factor": 2.5}
    for key, value in defaults.items():
        fields.assume(key, value)
    width = fields.integer("moe_intermediate_size")
    moe = MoeConfig(
        experts,
        top_k,
        width,
        sparse,
        scoring="sigmoid",
        renormalise=fields.flag("norm_topk_prob", True),
        eps=1e-20,
        scale=fields.number("routed_scaling_factor", 2.5),
        groups=fields.integer("n_group", groups),
        top_groups=fields.integer("topk_group", top_groups),
        group_best=2,
        shared_size=width * fields.integer("n_shared_experts", 1),
        names=replace(DEEPSEEK_NAMES, correction="mlp.gate.e_score_correction_bias"),
    )
    return check_groups(fields, moe)


def skip_training(fields: Fields) -> None:
    """DeepSeek's keys that leave a forward pass alone: losses, placement in training, layers that predict further."""
    for key in ("aux_loss_alpha", "seq_aux", "ep_size", "pretraining_tp"):
        fields.take(key, None, record=False)
    for key in ("num_nextn_predict_layers", "num_mtp_layers"):
        fields.take(key, None, record=False)


def check_groups(fields: Fields, moe: MoeConfig) -> MoeConfig:
    """The config, or ConfigError where groups do not divide the experts or leave too few to choose from."""
    size, left = divmod(moe.num_experts, moe.groups)
    if left or size < moe.group_best or moe.top_groups > moe.groups or moe.top_k > moe.top_groups * size:
        raise ConfigError(
            f"{fields.where}: {moe.top_k} of {moe.num_experts} experts cannot be chosen from {moe.top_groups} of "
            f"{moe.groups} groups; groups must divide the experts, hold at least {moe.group_best} and leave enough"
        )
    return moe


def build_moe(moe: MoeConfig, prefix: str, hidden: int, activation: Activation, eps: float = 0.0) -> Moe:
    """The expert layer whose tensors stand below `prefix` (`model.layers.N.`); `eps` is that of a norm of latents."""
    names = moe.names

    def named(name: str | None) -> str | None:
        return None if name is None else prefix + name

    experts = Experts(
        count=moe.num_experts,
        hidden_size=moe.latent_size or hidden,
        intermediate_size=moe.expert_size,
        activation=moe.activation or activation,
        gate_up=tuple(prefix + name for name in names.gate_up),
        down=prefix + names.down,
        gate_up_bias=named(names.gate_up_bias),
        down_bias=named(names.down_bias),
        alternating=names.alternating,
    )
    router = Router(
        projection=Projection(
            weights=(prefix + names.router,),
            biases=() if names.router_bias is None else (prefix + names.router_bias,),
            out_features=(moe.num_experts,),
            in_features=hidden,
        ),
        correction=named(names.correction),
        top_k=moe.top_k,
        scoring=moe.scoring,
        renormalise=moe.renormalise,
        eps=moe.eps,
        scale=moe.scale,
        groups=moe.groups,
        top_groups=moe.top_groups,
        group_best=moe.group_best,
        scales_input=moe.scales_input,
    )
    gate = None
    if moe.shared_size and names.shared_gate is not None:
        gate = Projection((prefix + names.shared_gate,), (), (1,), hidden)
    return Moe(router, experts, _shared(moe, prefix, hidden, activation), gate, _latent(moe, prefix, hidden, eps))


def _latent(moe: MoeConfig, prefix: str, hidden: int, eps: float) -> LatentExperts | None:
    """What stands around experts of a narrower stream."""
    if not moe.latent_size:
        return None
    down, norm, up = (f"{prefix}{name}" for name in moe.names.latent)
    return LatentExperts(
        down=Projection((down,), (), (moe.latent_size,), hidden),
        norm=Norm("rms", moe.latent_size, norm, None, eps) if moe.latent_norm else None,
        up=Projection((up,), (), (hidden,), moe.latent_size),
    )


def _shared(moe: MoeConfig, prefix: str, hidden: int, activation: Activation) -> GatedMlp | None:
    """The expert that every token takes."""
    if not moe.shared_size:
        return None
    width, at = moe.shared_size, prefix + moe.names.shared
    return GatedMlp(
        gate_up=Projection((f"{at}.gate_proj.weight", f"{at}.up_proj.weight"), (), (width, width), hidden),
        down=Projection((f"{at}.down_proj.weight",), (), (hidden,), width),
        activation=activation,
        intermediate_size=width,
    )
