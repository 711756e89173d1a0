"""Qwen1.5-MoE and Qwen2-MoE: qwen2's attention, softmax experts, and a shared expert behind a gate of its own."""

from typing import Any

from ..dense_decoder import build_dense, num_layers, read_dense, window_of, windows_of_kinds
from ..family import Family
from ..fields import Fields
from ..model_config import ModelConfig
from ..moe import MoeConfig, MoeNames, read_experts, sparse_layers

ARCHITECTURE = "Qwen2MoeForCausalLM"
NAMES = MoeNames(shared="mlp.shared_expert", shared_gate="mlp.shared_expert_gate.weight")


def read(fields: Fields, name: str) -> ModelConfig:
    """A qwen2_moe config.json; weights are renormalised only where norm_topk_prob says so."""
    layers = num_layers(fields)
    experts, top_k = read_experts(fields, "num_experts")
    moe = MoeConfig(
        experts,
        top_k,
        fields.integer("moe_intermediate_size"),
        sparse_layers(fields, layers),
        renormalise=fields.flag("norm_topk_prob", False),
        shared_size=fields.integer("shared_expert_intermediate_size"),
        names=NAMES,
    )
    qkv_bias = fields.flag("qkv_bias", True)
    windows = _windows(fields, layers)
    return read_dense(fields, name, ARCHITECTURE, windows, default_kv_heads=16, qkv_bias=qkv_bias, moe=moe)


def _windows(fields: Fields, layers: int) -> tuple[int, ...]:
    """As transformers 5 has it: with use_sliding_window, every other layer below max_window_layers slides."""
    use = fields.flag("use_sliding_window", False)
    window = window_of(fields, 4096) if use else 0
    first = fields.integer("max_window_layers", 28, minimum=0)
    if not use:
        fields.take("sliding_window", None, record=False)
    kinds: Any = ["sliding_attention" if use and not i % 2 and i < first else "full_attention" for i in range(layers)]
    return windows_of_kinds(fields, kinds, layers, window)


FAMILY = Family("qwen2_moe", ARCHITECTURE, read, build_dense)
