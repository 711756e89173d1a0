"""Gemma 2: norms of 1 + weight before and after every part, soft caps on scores and logits, alternate windows."""

from ..dense_decoder import build_dense, num_layers, read_dense, window_of, windows_of_kinds
from ..family import Family
from ..fields import Fields
from ..model_config import ModelConfig
from .gemma3_text import ACTIVATION, DEFAULTS, read_gemma

ARCHITECTURE = "Gemma2ForCausalLM"


def read(fields: Fields, name: str) -> ModelConfig:
    """A gemma2 config.json; caps are 50 on scores and 30 on logits where the file says nothing of them."""
    caps = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
    fields.fill(**DEFAULTS | {"vocab_size": 256_000, "max_position_embeddings": 8192} | caps)
    fields.neutral("sliding_window_size", fields.raw.get("sliding_window"))  # some published files say it twice
    layers = num_layers(fields)
    kinds = ["full_attention" if index % 2 else "sliding_attention" for index in range(layers)]
    form = read_gemma(fields)
    if fields.take("attn_logit_softcapping") is not None:
        form["soft_cap"] = fields.number("attn_logit_softcapping")
    return read_dense(
        fields,
        name,
        ARCHITECTURE,
        windows_of_kinds(fields, kinds, layers, window_of(fields, 4096)),
        default_kv_heads=4,
        default_head_dim=256,
        activation=ACTIVATION,
        default_tied=True,
        **form,
    )


FAMILY = Family("gemma2", ARCHITECTURE, read, build_dense)
