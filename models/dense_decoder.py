"""What the decoder families share: reading their common keys, and laying out their blocks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Unpack

from ..isa.dtype import BF16, DTYPES, DType, parse_dtype
from ..isa.errors import ConfigError, UnsupportedError
from .blocks import (
    Activation,
    Attention,
    DecoderLayer,
    DeltaNet,
    GatedMlp,
    Graph,
    LatentAttention,
    Moe,
    Norm,
    Projection,
    Rope,
    Situ,
)
from .fields import Fields, is_number
from .latent import LatentConfig, build_latent
from .linear import build_linear
from .model_config import Form, ModelConfig
from .moe import build_moe
from .rope_config import DEFAULT_THETA, read_rope

ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
WEIGHT_DTYPES = ("fp32", "fp16", "bf16")
MOST_LAYERS = 10_000
# as layer_types spells them, now and formerly
_FULL_KINDS = {"full_attention": "full_attention", "attention": "full_attention"}


def read_dense(
    fields: Fields,
    name: str,
    architecture: str,
    windows: tuple[int, ...],
    *,
    default_kv_heads: int | None = None,
    default_head_dim: int | None = None,
    intermediate_size: int | None = None,
    latent: LatentConfig | None = None,
    rope: Rope | None = None,
    default_theta: float = DEFAULT_THETA,
    partial_rotary: float | None = None,
    limit_key: str = "max_position_embeddings",
    rope_ignored: frozenset[str] = frozenset(),
    activation: tuple[str, str] = ("hidden_act", "silu"),
    default_tied: bool = False,
    **form: Unpack[Form],
) -> ModelConfig:
    """The ModelConfig of a decoder; the keyword arguments, and `form`, say how its family departs from the common form.

    Defaults are what transformers supplies for absent keys (None: as many kv heads as heads, hidden_size / heads);
    `partial_rotary` is that of families whose rope may turn a part of each head (None: whole heads only), `activation`
    the activation's key and its default. `intermediate_size` is for families without dense feed-forwards, whose files
    have no such key; `rope` has been read already by those with several.
    """
    heads, hidden = fields.integer("num_attention_heads"), fields.integer("hidden_size")
    head_dim = latent.head_dim if latent else _head_dim(fields, hidden, heads, default_head_dim)
    limit = fields.integer(limit_key)
    if rope is None:
        turned = latent.rope_dim if latent else head_dim
        rope = read_rope(fields, turned, limit, default_theta, partial_rotary, rope_ignored)
    return ModelConfig(
        name=name,
        family=fields.text("model_type"),
        architecture=_architecture(fields, architecture),
        hidden_size=hidden,
        intermediate_size=fields.integer("intermediate_size") if intermediate_size is None else intermediate_size,
        num_layers=len(windows),
        num_heads=heads,
        num_kv_heads=heads if latent else _kv_heads(fields, heads, default_kv_heads),
        head_dim=head_dim,
        vocab_size=fields.integer("vocab_size"),
        max_position_embeddings=limit,
        norm_eps=fields.number("rms_norm_eps", maximum=1.0),
        activation=_activation(fields, *activation),
        rope=replace(rope, interleaved=latent.interleaved) if latent else rope,
        windows=windows,
        latent=latent,
        tied=fields.flag("tie_word_embeddings", default_tied),
        dtype=_dtype(fields),
        bos_id=fields.integer_or_none("bos_token_id", minimum=0),
        eos_ids=token_ids(fields, "eos_token_id"),
        assumed=tuple(fields.assumed),
        source=fields.where,
        resolved=fields.resolved,
        raw=dict(fields.raw),
        **form,
    )


def num_layers(fields: Fields) -> int:
    """num_hidden_layers, within a bound that keeps a damaged file from filling memory."""
    return fields.integer("num_hidden_layers", maximum=MOST_LAYERS)


def window_of(fields: Fields, default: int | None) -> int:
    """sliding_window in tokens, the current one included; 0 when null. An absent key means `default`, and says so."""
    if default is not None:
        fields.assume("sliding_window", default)
    return fields.integer_or_none("sliding_window", default) or 0


def windows_by_layer_kind(fields: Fields) -> tuple[int, ...]:
    """Qwen's rule: use_sliding_window, sliding_window, max_window_layers and layer_types to one window a layer.

    As transformers 5 has it: without use_sliding_window there is no window; without layer_types the layers from
    max_window_layers on slide.
    """
    layers = num_layers(fields)
    use = fields.flag("use_sliding_window", False)
    if use:
        window, first = window_of(fields, 4096), _first_sliding(fields)
    else:
        fields.take("sliding_window", None, record=False)
        fields.take("max_window_layers", None, record=False)
        window, first = 0, layers
    default = ["sliding_attention" if window and i >= first else "full_attention" for i in range(layers)]
    return windows_of_kinds(fields, default, layers, window)


def windows_of_kinds(
    fields: Fields, default: list[str], layers: int, window: int, limited: str = "sliding_attention"
) -> tuple[int, ...]:
    """layer_types, or the family's default for it, to one window a layer: those of the kind `limited` have it."""
    kinds = fields.take("layer_types", None)
    if kinds is None:
        kinds = default
    kinds = _layer_kinds(fields, kinds, layers, limited)
    fields.resolved["layer_types"] = list(kinds)
    if limited in kinds and not window:
        size = "attention_chunk_size" if limited == "chunked_attention" else "sliding_window"
        raise fields.fault("layer_types", f"full_attention throughout, for no {size} is in use")
    return tuple(window if kind == limited else 0 for kind in kinds)


def token_ids(fields: Fields, key: str) -> tuple[int, ...]:
    """One id, a list of ids, or null, as a tuple."""
    value: Any = fields.take(key, None)
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(is_number(item) and isinstance(item, int) and item >= 0 for item in ids):
        raise fields.fault(key, "a token id, a list of token ids, or null")
    return tuple(ids)


def build_dense(config: ModelConfig) -> Graph:
    """The blocks of a dense decoder under the names its published checkpoints use."""
    embedding = "model.embed_tokens.weight"
    return Graph(
        name=config.name,
        family=config.family,
        hidden_size=config.hidden_size,
        vocab_size=config.vocab_size,
        max_position_embeddings=config.max_position_embeddings,
        embedding=embedding,
        layers=tuple(_layer(config, index) for index in range(config.num_layers)),
        final_norm=_norm("model.norm", config.hidden_size, config),
        lm_head=embedding if config.tied else "lm_head.weight",
        tied=config.tied,
        embedding_scale=config.embedding_scale,
        logit_cap=config.logit_cap,
    )


def _layer(config: ModelConfig, index: int) -> DecoderLayer:
    prefix = f"model.layers.{index}"

    def norm(name: str) -> Norm:
        return _norm(f"{prefix}.{name}_layernorm", config.hidden_size, config)

    return DecoderLayer(
        index=index,
        input_norm=norm("input"),
        attention=_mixer(config, prefix, index),
        post_attention_norm=norm("pre_feedforward" if config.out_norms else "post_attention"),
        mlp=_feed_forward(config, index),
        attention_out_norm=norm("post_attention") if config.out_norms else None,
        mlp_out_norm=norm("post_feedforward") if config.out_norms else None,
    )


def _mixer(config: ModelConfig, prefix: str, index: int) -> Attention | LatentAttention | DeltaNet:
    if config.linear is not None and config.linear.layers[index]:
        return build_linear(config.linear, prefix, config.hidden_size, config.norm_eps)
    if config.latent is not None:
        at = f"{prefix}.self_attn"
        return build_latent(config.latent, at, config.num_heads, config.hidden_size, config.rope, index)
    return _attention(config, f"{prefix}.self_attn", index)


def _feed_forward(config: ModelConfig, index: int) -> GatedMlp | Moe:
    prefix = f"model.layers.{index}."
    if config.moe is None or not config.moe.sparse[index]:
        return _mlp(config, prefix + config.mlp_name)
    return build_moe(config.moe, prefix, config.hidden_size, config.activation, config.norm_eps)


def _attention(config: ModelConfig, prefix: str, index: int) -> Attention:
    window, turned = config.windows[index], config.turned is None or config.turned[index]
    rope = config.local_rope if window and config.local_rope is not None else config.rope
    q_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    q_norm, k_norm = (q_size, kv_size) if config.full_qk_norm else (config.head_dim, config.head_dim)
    qkv, q_rows = ("q_proj", "k_proj", "v_proj"), q_size * (1 + config.output_gate)
    return Attention(
        qkv=_projection(prefix, qkv, (q_rows, kv_size, kv_size), config.hidden_size, config.qkv_bias),
        out=_projection(prefix, ("o_proj",), (config.hidden_size,), q_size, config.out_bias),
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        scale=config.head_dim**-0.5 if config.score_scale is None else config.score_scale,
        rope=rope if turned else None,
        window=0 if config.chunked else window,
        q_norm=_norm(f"{prefix}.q_norm", q_norm, config) if config.qk_norm else None,
        k_norm=_norm(f"{prefix}.k_norm", k_norm, config) if config.qk_norm else None,
        sinks=f"{prefix}.sinks" if config.sinks else None,
        output_gate=config.output_gate,
        chunk=window if config.chunked else 0,
        soft_cap=config.soft_cap,
        unit_eps=config.norm_eps if config.unit_norm and turned else None,
        temperature=None if turned else config.temperature,
    )


def _mlp(config: ModelConfig, prefix: str) -> GatedMlp:
    width, hidden = config.intermediate_size, config.hidden_size
    return GatedMlp(
        gate_up=_projection(prefix, ("gate_proj", "up_proj"), (width, width), hidden, config.mlp_bias),
        down=_projection(prefix, ("down_proj",), (hidden,), width, config.mlp_bias),
        activation=config.activation,
        intermediate_size=width,
    )


def _projection(prefix: str, parts: tuple[str, ...], out: tuple[int, ...], in_features: int, bias: bool) -> Projection:
    return Projection(
        weights=tuple(f"{prefix}.{part}.weight" for part in parts),
        biases=tuple(f"{prefix}.{part}.bias" for part in parts) if bias else (),
        out_features=out,
        in_features=in_features,
    )


def _norm(prefix: str, size: int, config: ModelConfig) -> Norm:
    return Norm("rms", size, f"{prefix}.weight", None, config.norm_eps, config.plus_one)


def _kv_heads(fields: Fields, heads: int, default: int | None) -> int:
    default = heads if default is None else default
    fields.assume("num_key_value_heads", default)
    kv_heads = fields.integer_or_none("num_key_value_heads", default) or heads
    fields.resolved["num_key_value_heads"] = kv_heads
    if heads % kv_heads:
        raise ConfigError(f"{fields.where}: num_key_value_heads {kv_heads} does not divide num_attention_heads {heads}")
    return kv_heads


def _head_dim(fields: Fields, hidden: int, heads: int, default: int | None) -> int:
    if default is not None:
        fields.assume("head_dim", default)
    head_dim = fields.integer_or_none("head_dim", default)
    if head_dim is None and hidden % heads:
        raise ConfigError(
            f"{fields.where}: num_attention_heads {heads} does not divide hidden_size {hidden}, "
            "and head_dim is not given"
        )
    head_dim = head_dim or hidden // heads
    fields.resolved["head_dim"] = head_dim
    return head_dim


def _activation(fields: Fields, key: str, default: str) -> Activation:
    fields.assume(key, default)
    name = fields.text(key, default)
    if name == "situ":
        return Situ(*(fields.number(f"activation_situ_{key}") for key in ("beta", "linear_beta")))
    if name not in ACTIVATIONS:
        known = ", ".join([*ACTIVATIONS, "situ"])
        raise UnsupportedError(f"{fields.where}: {key}={name!r} is not supported; known: {known}")
    return ACTIVATIONS[name]


def _architecture(fields: Fields, expected: str) -> str:
    names = fields.take("architectures", None)
    fields.resolved["architectures"] = [expected]
    if names is None or names == []:
        return expected
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise fields.fault("architectures", "a list of class names")
    if expected not in names:
        raise UnsupportedError(f"{fields.where}: architectures={names} is not supported; only {expected} is")
    return expected


def _dtype(fields: Fields) -> DType:
    """The element type the weights are meant for: dtype (v5), torch_dtype (v4), or bf16 when the file names none."""
    old, new = fields.take("torch_dtype", None, record=False), fields.take("dtype", None, record=False)
    key, value = ("dtype", new) if new is not None else ("torch_dtype", old)
    if value is None:
        return BF16
    if not isinstance(value, str):
        raise fields.fault(key, f"one of {', '.join(WEIGHT_DTYPES)}")
    try:
        dtype = parse_dtype(value)
    except ConfigError as error:
        raise ConfigError(f"{fields.where}: {key}: {error}") from None
    if dtype.name not in WEIGHT_DTYPES:
        raise UnsupportedError(f"{fields.where}: {key}={value!r} is not supported; known: {', '.join(WEIGHT_DTYPES)}")
    fields.resolved["dtype"] = str(DTYPES[dtype.name].value)
    return dtype


def _first_sliding(fields: Fields) -> int:
    fields.assume("max_window_layers", 28)
    return fields.integer("max_window_layers", 28, minimum=0)


def _layer_kinds(fields: Fields, kinds: Any, layers: int, limited: str) -> list[str]:
    known = {**_FULL_KINDS, limited: limited}
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise fields.fault("layer_types", f"a list of {layers} layer kinds (num_hidden_layers)")
    unknown = sorted({str(kind) for kind in kinds if str(kind) not in known})
    if unknown:
        raise UnsupportedError(
            f"{fields.where}: layer_types holds {', '.join(unknown)}, which is not supported; known: {', '.join(known)}"
        )
    return [known[str(kind)] for kind in kinds]
