"""Kimi K3's config: how it is recognised, what it counts, what is refused of it, and what its scaled form keeps."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from siltwin.isa.dtype import FP32
from siltwin.isa.errors import ConfigError, UnsupportedError
from siltwin.models.blocks import DeltaNet, GatedMlp, Graph, LatentAttention, Moe, Situ
from siltwin.models.checkpoint import open_checkpoint, random_checkpoint
from siltwin.models.config import read_config
from siltwin.models.facts import describe
from siltwin.models.graph import build_graph, parameter_shapes, state_bytes_per_sequence
from siltwin.models.scale import scaled
from siltwin.models.shelf import find_model


def published() -> dict[str, Any]:
    return json.loads(find_model("Kimi-K3").read_text())


def text(**changes: Any) -> dict[str, Any]:
    """The published text_config alone, with changes; a key ... is taken out."""
    raw = published()["text_config"] | changes
    return {key: value for key, value in raw.items() if value is not ...}


def graph_of(**changes: Any) -> Graph:
    return build_graph(read_config(text(**changes)))


def test_sizes_are_the_published_ones() -> None:
    """2,779,484,478,208 stored elements; 105.36 B active, 104.19 B without the embedding; 24 layers cache 512 + 64."""
    facts = describe(read_config(find_model("Kimi-K3")))
    assert facts.family == "kimi_k3"
    assert facts.total_params == 2_779_484_478_208
    assert abs(facts.active_params / 105.36e9 - 1) < 0.001
    assert abs(facts.active_params_excl_embedding / 104.19e9 - 1) < 0.001
    assert facts.kv_bytes_per_token == 24 * (512 + 64) * 2 == 27_648
    assert {"93 x attention residuals", "8 x snapshot of the residual stream"} <= set(facts.blocks)


def test_nothing_is_assumed_of_the_published_file() -> None:
    assert read_config(find_model("Kimi-K3")).assumed == ()


def test_a_sequences_state_is_that_of_69_layers() -> None:
    """96 heads of 128 x 128 in fp32, and the last 3 of 3 x 12288 inputs in 16 bits."""
    assert state_bytes_per_sequence(graph_of(), 2) == 69 * (96 * 128 * 128 * 4 + 3 * 3 * 12288 * 2)


def test_layers_stand_where_the_lists_that_count_from_one_say() -> None:
    graph = graph_of()
    full = [layer.index for layer in graph.layers if isinstance(layer.attention, LatentAttention)]
    assert full == [*range(3, 92, 4), 92]
    assert isinstance(graph.layers[0].mlp, GatedMlp) and all(isinstance(x.mlp, Moe) for x in graph.layers[1:])
    taken = [layer.index for layer in graph.layers if layer.residuals and layer.residuals.takes]
    assert taken == [0, 12, 24, 36, 48, 60, 72, 84]


def test_tensors_have_the_published_names_and_shapes() -> None:
    shapes = parameter_shapes(graph_of())
    wanted = {
        "layers.0.self_attn.A_log": (128,),
        "layers.0.self_attn.dt_bias": (12288,),
        "layers.0.self_attn.f_a_proj.weight": (128, 7168),
        "layers.0.self_attn.g_proj.weight": (12288, 7168),
        "layers.0.self_attn.q_conv1d.weight": (12288, 1, 4),
        "layers.0.self_attention_res_norm.weight": (7168,),
        "layers.0.mlp_res_proj.weight": (1, 7168),
        "layers.3.self_attn.g_proj.weight": (12288, 7168),
        "layers.3.self_attn.q_b_proj.weight": (18432, 1536),
        "layers.3.self_attn.kv_a_proj_with_mqa.weight": (576, 7168),
        "layers.3.block_sparse_moe.gate.weight": (896, 7168),
        "layers.3.block_sparse_moe.routed_expert_down_proj.weight": (3584, 7168),
        "layers.3.block_sparse_moe.routed_expert_norm.weight": (3584,),
        "layers.3.block_sparse_moe.routed_expert_up_proj.weight": (7168, 3584),
        "layers.3.block_sparse_moe.experts.895.w1.weight": (3072, 3584),
        "layers.3.block_sparse_moe.experts.895.w2.weight": (3584, 3072),
        "layers.3.block_sparse_moe.shared_experts.gate_proj.weight": (6144, 7168),
        "output_attn_res_norm.weight": (7168,),
        "output_attn_res_proj.weight": (1, 7168),
    }
    assert {name: shapes.get(f"model.{name}") for name in wanted} == wanted


def test_gates_activation_and_norms_are_k3s() -> None:
    graph = graph_of()
    delta, latent, moe = graph.layers[1].attention, graph.layers[3].attention, graph.layers[1].mlp
    assert isinstance(delta, DeltaNet) and isinstance(latent, LatentAttention) and isinstance(moe, Moe)
    assert delta.lower_bound == -5 and delta.gate_down is None and delta.gate_activation == "sigmoid"
    assert latent.rope is None and latent.gate is not None and latent.scale == 192**-0.5
    assert (latent.kv_norm.eps, delta.norm.eps) == (1e-6, 1e-5)
    assert moe.experts.activation == moe.shared.activation == Situ(4.0, 25.0)  # type: ignore[union-attr]
    assert moe.experts.hidden_size == 3584 and moe.router.projection.in_features == 7168


ADDITIONS = ("attn_res_block_size", "routed_expert_hidden_size", "latent_moe_use_norm", "mla_use_output_gate")
SITU = {"hidden_act": "silu", "activation_situ_beta": ..., "activation_situ_linear_beta": ...}


def without(*kept: str) -> dict[str, Any]:
    """What takes all of K3's additions out of the text_config but those kept."""
    gates = {"gate_lower_bound": -5.0, "use_full_rank_gate": True}
    table = {k: v for k, v in published()["text_config"]["linear_attn_config"].items() if k in kept or k not in gates}
    changes: dict[str, Any] = {"linear_attn_config": table, **{key: ... for key in ADDITIONS if key not in kept}}
    return changes | (SITU if "hidden_act" not in kept else {})


@pytest.mark.parametrize("sign", [*ADDITIONS, "gate_lower_bound", "use_full_rank_gate", "hidden_act"])
def test_any_one_addition_makes_a_kimi_linear_kimi_k3(sign: str) -> None:
    assert read_config(text(**without(sign))).family == "kimi_k3"
    assert read_config(text(**without())).family == "kimi_linear"


def test_the_wrapper_and_its_text_config_read_alike() -> None:
    wrapped, bare = read_config(published()), read_config(text(dtype="bfloat16", tie_word_embeddings=False))
    assert build_graph(wrapped) == build_graph(bare)
    again = read_config(wrapped.to_hf(), name=wrapped.name)
    assert again == wrapped and build_graph(again) == build_graph(wrapped)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mla_use_nope": False}, "mla_use_nope=False is not supported"),
        ({"moe_router_activation_func": "softmax"}, "moe_router_activation_func='softmax' is not supported"),
        ({"topk_method": "greedy"}, "topk_method='greedy' is not supported"),
        ({"hidden_act": "tanh"}, "hidden_act='tanh' is not supported"),
        ({"attn_res_kind": "full"}, "does not know attn_res_kind='full'"),
        ({"model_type": "kimi_k4"}, "kimi_k4 is not supported"),
    ],
)
def test_other_mathematics_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        read_config(text(**changes))


def test_a_wrapper_with_unknown_keys_or_another_text_model_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="kimi_k3 does not know head_kind=2 beside text_config"):
        read_config(published() | {"head_kind": 2})
    with pytest.raises(UnsupportedError, match="text_config.model_type='llama' is not supported in kimi_k3"):
        read_config(published() | {"text_config": text(model_type="llama")})
    with pytest.raises(ConfigError, match="text_config is 7; it must be an object"):
        read_config(published() | {"text_config": 7})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attn_res_block_size": 0}, "attn_res_block_size is 0"),
        ({"activation_situ_beta": 0}, "activation_situ_beta is 0"),
        ({"activation_situ_linear_beta": ...}, "activation_situ_linear_beta is missing"),
        ({"routed_expert_hidden_size": "wide"}, "routed_expert_hidden_size is 'wide'"),
    ],
)
def test_bad_values_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_config(text(**changes))


def test_a_lower_bound_must_be_below_zero() -> None:
    table = published()["text_config"]["linear_attn_config"] | {"gate_lower_bound": 5}
    with pytest.raises(ConfigError, match="gate_lower_bound is 5; it must be a number below 0"):
        read_config(text(linear_attn_config=table))


@pytest.mark.parametrize("seed", range(4))
def test_the_scaled_model_keeps_every_part(seed: int) -> None:
    small = scaled(read_config(find_model("Kimi-K3")), seed)
    graph = build_graph(small)
    kinds = [type(layer.attention).__name__ for layer in graph.layers]
    assert kinds[:4] == ["DeltaNet"] * 3 + ["LatentAttention"] and kinds[-2:] == ["LatentAttention"] * 2
    assert isinstance(graph.layers[0].mlp, GatedMlp) and all(isinstance(x.mlp, Moe) for x in graph.layers[1:])
    taken = [layer.index for layer in graph.layers if layer.residuals and layer.residuals.takes]
    assert len(taken) >= 3 and graph.final_mix is not None
    moe = graph.layers[1].mlp
    assert isinstance(moe, Moe) and moe.latent is not None and moe.latent.norm is not None
    assert moe.experts.hidden_size < graph.hidden_size and moe.experts.activation == Situ(4.0, 25.0)
    assert len(graph.layers) <= 13 and describe(small).total_params < 4_000_000
    assert read_config(small.to_hf(), name=small.name) == small


def test_random_weights_of_the_scaled_model_are_all_there() -> None:
    checkpoint = random_checkpoint(scaled(read_config(find_model("Kimi-K3")), 1), seed=3)
    for name, shape in checkpoint.shapes.items():
        values = checkpoint.load(name, FP32)
        assert values.size == np.prod(shape) and np.ptp(values) > 0


@pytest.mark.parametrize("stored", ["heads", "padded", "as transformers has it"])
def test_decay_rates_are_read_whatever_pads_them(tmp_path: Any, stored: str) -> None:
    checkpoint = random_checkpoint(scaled(read_config(find_model("Kimi-K3")), 2), seed=1)
    heads = checkpoint.config.linear.heads  # type: ignore[union-attr]
    tensors = {
        f"language_model.{name}": checkpoint.load(name, FP32).reshape(s) for name, s in checkpoint.shapes.items()
    }
    first = "language_model.model.layers.0.self_attn.A_log"
    live = tensors[first][:heads]
    for name in [name for name in tensors if name.endswith("A_log")]:
        values = tensors[name][:heads]
        padding = np.full(37, 9, np.float32)
        shapes = {"heads": values, "padded": np.concatenate([values, padding])}
        tensors[name] = shapes.get(stored, values.reshape(1, 1, heads, 1))
    (tmp_path / "config.json").write_text(json.dumps(checkpoint.config.to_hf()))
    save_file(tensors, tmp_path / "model.safetensors")
    opened = open_checkpoint(tmp_path)
    held = opened.load("model.layers.0.self_attn.A_log", FP32, 1, heads)
    assert np.array_equal(held, live[1:])
    assert np.array_equal(
        opened.load("lm_head.weight", FP32),
        checkpoint.load("lm_head.weight", FP32).reshape(checkpoint.shapes["lm_head.weight"]),
    )
