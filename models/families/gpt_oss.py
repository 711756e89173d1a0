"""gpt-oss: windows and sinks, biases everywhere, experts chosen by their logits and gated by a clamped SwiGLU."""

from ..dense_decoder import build_dense, num_layers, read_dense, window_of, windows_of_kinds
from ..family import Family
from ..fields import Fields
from ..model_config import ModelConfig
from ..moe import MoeConfig, MoeNames, read_experts

ARCHITECTURE = "GptOssForCausalLM"
NAMES = MoeNames(
    router="mlp.router.weight",
    router_bias="mlp.router.bias",
    gate_up=("mlp.experts.gate_up_proj",),
    down="mlp.experts.down_proj",
    gate_up_bias="mlp.experts.gate_up_proj_bias",
    down_bias="mlp.experts.down_proj_bias",
)


def read(fields: Fields, name: str) -> ModelConfig:
    """A gpt_oss config.json; intermediate_size is that of an expert, and layers alternate where none says otherwise."""
    fields.neutral("swiglu_alpha", 1.702)
    fields.neutral("swiglu_limit", 7.0)
    fields.neutral("hidden_act", "silu")
    for hub_only in ("experts_per_token", "initial_context_length"):  # the publisher's own names for keys that follow
        fields.take(hub_only, None, record=False)
    if not fields.raw.get("rope_scaling") and not fields.raw.get("rope_parameters"):
        raise fields.fault("rope_parameters", "given: without it transformers assumes a yarn rule of its own")
    layers = num_layers(fields)
    experts, top_k = read_experts(fields, "num_local_experts")
    moe = MoeConfig(
        experts,
        top_k,
        fields.integer("intermediate_size"),
        (True,) * layers,
        scoring="selected_softmax",
        activation="swiglu_oai",
        names=NAMES,
    )
    bias = fields.flag("attention_bias", True)
    kinds = ["full_attention" if index % 2 else "sliding_attention" for index in range(layers)]
    windows = windows_of_kinds(fields, kinds, layers, window_of(fields, 128))
    return read_dense(
        fields,
        name,
        ARCHITECTURE,
        windows,
        default_kv_heads=8,
        default_head_dim=64,
        qkv_bias=bias,
        out_bias=bias,
        sinks=True,
        moe=moe,
        default_theta=150000.0,
    )


FAMILY = Family("gpt_oss", ARCHITECTURE, read, build_dense)
