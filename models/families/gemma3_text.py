"""Gemma 3's text model: norms of 1 + weight before and after every part, a rope for windows and one for full layers."""

from ..dense_decoder import build_dense, num_layers, read_dense, window_of, windows_of_kinds
from ..family import Family
from ..fields import Fields
from ..model_config import Form, ModelConfig
from ..rope_config import read_ropes_by_kind

ARCHITECTURE = "Gemma3ForCausalLM"
DEFAULTS = {  # what published files leave out
    "vocab_size": 262_208,
    "num_attention_heads": 8,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-6,
    "bos_token_id": 2,
    "eos_token_id": 1,
}
ACTIVATION = ("hidden_activation", "gelu_pytorch_tanh")


def read(fields: Fields, name: str) -> ModelConfig:
    """A gemma3_text config.json; every sliding_window_pattern-th layer is full where layer_types does not say."""
    fields.neutral("attn_logit_softcapping", None)  # transformers reads it for no layer of this family
    fields.fill(**DEFAULTS)
    layers, head_dim = num_layers(fields), fields.integer("head_dim", 256)
    pattern = fields.integer("sliding_window_pattern", fields.take("_sliding_window_pattern", 6, record=False))
    kinds = ["sliding_attention" if (index + 1) % pattern else "full_attention" for index in range(layers)]
    windows = windows_of_kinds(fields, kinds, layers, window_of(fields, 4096))
    fields.resolved.pop("sliding_window_pattern")  # layer_types says it
    rope, local = read_ropes_by_kind(fields, head_dim, fields.integer("max_position_embeddings"), (1e6, 1e4))
    form = read_gemma(fields)
    form |= {"qk_norm": True, "local_rope": local}
    return read_dense(
        fields,
        name,
        ARCHITECTURE,
        windows,
        default_kv_heads=4,
        default_head_dim=256,
        rope=rope,
        activation=ACTIVATION,
        default_tied=True,
        **form,
    )


def read_gemma(fields: Fields) -> Form:
    """What all Gemmas from the second on share."""
    fields.neutral("use_bidirectional_attention", False, None)
    fields.take("hidden_act", None, record=False)  # hidden_activation is what counts
    fields.assume("query_pre_attn_scalar", 256)
    bias = fields.flag("attention_bias", False)
    cap = fields.take("final_logit_softcapping", None)
    return Form(
        qkv_bias=bias,
        out_bias=bias,
        plus_one=True,
        out_norms=True,
        score_scale=fields.number("query_pre_attn_scalar", 256) ** -0.5,
        embedding_scale=fields.integer("hidden_size") ** 0.5,
        logit_cap=0.0 if cap is None else fields.number("final_logit_softcapping"),
    )


FAMILY = Family("gemma3_text", ARCHITECTURE, read, build_dense)
