"""Kimi K3's text model: Kimi Linear with attention residuals, latent experts, SiTU, and gates of its own."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..blocks import AttentionResiduals, DecoderLayer, Graph, Norm, ResidualMix
from ..dense_decoder import build_dense, num_layers, read_dense
from ..family import Family
from ..fields import Fields
from ..linear import GATE_KEYS, read_kda
from ..model_config import ModelConfig
from ..moe import check_groups
from . import kimi_linear

ARCHITECTURE = "KimiK3ForConditionalGeneration"
NAMES = replace(
    kimi_linear.NAMES,
    latent=(
        "block_sparse_moe.routed_expert_down_proj.weight",
        "block_sparse_moe.routed_expert_norm.weight",
        "block_sparse_moe.routed_expert_up_proj.weight",
    ),
)
# Any of these makes a config that states kimi_linear one of Kimi K3.
SIGNS = frozenset(
    "attn_res_block_size routed_expert_hidden_size latent_moe_use_norm mla_use_output_gate "
    "activation_situ_beta activation_situ_linear_beta".split()
) | frozenset(GATE_KEYS)


def claims(raw: Mapping[str, Any]) -> bool:
    """Whether a config of model_type kimi_linear is Kimi K3's."""
    if raw.get("model_type") != "kimi_linear":
        return False
    inner = raw.get("linear_attn_config")
    keys = {*raw, *inner} if isinstance(inner, Mapping) else set(raw)
    return raw.get("hidden_act") == "situ" or not SIGNS.isdisjoint(keys)


def read(fields: Fields, name: str) -> ModelConfig:
    """A kimi_k3 config.json's text part; each of K3's additions may be left out, and then it is Kimi Linear's form."""
    layers = num_layers(fields)
    moe = kimi_linear.read_moe(fields, layers)
    latent_size = fields.integer_or_none("routed_expert_hidden_size") or 0
    norm = fields.flag("latent_moe_use_norm", False)
    moe = replace(moe, latent_size=latent_size, latent_norm=norm, names=NAMES)
    linear = read_kda(fields, layers, gates=True)
    linear = replace(linear, a_log_rows=max(linear.heads, linear.key_dim))
    if fields.raw.get("hidden_act") != "situ":
        for idle in ("activation_situ_beta", "activation_situ_linear_beta"):
            fields.take(idle, None, record=False)
    latent = kimi_linear.read_nope(fields)
    config = read_dense(
        fields,
        name,
        _architecture(fields),
        (0,) * layers,
        moe=check_groups(fields, moe),
        latent=replace(latent, output_gate=fields.flag("mla_use_output_gate", False)),
        linear=linear,
        residual_block=fields.integer_or_none("attn_res_block_size") or 0,
        limit_key=kimi_linear.limit_key(fields),
    )
    return kimi_linear.without_rope(config)


def _architecture(fields: Fields) -> str:
    """The class that the file names: the wrapper's, or the text model's own."""
    named = fields.raw.get("architectures")
    return kimi_linear.ARCHITECTURE if named == [kimi_linear.ARCHITECTURE] else ARCHITECTURE


def build(config: ModelConfig) -> Graph:
    """Kimi Linear's blocks, its layers reading mixes of snapshots where the config says how many a block has."""
    graph = replace(build_dense(config), counts_buffers=True)
    if not config.residual_block:
        return graph
    layers = tuple(_with_residuals(layer, config) for layer in graph.layers)
    return replace(graph, layers=layers, final_mix=_mix("model.output_attn_res", config))


def _with_residuals(layer: DecoderLayer, config: ModelConfig) -> DecoderLayer:
    prefix, block = f"model.layers.{layer.index}", config.residual_block
    residuals = AttentionResiduals(
        attention=_mix(f"{prefix}.self_attention_res", config),
        mlp=_mix(f"{prefix}.mlp_res", config),
        snapshots=-(-layer.index // block),
        takes=layer.index % block == 0,
    )
    return replace(layer, residuals=residuals)


def _mix(prefix: str, config: ModelConfig) -> ResidualMix:
    norm = Norm("rms", config.hidden_size, f"{prefix}_norm.weight", None, config.norm_eps)
    return ResidualMix(norm, f"{prefix}_proj.weight")


FAMILY = Family("kimi_k3", ARCHITECTURE, read, build, claims=claims)
