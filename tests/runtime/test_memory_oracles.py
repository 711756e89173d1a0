"""Memory that is known from elsewhere: caches, states and weights of published models, as the allocator holds them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from siltwin.models.shelf import shipped_configs
from siltwin.runtime.fits import UNBOUNDED_BYTES
from siltwin.runtime.job import Job
from siltwin.runtime.plan import JobPlan
from siltwin.runtime.prepare import prepare

GIB = 2**30
DENSE = {
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": True,
}
QWEN3_06B = DENSE | {
    "model_type": "qwen3",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
}
GPT_OSS_20B = {
    "num_hidden_layers": 24,
    "num_local_experts": 32,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
}


def planned(path: Path | str, **asked: Any) -> JobPlan:
    return prepare(Job(str(path), payload=False, **asked)).plan


def shipped_with(directory: Path, name: str, **changes: Any) -> Path:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(shipped_configs()[name].read_text()) | changes))
    return path


def held(plan: JobPlan, tag: str, rank: int = 0) -> int:
    """Bytes of a tag on a card once every sequence has what it begins with."""
    memory = plan.memory(range(plan.layout.cards), UNBOUNDED_BYTES)
    for request in plan.requests():
        memory.grow_to(request, request.cached_len, 0)
    return memory.hbm[rank].bytes_by_tag.get(tag, 0)


def cached(length: int, batch: int = 1, **asked: Any) -> dict[str, Any]:
    return {"batch": batch, "cached_len": length, "output_len": 1, **asked}


@pytest.mark.parametrize(
    ("base", "positions", "gib"),
    [("DeepSeek-V3", 163_840, 10.72), ("Kimi-K2-Instruct", 262_144, 17.16)],  # DeepSeek-V3.1 and Kimi-K2.5
)
def test_a_latent_cache_at_full_context(tmp_path: Path, base: str, positions: int, gib: float) -> None:
    path = shipped_with(tmp_path, base, max_position_embeddings=positions + 1)
    plan = planned(path, layout="tp=8,ep=8", weights="dequantised", **cached(positions))
    assert held(plan, "kv") == positions * 61 * (512 + 64) * 2
    assert round(held(plan, "kv") / GIB, 2) == gib
    assert held(plan, "kv", rank=7) == held(plan, "kv"), "a latent cache is whole on every tensor-parallel rank"


def test_a_cache_of_keys_and_values_at_full_context(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(QWEN3_06B | {"max_position_embeddings": 40_961}))
    assert held(planned(path, **cached(40_960)), "kv") == 28 * 2 * 8 * 128 * 2 * 40_960 == 4.375 * GIB
    assert held(planned(path, layout="tp=4", **cached(40_960)), "kv", rank=3) == 4.375 * GIB / 4


@pytest.mark.parametrize(("kv_pages", "gib"), [("ideal", 6.09), ("unified", 12.00)])
def test_every_second_layer_with_a_window_needs_half_the_cache(tmp_path: Path, kv_pages: str, gib: float) -> None:
    path = shipped_with(tmp_path, "gpt-oss-120b", **GPT_OSS_20B)
    plan = planned(path, weights="dequantised", kv_pages=kv_pages, **cached(8192, 32))
    window = 128 if kv_pages == "ideal" else 8192
    assert held(plan, "kv") == 32 * 12 * (8192 + window) * 2 * 8 * 64 * 2
    assert round(held(plan, "kv") / GIB, 2) == gib


def test_kimi_k3_holds_its_latents_its_states_and_its_weights() -> None:
    plan = planned("Kimi-K3", weights="as-stored", **cached(32_768))
    assert held(plan, "kv") == 27_648 * 32_768
    decays, tails = 69 * 96 * 128 * 128 * 4, 69 * 3 * (96 * 128) * 3 * 2  # f32 states; three earlier inputs of q, k, v
    assert held(plan, "state") == decays + tails == 434_110_464 + 15_261_696
    unused = 2 * (69 * 32 + 2 * 7168)  # padding of the decay rates, and layer 0's mix of nothing: stored, not loaded
    weights = plan.weight_bytes(0)
    routed = 92 * 896 * 3 * 3584 * 3072
    assert weights["expert mxfp4"] + weights["expert scale"] == routed * 17 // 32
    assert sum(weights.values()) + unused == 1_559_943_362_048
