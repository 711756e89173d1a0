"""DeepSeek and Kimi configs: what is read of them, what is refused, and which blocks they become."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from siltwin.isa.dtype import FP32
from siltwin.isa.errors import ConfigError, UnsupportedError
from siltwin.models.blocks import GatedMlp, LatentAttention, Moe
from siltwin.models.checkpoint import open_checkpoint, random_checkpoint
from siltwin.models.config import read_config
from siltwin.models.facts import describe
from siltwin.models.graph import build_graph, total_parameters
from siltwin.models.scale import scaled

# As the hub holds it, in the spelling of transformers 4, cut down.
HUB: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "aux_loss_alpha": 0.001,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "ep_size": 1,
    "first_k_dense_replace": 1,
    "hidden_act": "silu",
    "hidden_size": 64,
    "initializer_range": 0.02,
    "intermediate_size": 96,
    "kv_lora_rank": 24,
    "max_position_embeddings": 128,
    "model_type": "deepseek_v3",
    "moe_intermediate_size": 20,
    "moe_layer_freq": 1,
    "n_group": 2,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 4,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 3,
    "num_key_value_heads": 4,
    "num_nextn_predict_layers": 1,
    "pretraining_tp": 1,
    "q_lora_rank": 28,
    "qk_nope_head_dim": 10,
    "qk_rope_head_dim": 6,
    "rms_norm_eps": 1e-5,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 4,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 32,
        "type": "yarn",
    },
    "rope_theta": 10000,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "seq_aux": True,
    "tie_word_embeddings": False,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "torch_dtype": "float32",
    "use_cache": True,
    "v_head_dim": 14,
    "vocab_size": 120,
}
V2 = {key: value for key, value in HUB.items() if key not in ("scoring_func", "topk_method", "architectures")} | {
    "model_type": "deepseek_v2",
    "norm_topk_prob": False,
}


def attention(raw: dict[str, Any]) -> LatentAttention:
    found = build_graph(read_config(raw)).layers[0].attention
    assert isinstance(found, LatentAttention)
    return found


def test_a_published_file_is_read_with_its_dense_layers_first() -> None:
    graph = build_graph(read_config(HUB))
    assert [type(layer.mlp) for layer in graph.layers] == [GatedMlp, Moe, Moe]
    assert read_config(read_config(HUB).to_hf()) == read_config(HUB)


def test_norms_of_latents_keep_their_own_eps() -> None:
    found = attention(HUB)
    assert found.q_norm is not None
    assert (found.q_norm.eps, found.kv_norm.eps) == (1e-6, 1e-6)
    assert build_graph(read_config(HUB)).layers[0].input_norm.eps == 1e-5


def test_yarns_mscale_acts_on_the_scores_squared() -> None:
    assert attention(HUB).scale == pytest.approx(16**-0.5 * (0.1 * math.log(4) + 1) ** 2)
    plain = {key: value for key, value in HUB.items() if key != "rope_scaling"}
    assert attention(plain).scale == 16**-0.5


def test_rope_turns_neighbours_unless_the_file_says_otherwise() -> None:
    assert attention(HUB).rope.interleaved  # type: ignore[union-attr]
    assert not attention(HUB | {"rope_interleave": False}).rope.interleaved  # type: ignore[union-attr]


def test_without_a_query_latent_queries_are_made_directly() -> None:
    found = attention(HUB | {"q_lora_rank": None})
    assert (found.q_norm, found.q_up) == (None, None)
    assert found.q.weights == ("model.layers.0.self_attn.q_proj.weight",)


def test_head_dims_that_follow_from_others_are_passed_over() -> None:
    assert read_config(HUB | {"head_dim": 6, "qk_head_dim": 16}) == read_config(HUB)


def test_kimi_k2_is_deepseek_v3() -> None:
    assert read_config(HUB | {"model_type": "kimi_k2"}) == read_config(HUB)


def test_the_cache_holds_latents_alone() -> None:
    assert describe(read_config(HUB)).kv_bytes_per_token == 3 * (24 + 6) * 2


def test_v2_chooses_groups_only_where_it_says_so() -> None:
    greedy = read_config(V2).moe
    limited = read_config(V2 | {"topk_method": "group_limited_greedy"}).moe
    assert greedy is not None and limited is not None
    assert (greedy.groups, greedy.top_groups) == (1, 1)
    assert (limited.groups, limited.top_groups, limited.group_best) == (2, 1, 1)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (HUB | {"num_key_value_heads": 2}, "num_key_value_heads=2 is not supported"),
        (HUB | {"scoring_func": "softmax"}, "scoring_func='softmax' is not supported"),
        (HUB | {"topk_method": "greedy"}, "topk_method='greedy' is not supported"),
        (HUB | {"moe_layer_freq": 2}, "moe_layer_freq=2 is not supported"),
        (HUB | {"index_topk": 64}, "does not know index_topk=64"),
        (HUB | {"mla_use_nope": True}, "does not know mla_use_nope=True"),
        (V2 | {"norm_topk_prob": True}, "norm_topk_prob=True is not supported"),
        (V2 | {"topk_method": "noaux_tc"}, "topk_method='noaux_tc' is not supported; known: greedy"),
        (V2 | {"mlp_bias": True}, "mlp_bias=True is not supported"),
    ],
)
def test_other_mathematics_is_refused_by_name(raw: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        read_config(raw)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"qk_rope_head_dim": 5}, "qk_rope_head_dim 5 is odd"),
        ({"kv_lora_rank": 0}, "kv_lora_rank is 0; it must be a whole number"),
        ({"n_group": 3}, "groups must divide the experts"),
    ],
)
def test_bad_sizes_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_config(HUB | changes)


def test_layers_that_predict_further_stand_in_the_file_and_are_skipped(tmp_path: Path) -> None:
    made = random_checkpoint(read_config(HUB))
    tensors = {name: made.load(name, FP32) for name in made.names()}
    tensors |= {"model.layers.3.eh_proj.weight": np.ones((64, 128), np.float32)}
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(HUB))
    opened = open_checkpoint(tmp_path)
    assert len(opened.graph.layers) == 3
    assert not any("not used" in warning for warning in opened.warnings)


@pytest.mark.parametrize("raw", [HUB, V2, V2 | {"q_lora_rank": None}])
@pytest.mark.parametrize("seed", range(4))
def test_transformers_builds_the_scaled_model(raw: dict[str, Any], seed: int) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from transformers import AutoConfig, AutoModelForCausalLM

    small = scaled(read_config(raw), seed)
    found = small.to_hf()
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(found.pop("model_type"), **found))
    assert sum(tensor.numel() for tensor in model.parameters()) == total_parameters(build_graph(small))
