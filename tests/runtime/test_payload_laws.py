"""Laws of numbers over random jobs: spans ignore them, batches ignore company, broken plans are noticed."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import SIZES, save
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from siltwin.isa.errors import ProgramError
from siltwin.runtime.job import Job
from siltwin.runtime.numbers import Numbers
from siltwin.runtime.prepare import prepare
from siltwin.runtime.run import RunResult, run_job
from siltwin.runtime.scheduler import Scheduler

VOCAB = SIZES["vocab_size"]
LAYOUTS = ["tp=1", "tp=2", "tp=4", "tp=8", "pp=2", "pp=3", "tp=2,pp=2", "tp=4,pp=3"]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("laws"), "qwen2", 0)


def ids(seed: int, *lengths: int) -> tuple[tuple[int, ...], ...]:
    draw = np.random.default_rng(seed)
    return tuple(tuple(draw.integers(0, VOCAB, length).tolist()) for length in lengths)


def run(path: Path, **options: Any) -> RunResult:
    return run_job(Job(str(path), **{"ignore_eos": True, **options}))


samplings = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.7, 1.5]),
        "top_k": st.sampled_from([0, 1, 7]),
        "top_p": st.sampled_from([1.0, 0.5]),
        "seed": st.integers(0, 2**63 - 1),
    }
)
prompts = st.builds(
    lambda seed, lengths, new: {"prompt_ids": ids(seed, *lengths), "max_new_tokens": new},
    st.integers(0, 99),
    st.lists(st.integers(1, 60), min_size=1, max_size=4),
    st.integers(1, 6),
)
sized = st.builds(
    lambda batch, cached, new, out: {"batch": batch, "cached_len": cached, "input_len": new, "output_len": out},
    st.integers(1, 3),
    st.integers(1, 40),
    st.integers(0, 20),
    st.integers(1, 5),
)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from(LAYOUTS),
    st.one_of(prompts, sized),
    samplings,
    st.one_of(st.none(), st.integers(1, 50)),
    st.sampled_from(["float32", "bfloat16", "float16"]),
)
def test_spans_and_bytes_are_the_same_with_and_without_numbers(path, layout, sequences, sampling, chunk, dtype) -> None:
    options = {"layout": layout, "chunk_tokens": chunk, "dtype": dtype, **sequences, **sampling}
    on, off = (run(path, payload=payload, **options) for payload in (True, False))
    assert on.spans == off.spans
    assert on.memory == off.memory
    numbers = {"requests", "host", "payload", "engine"}
    assert on.report.model_dump(exclude=numbers) == off.report.model_dump(exclude=numbers)
    assert all(len(set(request.tokens) - set(range(VOCAB))) == 0 for request in on.report.requests)


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_a_batch_of_eight_lengths_equals_each_of_them_alone(tmp_path: Path, family: str) -> None:
    path = save(tmp_path, family, 1)
    lengths = (1, 2, 3, 15, 16, 17, 40, 77)
    options = {"layout": "tp=2,pp=2", "dtype": "float32", "kv_dtype": "float32", "max_new_tokens": 8, "logits": True}
    together = run(path, prompt_ids=ids(3, *lengths), **options)
    assert together.logits is not None
    for index, prompt in enumerate(ids(3, *lengths)):
        alone = run(path, prompt_ids=(prompt,), **options)
        assert alone.logits is not None
        assert alone.report.requests[0].tokens == together.report.requests[index].tokens
        for name in ("logits", "decode_logits"):
            mine, theirs = together.logits[f"{name}_{index}"], alone.logits[f"{name}_0"]
            assert np.abs(mine - theirs).max() <= 2e-5 * theirs.std()


def test_a_sequence_ends_at_its_own_stop_token(tmp_path: Path) -> None:
    """What a model says without stopping tells where it must end once one of those tokens is its stop token."""
    free = run(save(tmp_path / "free", "qwen3", 2), prompt_ids=ids(5, 4, 9), max_new_tokens=20, layout="tp=2")
    said = [list(request.tokens) for request in free.report.requests]
    stop = said[0][5]
    path = save(tmp_path / "stops", "qwen3", 2, eos_token_id=[stop, VOCAB - 1])
    held = run(path, prompt_ids=ids(5, 4, 9), max_new_tokens=20, layout="tp=2", ignore_eos=False)
    for tokens, request in zip(said, held.report.requests, strict=True):
        ends = [at for at, token in enumerate(tokens) if token in (stop, VOCAB - 1)]
        assert list(request.tokens) == (tokens[: ends[0] + 1] if ends else tokens)
        assert request.finish_reason == ("stop" if ends else "length")
    assert len(held.report.requests[0].tokens) <= 6
    assert all(card.live_at_end_bytes == 0 for card in held.report.cards)


def test_sampled_tokens_follow_the_softmax_of_the_logits(path: Path) -> None:
    """1,500 seeded draws of one next token: every frequency within five standard errors of its probability."""
    prompt, draws, temperature = ids(9, 12)[0], 1500, 1.3
    options = {"dtype": "float32", "max_new_tokens": 1, "logits": True, "temperature": temperature}
    result = run(path, prompt_ids=(prompt,) * draws, **options)
    assert result.logits is not None
    scaled = result.logits["decode_logits_0"][0].astype(np.float64) / temperature
    probabilities = np.exp(scaled - scaled.max()) / np.exp(scaled - scaled.max()).sum()
    counted = Counter(request.tokens[0] for request in result.report.requests)
    for token, probability in enumerate(probabilities):
        error = (probability * (1 - probability) / draws) ** 0.5
        assert abs(counted[token] / draws - probability) < 5 * error + 1 / draws


@pytest.mark.parametrize("seed", range(3))
def test_top_k_and_top_p_draw_from_no_other_tokens(path: Path, seed: int) -> None:
    options = {"prompt_ids": ids(seed, 10) * 200, "max_new_tokens": 1, "dtype": "float32", "logits": True}
    result = run(path, **options, temperature=1.0, top_k=6, top_p=0.7, seed=seed)
    assert result.logits is not None
    logits = result.logits["decode_logits_0"][0].astype(np.float64)
    best = np.argsort(-logits)[:6]
    weights = np.exp(logits[best] - logits[best].max())
    shares = np.cumsum(weights / weights.sum())
    allowed = set(best[: int(np.searchsorted(shares, 0.7)) + 1].tolist())
    assert {request.tokens[0] for request in result.report.requests} == allowed


def numbers_of(path: Path, debug: bool = False, **options: Any) -> tuple[Numbers, Any, Any]:
    prepared = prepare(Job(str(path), **options))
    plan, requests = prepared.plan, prepared.requests()
    memory = plan.memory(range(plan.layout.cards))
    memory.load(0)
    return Numbers(plan, prepared.checkpoint, 0, debug), requests, memory


def decode_all(numbers: Numbers, requests: Any, memory: Any) -> list[list[int]]:
    scheduler = Scheduler(requests, numbers.plan.chunk_tokens)
    while (step := scheduler.next_step()) is not None:
        memory.begin(step, requests, 0)
        scheduler.complete(step, numbers.run(step, requests, memory.pool).picked)
    return [request.tokens for request in requests]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_debug_finds_no_unset_number_in_what_is_lowered(tmp_path: Path, family: str, layout: str) -> None:
    options = {"prompt_ids": ids(1, 1, 33, 18), "max_new_tokens": 3, "layout": layout, "chunk_tokens": 20}
    plain, debug = (decode_all(*numbers_of(save(tmp_path, family, 0), mode, **options)) for mode in (False, True))
    assert plain == debug


@pytest.mark.parametrize("layout", ["tp=1", "tp=2,ep=2", "tp=4,ep=2", "tp=4,pp=2"])
@pytest.mark.parametrize("family", ["qwen2_moe", "gpt_oss", "minimax_m2"])
def test_debug_finds_no_unset_number_among_experts(tmp_path: Path, family: str, layout: str) -> None:
    options = {"prompt_ids": ids(1, 1, 33, 18), "max_new_tokens": 3, "layout": layout, "chunk_tokens": 20}
    plain, debug = (decode_all(*numbers_of(save(tmp_path, family, 0), mode, **options)) for mode in (False, True))
    assert plain == debug


def overlapped(arena: Any, shift_bytes: int) -> Any:
    """The plan with the output of attention laid over the queries and keys that it still reads."""
    return replace(arena, offsets={**arena.offsets, ("layer", "attended"): arena.offsets["layer", "qkv"] + shift_bytes})


@pytest.mark.parametrize("shift_bytes", [0, 512, 1024])
def test_a_broken_arena_changes_the_numbers(path: Path, shift_bytes: int) -> None:
    options = {"prompt_ids": ids(1, 9, 30), "max_new_tokens": 6, "dtype": "float32"}
    sound = decode_all(*numbers_of(path, **options))
    numbers, requests, memory = numbers_of(path, **options)
    for key, lowered in numbers.plan._placed.items():
        numbers.plan._placed[key] = replace(lowered, arena=overlapped(lowered.arena, shift_bytes))
    try:
        broken = decode_all(numbers, requests, memory)
    except ProgramError:
        return
    assert broken != sound
