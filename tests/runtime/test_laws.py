"""Laws of a whole run: payload on and off, bytes on links, bytes in HBM, what fits and what does not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from checkpoints import save
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from siltwin.emulator.spec import load_card
from siltwin.isa.dtype import BF16, FP32
from siltwin.models.config import read_config
from siltwin.models.graph import build_graph, total_parameters
from siltwin.runtime.fits import fits, largest, largest_batch, largest_context, peaks, smallest_hbm, smallest_tp
from siltwin.runtime.job import Job
from siltwin.runtime.layout import Layout
from siltwin.runtime.plan import GRANULE_BYTES, JobPlan, Lengths
from siltwin.runtime.run import RunResult, run_job
from siltwin.runtime.scheduler import Scheduler

CONFIG = {
    "model_type": "llama",
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
PROMPTS = tuple(tuple(range(1, 1 + length)) for length in (3, 21, 50))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("laws"), "llama", 0)


def run(path: Path, **options) -> RunResult:
    given = {"layout": "tp=4,pp=2", "prompt_ids": PROMPTS, "max_new_tokens": 6, "ignore_eos": True}
    return run_job(Job(str(path), **{**given, **options}))


@pytest.mark.parametrize("chunk", [None, 16])
def test_payload_on_and_off_give_identical_spans(path: Path, chunk: int | None) -> None:
    on, off = (run(path, payload=payload, chunk_tokens=chunk) for payload in (True, False))
    assert {step.kind for step in on.report.steps} == (
        {"prefill", "decode"} if chunk is None else {"prefill", "mixed", "decode"}
    )
    assert on.spans == off.spans
    assert on.memory == off.memory
    numbers = {"requests", "host", "payload", "engine"}
    assert on.report.model_dump(exclude=numbers) == off.report.model_dump(exclude=numbers)


def test_one_token_more_moves_the_spans_it_touches(path: Path) -> None:
    one = run(path, payload=False)
    other = run(path, payload=False, prompt_ids=(*PROMPTS[:2], PROMPTS[2] + (9,)))
    first = [
        [(s.mnemonic, s.end_ps - s.start_ps) for s in r.records[0].spans if s.card == 0 and s.queue == "tensor"]
        for r in (one, other)
    ]
    assert [name for name, _ in first[0]] == [name for name, _ in first[1]]
    moved = {name for (name, a), (_, b) in zip(*first, strict=True) if a != b}
    assert "attention" in moved
    decodes = [r.records[1].spans for r in (one, other)]
    changed = {a.mnemonic for a, b in zip(*decodes, strict=True) if a.end_ps - a.start_ps != b.end_ps - b.start_ps}
    assert changed <= {"attention", "recv", "all_reduce", "send"}  # decode shapes differ in the context alone


def test_bytes_on_links_equal_the_closed_count(path: Path) -> None:
    """A ring all-reduce of S over n moves 2 (n - 1) S, an all-gather (n - 1) S, a stage boundary its hidden states."""
    report = run(path, payload=False, dtype="float32", max_new_tokens=1).report
    tokens, hidden, vocab, layers, sequences = 74, 48, 131, 3, 3
    rows = {(row.axis, row.kind): row for row in report.collectives}
    reduced = (2 * layers + 1) * 2 * 3 * tokens * hidden * 4
    assert rows["tp", "all_reduce"].bytes == reduced
    assert rows["tp", "all_gather"].bytes == 3 * sequences * vocab * 4
    assert rows["pp", "send_recv"].bytes == 4 * tokens * hidden * 4
    assert sum(link.bytes for link in report.links) == sum(row.bytes for row in report.collectives)
    assert rows["pp", "send_recv"].count == 4


def test_weights_and_kv_of_a_card_equal_the_closed_form_to_the_byte(path: Path) -> None:
    report = run(path, dtype="float32", kv_dtype="bfloat16", layout="tp=2", max_new_tokens=6).report
    hidden, width, heads, kv, dim, layers = 48, 56, 8, 2, 8, 3
    shard = layers * (
        2 * hidden + (heads + 2 * kv) // 2 * dim * hidden + hidden * heads // 2 * dim + 3 * hidden * width // 2
    )
    vocabulary = [66, 65]  # 131 rows over two ranks, for the embedding and for the head
    for card, rows in zip(report.cards, vocabulary, strict=True):
        assert card.by_tag["weight"] == 4 * (shard + hidden + 2 * rows * hidden)
        pages = [-(-(len(prompt) + 5) // 16) for prompt in PROMPTS]
        assert card.by_tag["kv"] == sum(pages) * 16 * layers * 2 * (kv // 2) * dim * 2
        assert sum(card.by_tag.values()) == card.peak_bytes
        assert card.live_at_end_bytes == 0


def test_memory_curves_return_to_zero_and_reach_the_peak(path: Path) -> None:
    result = run(path, payload=False)
    for card in result.report.cards:
        live = peak = 0
        for _, delta, _ in result.memory[card.rank]:
            live += delta
            peak = max(peak, live)
        assert (live, peak) == (0, card.peak_bytes)


def plan_of(layout: Layout, sequences: tuple[Lengths, ...], **changes) -> JobPlan:
    graph = build_graph(read_config(CONFIG))
    return JobPlan(graph, layout, load_card("reference-npu"), BF16, BF16, sequences, **changes)


def tried_batches(plan: JobPlan, one: int) -> list[int]:
    """The batches that a search tries where none fits and a sequence is said to need `one` bytes, two the double."""
    tried: list[int] = []

    def works(candidate: JobPlan) -> bool:
        tried.append(len(candidate.sequences))
        return False

    assert largest_batch(plan, works, lambda candidate: one * len(candidate.sequences)) == 0
    return tried


lengths = st.builds(Lengths, st.integers(1, 90), st.integers(1, 60), st.integers(0, 90))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from([Layout(), Layout(tp=2), Layout(tp=4, pp=2), Layout(pp=3), Layout(tp=8)]),
    st.lists(lengths, min_size=1, max_size=5).map(tuple),
    st.one_of(st.none(), st.integers(1, 64)),
    st.sampled_from([BF16, FP32]),
)
def test_the_smallest_hbm_fits_and_one_granule_less_does_not(layout, sequences, chunk, kv_dtype) -> None:
    plan = replace(plan_of(layout, sequences, chunk_tokens=chunk), kv_dtype=kv_dtype)
    smallest = smallest_hbm(plan)
    assert fits(plan, smallest)
    assert not fits(plan, smallest - GRANULE_BYTES)
    assert max(peak.high_water_bytes for peak in peaks(plan)) == smallest


@pytest.mark.parametrize("layout", ["tp=1", "tp=2,pp=2"])
def test_limits_hold_in_a_run(path: Path, layout: str) -> None:
    """The HBM that limits name holds the run itself; a granule less ends in an OOM report that says the same."""
    options = {"payload": False, "layout": layout, "max_new_tokens": 40}
    oom = run(path, **options, overrides=(("hbm.capacity_bytes", str(2 << 30)), ("hbm.reserved_bytes", str(2 << 30))))
    assert oom.report.oom is not None
    smallest = oom.report.oom.fits.smallest_hbm_bytes
    assert smallest is not None

    def at(capacity: int) -> RunResult:
        return run(path, **options, overrides=(("hbm.capacity_bytes", str(capacity)),))

    assert at(smallest).report.oom is None
    short = at(smallest - GRANULE_BYTES).report.oom
    assert short is not None and short.missing_bytes == GRANULE_BYTES
    assert (short.tag, short.step_kind, short.owner) == ("kv", "decode", f"request {short.request}")
    assert short.instruction is not None and "scatter" in short.instruction
    assert len(short.largest_live) == 10
    assert short.fits.smallest_hbm_bytes == smallest


def test_the_largest_batch_and_context_fit_and_one_more_does_not() -> None:
    plan = plan_of(Layout(), (Lengths(30, 20),) * 2)
    capacity = smallest_hbm(plan.with_lengths([Lengths(30, 20)] * 7))
    small = replace(
        plan, card=plan.card.model_copy(update={"hbm": plan.card.hbm.model_copy(update={"capacity_bytes": capacity})})
    )
    assert largest_batch(small) == 7
    for slack in (-1, 0, 1):  # no room for a second sequence, or not for one: nothing to draw a line through
        assert tried_batches(plan, one=plan.card.hbm.capacity_bytes + slack) == [1]
    context = largest_context(small)
    assert 50 <= context < 256
    rest = 19
    assert fits(small.with_lengths([Lengths(context - rest, 20)] * 2))
    assert not fits(small.with_lengths([Lengths(context - rest + 1, 20)] * 2))


def test_the_smallest_tp_fits_and_the_next_smaller_does_not() -> None:
    plan = plan_of(Layout(), (Lengths(30, 20),))
    capacity = smallest_hbm(replace(plan, layout=Layout(tp=4)))
    hbm = plan.card.hbm.model_copy(update={"capacity_bytes": capacity})
    small = replace(plan, card=plan.card.model_copy(update={"hbm": hbm}))
    assert smallest_tp(small) == 4
    assert not fits(replace(small, layout=Layout(tp=2)))


def test_weights_of_the_layout_sum_to_the_model() -> None:
    plan = plan_of(Layout(pp=3), (Lengths(4, 1),))
    held = sum(peak.by_tag["weight"] for peak in peaks(plan))
    assert held == 2 * total_parameters(plan.graph)


@settings(max_examples=30, deadline=None)
@given(st.lists(lengths, min_size=1, max_size=4).map(tuple), st.one_of(st.none(), st.integers(1, 40)))
def test_passing_over_steps_that_allocate_nothing_changes_no_peak(sequences, chunk) -> None:
    plan = plan_of(Layout(tp=2), sequences, chunk_tokens=chunk)
    requests, memory = plan.requests(), plan.memory(range(2), 1 << 40)
    scheduler = Scheduler(requests, chunk)
    memory.load(0)
    for request in requests:
        memory.grow_to(request, request.cached_len, 0)
    while (step := scheduler.next_step()) is not None:  # every step, as a run takes them
        memory.begin(step, requests, 0)
        for request in scheduler.complete(step, None):
            memory.release(request, 0)
    assert [hbm.high_water_bytes for hbm in memory.hbm.values()] == [p.high_water_bytes for p in peaks(plan)]
    assert [hbm.peak_by_tag for hbm in memory.hbm.values()] == [peak.by_tag for peak in peaks(plan)]


@given(st.integers(0, 300), st.integers(1, 200), st.integers(-5, 400), st.integers(1, 20))
def test_the_search_finds_the_turn_from_any_guess(turn: int, most: int, guess: int, step: int) -> None:
    asked: list[int] = []

    def works(n: int) -> bool:
        assert 1 <= n <= most
        asked.append(n)
        return n <= turn

    assert largest(works, most, guess, step) == min(turn, most)
    if guess == turn and 1 <= guess < most:
        assert len(asked) == 2


@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 1 << 9))
def test_a_turn_after_a_multiple_of_the_step_costs_no_more_for_a_longer_step(turn: int, guess: int, step: int) -> None:
    asked: list[int] = []

    def works(n: int) -> bool:
        asked.append(n)
        return n <= turn * step

    assert largest(works, 1 << 16, guess * step, step) == turn * step
    assert len(asked) <= 2 * abs(turn - guess).bit_length() + 4
