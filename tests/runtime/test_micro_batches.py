"""Micro-batches in flight: the same tokens, stages that work at once, and programs that never meet on one card."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from checkpoints import SIZES, save

from siltwin.emulator.intervals import covered_ps
from siltwin.isa.errors import ConfigError
from siltwin.runtime.fits import peaks
from siltwin.runtime.job import Job
from siltwin.runtime.lanes import Lanes
from siltwin.runtime.prepare import prepare
from siltwin.runtime.run import RunResult, run_job
from siltwin.runtime.scheduler import Request

LENGTHS = (20, 1, 22, 23, 9, 40)
PROMPTS = tuple(tuple((7 * index + 3 * n) % SIZES["vocab_size"] for index in range(n)) for n in LENGTHS)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("lanes"), "qwen2", 0)


def run(path: Path, layout: str, micro_batches: int, **changes: Any) -> RunResult:
    options = {"dtype": "float32", "kv_dtype": "float32", "prompt_ids": PROMPTS, "max_new_tokens": 6}
    job = Job(str(path), layout=layout, micro_batches=micro_batches, ignore_eos=True, **{**options, **changes})
    return run_job(job)


def tokens(result: RunResult) -> list[tuple[int, ...]]:
    return [request.tokens for request in result.report.requests]


@pytest.fixture(scope="module")
def expected(path: Path) -> list[tuple[int, ...]]:
    return tokens(run(path, "tp=1", 1))


@pytest.mark.parametrize(
    ("layout", "micro_batches", "chunk"),
    [("pp=2", 2, None), ("pp=3", 3, 8), ("pp=3", 2, 7), ("pp=3,dp=2", 3, 8), ("tp=2,pp=2", 4, None), ("tp=1", 2, None)],
)
def test_micro_batches_change_no_token_and_numbers_change_no_span(
    path: Path, expected: list, layout: str, micro_batches: int, chunk: int | None
) -> None:
    on = run(path, layout, micro_batches, chunk_tokens=chunk)
    assert tokens(on) == expected
    off = run(path, layout, micro_batches, chunk_tokens=chunk, payload=False)
    assert on.spans == off.spans and on.memory == off.memory
    assert all(card.live_at_end_bytes == 0 for card in on.report.cards)


def test_a_card_ends_one_program_before_it_begins_the_next_and_stages_overlap(path: Path) -> None:
    result = run(path, "pp=3", 3, chunk_tokens=8, payload=False)
    together = 0
    for card in range(3):
        own = [[span for span in record.spans if span.card == card] for record in result.records]
        for before, after in zip(own, own[1:], strict=False):
            assert max(span.end_ps for span in before) <= min(span.issue_ps for span in after)
    for before, after in zip(result.records, result.records[1:], strict=False):
        assert before.start_ps <= after.start_ps and before.end_ps <= after.end_ps
        together += after.start_ps < before.end_ps
    assert together > len(result.records) // 2


def test_prompts_pass_through_stages_side_by_side(path: Path) -> None:
    """8 prompts of 1024 tokens through 3 stages: 8 / 3 stage times alone, and (4 + 2) / 4 / 3 of that in quarters."""
    jobs = {
        m: Job("SmolLM2-135M", layout="pp=3", payload=False, batch=8, input_len=1024, output_len=0, micro_batches=m)
        for m in (1, 4)
    }
    one, four = (run_job(job).report for job in jobs.values())
    assert 0.5 * one.totals.elapsed_ps < four.totals.elapsed_ps < 0.7 * one.totals.elapsed_ps
    assert all(stage.idle_share > 0.6 for stage in one.stages)
    assert all(stage.idle_share < 0.5 for stage in four.stages)
    assert [stage.layers for stage in four.stages] == [10, 10, 10]


def test_chunks_of_one_prompt_follow_one_another_through_the_stages() -> None:
    options: dict[str, Any] = {"payload": False, "batch": 1, "input_len": 4096, "output_len": 0, "chunk_tokens": 512}
    one, three = (run_job(Job("SmolLM2-135M", layout="pp=3", micro_batches=m, **options)) for m in (1, 3))
    assert [record.step.tokens for record in three.records] == [512] * 8
    assert three.report.totals.elapsed_ps < 0.6 * one.report.totals.elapsed_ps


def test_stages_idle_while_the_chunks_of_a_prompt_fill_and_drain_them() -> None:
    """m equal chunks over p stages keep each busy for m of m + p - 1 turns: 2 / 3 idle of 1 chunk, 2 / 10 of 8.

    Later chunks see more context and take longer, so that stages wait for them: a chunk leaves a stage one chunk's time
    after it came from the stage before, or after the chunk before it left, whichever is later.
    """
    idle = {}
    for chunks in (1, 2, 4, 8):
        job = Job("SmolLM2-135M", layout="pp=3", payload=False, batch=1, input_len=8192, output_len=0,
                  chunk_tokens=8192 // chunks, micro_batches=3)  # fmt: skip
        result = run_job(job)
        assert len(result.records) == chunks
        left = [0] * 3
        for record in result.records:
            for stage in range(3):
                spans = [(span.start_ps, span.end_ps) for span in record.spans if span.card == stage]
                left[stage] = max(left[stage], left[stage - 1] if stage else 0) + covered_ps(spans)
        assert left[2] == pytest.approx(result.report.totals.elapsed_ps, rel=0.03)
        idle[chunks] = [stage.idle_share for stage in result.report.stages]
        assert all(2 / (chunks + 2) - 0.02 < share < 2 / (chunks + 2) + 0.08 for share in idle[chunks])
    for fewer, more in ((1, 2), (2, 4), (4, 8)):
        assert all(less < share for less, share in zip(idle[more], idle[fewer], strict=True))


def test_phases_count_time_once_and_their_bounds_add_up(path: Path) -> None:
    report = run(path, "pp=3", 3, chunk_tokens=8, payload=False).report
    found = [getattr(report.phases, kind) for kind in ("prefill", "mixed", "decode")]
    for phase in filter(None, found):
        assert phase.bounds.total_ps == phase.elapsed_ps <= report.totals.elapsed_ps


@pytest.mark.parametrize(("layout", "chunk"), [("pp=2", None), ("pp=3,dp=2", 8)])
def test_limits_follow_the_steps_of_the_run(path: Path, layout: str, chunk: int | None) -> None:
    result = run(path, layout, 2, chunk_tokens=chunk, payload=False)
    job = Job(str(path), layout=layout, micro_batches=2, chunk_tokens=chunk, prompt_ids=PROMPTS, max_new_tokens=6,
              ignore_eos=True, dtype="float32", kv_dtype="float32", payload=False)  # fmt: skip
    assert [card.peak_bytes for card in result.report.cards] == [need.peak_bytes for need in peaks(prepare(job).plan)]


def test_lanes_take_turns_and_wait_only_for_tokens() -> None:
    """Two lanes of a request each, prompts of 5 and 2 in chunks of 2: chunks follow at once, picks are waited for."""
    requests = [Request(0, 5, 2), Request(1, 2, 1)]
    lanes = Lanes(requests, 2, count=2)
    first, second = lanes.next_step(), lanes.next_step()
    assert first is not None and second is not None and lanes.next_step() is None, "two are in flight"
    assert [(s.lane, s.entries[0].start, s.entries[0].emits) for s in (first, second)] == [(0, 0, False), (1, 0, True)]
    assert lanes.complete(first, None) == []
    third = lanes.next_step()
    assert third is not None and (third.index, third.lane, third.entries[0].start) == (2, 0, 2)
    assert lanes.complete(second, None) == [requests[1]]
    fourth = lanes.next_step()
    assert fourth is not None and (fourth.entries[0].start, fourth.entries[0].emits) == (4, True)
    lanes.complete(third, None)
    assert lanes.next_step() is None, "the next token of the first lane hangs on the one in flight"
    lanes.complete(fourth, None)
    fifth = lanes.next_step()
    assert fifth is not None and fifth.kind == "decode"


def test_covered_time_counts_overlaps_once() -> None:
    assert covered_ps([(0, 5), (3, 9), (4, 6), (20, 21), (20, 20)]) == 10
    assert covered_ps([]) == 0


def test_no_micro_batch_at_all_is_refused() -> None:
    with pytest.raises(ConfigError, match="--micro-batches=0 must be from 1"):
        Job("SmolLM2-135M", micro_batches=0)
