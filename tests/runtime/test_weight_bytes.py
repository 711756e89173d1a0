"""Weights of big layouts: every stored tensor's bytes times the cards that hold it sum to what all cards hold."""

from __future__ import annotations

import math

import pytest

from siltwin.models.config import read_config
from siltwin.models.graph import build_graph, parameter_shapes
from siltwin.models.shelf import shipped_configs
from siltwin.runtime.job import Job
from siltwin.runtime.layout import Layout, parse_layout
from siltwin.runtime.prepare import prepare

LAYOUTS = [
    ("Llama-3.1-405B", "tp=16,pp=4"),
    ("Llama-4-Maverick", "tp=8,ep=8,pp=4"),
    ("Mixtral-8x22B", "tp=16,ep=4"),
    ("Qwen3-235B-A22B", "tp=8,ep=8,pp=2"),
    ("OLMoE-1B-7B", "tp=4,pp=2"),
    ("MiniMax-M2", "tp=16,ep=8"),
    ("gpt-oss-120b", "tp=16,ep=16"),
    ("GLM-4.5", "tp=8,ep=8,pp=4"),
    ("DeepSeek-V3", "tp=16,ep=16,pp=2"),
    ("Kimi-K2-Instruct", "tp=8,ep=8,pp=4"),
    ("DeepSeek-V3.2", "tp=16,ep=16,pp=2"),
    ("GLM-5.1", "tp=8,ep=8,pp=4"),
    pytest.param("Kimi-K3", "tp=8,ep=8,pp=4", marks=pytest.mark.long),
    ("Qwen3-Next-80B-A3B", "tp=8,ep=4"),
    ("Qwen3.5-397B-A17B", "tp=16,ep=16"),
    ("Kimi-Linear-48B-A3B", "tp=8,ep=8"),
]
# What tensor parallelism leaves whole on every card of a stage: norms of whole rows, routers, latents, low-rank halves.
WHOLE = (
    "layernorm.weight",
    "model.norm.weight",
    "mlp.gate.weight",
    "gate.weight",
    "router.weight",
    "router.bias",
    "e_score_correction_bias",
    "shared_expert_gate.weight",
    "q_a_proj.weight",
    "kv_a_proj_with_mqa.weight",
    "linear_attn.norm.weight",
    "o_norm.weight",
    "f_a_proj.weight",
    "g_a_proj.weight",
    "routed_expert_down_proj.weight",
    "routed_expert_norm.weight",
    "res_norm.weight",
    "res_proj.weight",
)
UNUSED = "model.layers.0.self_attention_res_"  # Kimi K3 stores a mix where nothing is to be mixed yet
FULL_WIDTH_NORMS = ("olmoe", "minimax_m2")


def holders(name: str, family: str, kv_heads: int, layout: Layout) -> int:
    """Cards that hold each element of a tensor: all of a stage, those that share a kv head, or one."""
    copies_of_kv = max(1, layout.tp // kv_heads)
    if "experts." in name and "shared_expert" not in name:
        return layout.tp // (layout.ep * layout.etp)
    if name.endswith(("k_norm.weight", "q_norm.weight")):
        if family not in FULL_WIDTH_NORMS:
            return layout.tp
        return copies_of_kv if "k_norm" in name else 1
    if name.startswith(UNUSED):
        return 0
    if ".indexer." in name:
        return layout.tp
    if ".k_proj." in name or ".v_proj." in name:
        return copies_of_kv if family != "kimi_linear" else 1
    return layout.tp if name.endswith(WHOLE) else 1


@pytest.mark.parametrize(("model", "text"), LAYOUTS)
def test_tensors_times_their_holders_are_what_all_cards_hold(model: str, text: str) -> None:
    config, layout = read_config(shipped_configs()[model]), parse_layout(text)
    job = Job(
        model, layout=text, weights="dequantised" if config.quantization else None, payload=False, batch=1, input_len=1
    )
    plan = prepare(job).plan
    held = [
        sum(static.num_bytes for static in plan.footprint(rank).static if static.tag == "weight")
        for rank in range(layout.cards)
    ]
    padding = 2 * 69 * 32 if model == "Kimi-K3" else 0  # of its decay rates, stored as 128 for 96 heads
    stored = {
        name: 2 * math.prod(shape) * holders(name, config.family, config.num_kv_heads, layout)
        for name, shape in parameter_shapes(build_graph(config)).items()
    }
    assert sum(held) == sum(stored.values()) - padding
    assert max(held) < 1.35 * sum(held) / len(held), "no card holds much more than its share"
