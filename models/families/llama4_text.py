"""Llama 4's text model: chunks with rope, full layers without, top experts whose weight scales what they are given."""

from dataclasses import replace

from ..blocks import Temperature
from ..dense_decoder import build_dense, num_layers, read_dense, windows_of_kinds
from ..family import Family
from ..fields import Fields
from ..model_config import ModelConfig
from ..moe import MoeConfig, MoeNames, read_experts
from ..rope_config import read_rope

ARCHITECTURE = "Llama4ForCausalLM"
NAMES = MoeNames(
    router="feed_forward.router.weight",
    gate_up=("feed_forward.experts.gate_up_proj",),
    down="feed_forward.experts.down_proj",
    shared="feed_forward.shared_expert",
    alternating=False,
)


def read(fields: Fields, name: str) -> ModelConfig:
    """A llama4_text config.json; intermediate_size is that of experts, intermediate_size_mlp of dense layers."""
    fields.neutral("for_llm_compressor", False)
    layers, head_dim = num_layers(fields), fields.integer("head_dim", 128)
    experts, top_k = read_experts(fields, "num_local_experts")
    width = fields.integer("intermediate_size")
    moe = MoeConfig(
        experts,
        top_k,
        width,
        _sparse(fields, layers),
        scoring="selected_sigmoid",
        shared_size=width,
        scales_input=True,
        names=NAMES,
    )
    turned = _turned(fields, layers)
    chunk = fields.integer_or_none("attention_chunk_size", 8192) or 0
    kinds = ["chunked_attention" if turns and chunk else "full_attention" for turns in turned]
    windows = windows_of_kinds(fields, kinds, layers, chunk, "chunked_attention")
    rope = read_rope(fields, head_dim, fields.integer("max_position_embeddings"), 5e5)
    bias = fields.flag("attention_bias", False)
    return read_dense(
        fields,
        name,
        ARCHITECTURE,
        windows,
        default_kv_heads=8,
        default_head_dim=128,
        intermediate_size=fields.integer("intermediate_size_mlp", 16384),
        rope=replace(rope, interleaved=True),
        qkv_bias=bias,
        out_bias=bias,
        moe=moe,
        turned=turned,
        chunked=True,
        unit_norm=fields.flag("use_qk_norm", True),
        temperature=_temperature(fields),
        mlp_name="feed_forward",
    )


def _sparse(fields: Fields, layers: int) -> tuple[bool, ...]:
    """moe_layers, or every interleave_moe_layer_step-th layer."""
    step = fields.integer("interleave_moe_layer_step", 1)
    listed = fields.take("moe_layers", None)
    if listed is None:
        listed = list(range(step - 1, layers, step))
    if not isinstance(listed, list) or not all(type(index) is int for index in listed):
        raise fields.fault("moe_layers", "a list of layer numbers")
    fields.resolved["moe_layers"] = list(listed)
    return tuple(index in listed for index in range(layers))


def _turned(fields: Fields, layers: int) -> tuple[bool, ...]:
    """no_rope_layers, whose 1 is a layer with rope, or all but every no_rope_layer_interval-th."""
    interval = fields.integer("no_rope_layer_interval", 4)
    listed = fields.take("no_rope_layers", None) or [int((index + 1) % interval != 0) for index in range(layers)]
    if not isinstance(listed, list) or len(listed) < layers or not all(value in (0, 1) for value in listed):
        raise fields.fault("no_rope_layers", f"a list of {layers} of 1 (rope) or 0 (none)")
    fields.resolved["no_rope_layers"] = [int(value) for value in listed]
    return tuple(value == 1 for value in listed[:layers])


def _temperature(fields: Fields) -> Temperature | None:
    tunes = fields.take("attn_temperature_tuning", True)
    fields.resolved["attn_temperature_tuning"] = bool(tunes)  # a number in early files
    step, strength = fields.integer("floor_scale", 8192), fields.number("attn_scale", 0.1, minimum=-1e9)
    return Temperature(step, strength) if tunes else None


FAMILY = Family("llama4_text", ARCHITECTURE, read, build_dense)
