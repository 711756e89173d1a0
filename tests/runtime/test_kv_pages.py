"""KV pages of layers that look back only so far: kept to the end when unified, let go behind the window when ideal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import reference, save
from hypothesis import given, settings
from hypothesis import strategies as st
from scaled_checkpoints import SCALED_FAMILIES, save_scaled

from siltwin.isa.errors import ConfigError, NotYetError
from siltwin.runtime.job import Job
from siltwin.runtime.kv_cache import PagePool
from siltwin.runtime.lowering.reach import Reach
from siltwin.runtime.prepare import prepare
from siltwin.runtime.run import RunResult, run_job

PROMPTS = [[(7 * index + 3 * length) % 131 for index in range(length)] for length in (1, 9, 40, 70)]


def run(path: Path, **changes: Any) -> RunResult:
    options = {"dtype": "float32", "kv_dtype": "float32", "prompt_ids": tuple(map(tuple, PROMPTS))}
    return run_job(Job(str(path), ignore_eos=True, **{**options, "max_new_tokens": 24, **changes}))


def held(result: RunResult) -> dict[int, list[tuple[int, str]]]:
    """What every card allocated and freed, in order; when it did is of what experts got, which numbers alone know."""
    return {rank: [(size, tag) for _, size, tag in events] for rank, events in result.memory.items()}


@pytest.mark.parametrize("chunk", [None, 7])
@pytest.mark.parametrize("family", SCALED_FAMILIES)
def test_pages_let_go_and_used_again_change_no_number(tmp_path: Path, family: str, chunk: int | None) -> None:
    path = save_scaled(tmp_path, family, 0)
    result = run(path, layout="tp=2,pp=2", kv_pages="ideal", chunk_tokens=chunk, logits=True)
    assert result.logits is not None
    for index, prompt in enumerate(PROMPTS):
        logits, tokens, rows = reference(path, prompt, 24)
        assert np.abs(result.logits[f"logits_{index}"] - logits).max() <= 1e-4 * logits.std()
        assert np.abs(result.logits[f"decode_logits_{index}"] - np.stack(rows)).max() <= 1e-4 * logits.std()
        assert list(result.report.requests[index].tokens) == tokens
    assert all(card.live_at_end_bytes == 0 for card in result.report.cards)
    off = run(path, layout="tp=2,pp=2", kv_pages="ideal", chunk_tokens=chunk, payload=False)
    assert held(off) == held(run(path, layout="tp=2,pp=2", kv_pages="ideal", chunk_tokens=chunk))


@pytest.mark.parametrize(
    ("kv_pages", "chunk", "pages"),
    [
        ("unified", None, 6),  # 70 prompt tokens and 23 computed after them, 16 a page
        ("ideal", None, 5),  # the whole prompt in one step; after it the window is never more than two pages
        ("ideal", 16, 2),  # a step's 16 tokens fill the page after that of the 11 before them
        ("ideal", 7, 3),  # the step from 42 on reads from 31 on, on the second page, and writes 48, on the fourth
    ],
)
def test_a_window_of_12_holds_its_pages(tmp_path: Path, kv_pages: str, chunk: int | None, pages: int) -> None:
    path = save(tmp_path, "mistral", 0)
    result = run(path, prompt_ids=(tuple(PROMPTS[3]),), kv_pages=kv_pages, chunk_tokens=chunk, payload=False)
    page_bytes = 3 * 16 * 2 * 2 * 10 * 4  # layers, tokens, keys and values, kv heads of 10, fp32
    assert result.report.cards[0].by_tag["kv"] == pages * page_bytes


def test_a_million_token_class_cache_costs_a_window_its_window() -> None:
    """gpt-oss at 100,000 tokens: 18 layers hold 6,251 pages, 18 with windows of 128 the 9 that 128 tokens lie on."""
    asked = {"payload": False, "batch": 1, "cached_len": 100_000, "output_len": 2, "weights": "dequantised"}
    held = {
        mode: run_job(Job("gpt-oss-120b", layout="tp=8", kv_pages=mode, **asked)).report.cards[0].by_tag["kv"]
        for mode in ("unified", "ideal")
    }
    page = 16 * 2 * 64 * 2  # tokens, keys and values of one head of 64 on each of eight cards, 16 bits
    assert held["unified"] == 36 * 6251 * page
    assert held["ideal"] == 18 * (6251 + 9) * page


@pytest.mark.parametrize("family", ["gemma3_text", "llama4_text"])
def test_what_is_cached_beforehand_is_computed_with_pages_to_spare(tmp_path: Path, family: str) -> None:
    path = save_scaled(tmp_path, family, 0)
    asked = {"prompt_ids": (), "batch": 2, "cached_len": 57, "input_len": 9, "output_len": 20, "max_new_tokens": None}
    unified, ideal = (run(path, kv_pages=mode, logits=True, layout="tp=2", **asked) for mode in ("unified", "ideal"))
    assert unified.logits is not None and ideal.logits is not None
    for name, values in unified.logits.items():
        np.testing.assert_array_equal(ideal.logits[name], values)
    off = run(path, kv_pages="ideal", payload=False, layout="tp=2", **asked)
    assert held(off) == held(run(path, kv_pages="ideal", layout="tp=2", **asked))


def test_a_pool_takes_leading_pages_back_once() -> None:
    pool = PagePool(page_tokens=4)
    pool.grow(7, 3)
    assert pool.let_go(7, 3) == 0 and pool.let_go(7, 9) == 2 and pool.let_go(7, 9) == 0
    pool.grow(8, 2)
    assert pool.tables == {7: [0, 0, 2], 8: [0, 1]}
    assert pool.missing(7, 14) == 1 and pool.slot(7, 9) == 9
    assert pool.release(7) == 1
    assert pool.let_go(9, 8) == 0 and pool.missing(9, 9) == 1, "pages before the first that is read are never given"


@settings(max_examples=60, deadline=None)
@given(
    prompt=st.integers(1, 90),
    new=st.integers(1, 40),
    step=st.integers(1, 90),
    size=st.integers(1, 40),
    chunked=st.booleans(),
    page_tokens=st.sampled_from([1, 3, 16]),
)
def test_no_sequence_holds_more_than_is_planned_for(
    prompt: int, new: int, step: int, size: int, chunked: bool, page_tokens: int
) -> None:
    reach = Reach(0, size) if chunked else Reach(size, 0)
    pool, start, most = PagePool(page_tokens), 0, 0
    while start < prompt + new - 1:
        count = min(step, prompt - start) if start < prompt else 1
        pool.let_go(0, reach.oldest(start))
        pool.grow(0, pool.missing(0, start + count))
        first = reach.oldest(start) // page_tokens
        most = max(most, len(pool.tables[0]) - first)
        assert all(pool.slot(0, position) >= 0 for position in range(start, start + count))
        start += count
    assert most <= reach.most_pages(prompt + new - 1, max(1, min(step, prompt)), page_tokens)


def test_what_ideal_pages_do_not_do_is_said(tmp_path: Path) -> None:
    path = save(tmp_path, "llama", 0)
    plain = prepare(Job(str(path), batch=1, input_len=4, payload=False, kv_pages="ideal"))
    assert any("--kv-pages ideal changes nothing" in warning for warning in plain.warnings)
    with pytest.raises(NotYetError, match="--kv-pages ideal with cp comes with a later version"):
        prepare(Job(str(path), batch=1, input_len=4, layout="cp=2", kv_pages="ideal"))
    with pytest.raises(ConfigError, match="--kv-pages 'mine' does not exist; choose one of unified, ideal"):
        Job(str(path), batch=1, input_len=4, kv_pages="mine")
