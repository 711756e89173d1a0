"""Attention to latents beside what FlashMLA publishes of its kernels (deepseek-ai/FlashMLA, README, H800 SXM5)."""

from __future__ import annotations

import pytest

from siltwin.emulator.spec import load_card
from siltwin.emulator.units.attention import AttentionLoad, attention_plan
from siltwin.isa.dtype import BF16

LATENT, ROPE = 512, 64  # elements of a cached token of DeepSeek-V3, its values those of the latent
WITHIN = 0.2


def seconds(batch: int, queries: int, length: int, heads: int) -> tuple[float, int]:
    """Attention alone on an H100, whose cores and HBM an H800 has; and the bytes of the cache."""
    card, row = load_card("h100-sxm"), 2 * (LATENT + ROPE)
    load = AttentionLoad((queries,) * batch, (length,) * batch, heads, 1, LATENT + ROPE, LATENT, row)
    cache = batch * length * row
    hbm_ps = 1e12 * cache / card.hbm.attainable_bytes_per_s
    return attention_plan(load, BF16, card).beside(hbm_ps, 0).whole_ps(hbm_ps, 0) / 1e12, cache


@pytest.mark.parametrize(
    ("batch", "queries", "length", "published"),
    [(128, 2, 8192, 660e12), (4096, 1, 2048, 640e12)],
    ids=["dense decode", "sparse prefill of 4,096 queries that choose 2,048 tokens each"],
)
def test_many_heads_compute_at_the_published_rate(batch: int, queries: int, length: int, published: float) -> None:
    taken, _ = seconds(batch, queries, length, 128)
    ops = 2 * batch * queries * 128 * length * (2 * LATENT + ROPE)
    assert ops / taken == pytest.approx(published, rel=WITHIN)


def test_few_heads_read_the_cache_at_the_published_bandwidth() -> None:
    taken, cache = seconds(128, 1, 8192, 16)
    assert cache / taken == pytest.approx(3000e9, rel=WITHIN)
