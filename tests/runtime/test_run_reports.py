"""What a run reports adds up: units and steps to the time that passed, links to collectives, missing bytes to a fit."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pytest

from siltwin.runtime.job import Job
from siltwin.runtime.report import OomReport
from siltwin.runtime.run import RunResult, run_job
from siltwin.runtime.trace import FIRST_CARD_PID
from siltwin.runtime.trace_file import write_run_trace

CONFIG = {
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 30001,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
SIZES = {"batch": 8, "input_len": 100, "output_len": 40}
RESERVED = 1 << 20
JOBS = [
    ("h100-sxm", None, {"chunk_tokens": 64}),
    ("ascend-910b2", "tp=2,pp=2", {}),
    ("ascend-910c", "tp=4", {"chunk_tokens": 150}),
    ("reference-npu", "pp=2", {"cached_len": 20}),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("reports") / "config.json"
    path.write_text(json.dumps(CONFIG))
    return path


def run(model: Path, card: str, layout: str | None = None, hbm_bytes: int = 0, **sizes) -> RunResult:
    small = (("hbm.capacity_bytes", str(hbm_bytes)), ("hbm.reserved_bytes", str(RESERVED)))
    job = Job(
        str(model), card, layout=layout, overrides=small if hbm_bytes else (), payload=False, **(SIZES | sizes)
    )  # fmt: skip
    return run_job(job)


@pytest.mark.parametrize(("card", "layout", "sizes"), JOBS)
def test_steps_tile_the_time_and_units_are_never_busier_than_it(model: Path, card, layout, sizes) -> None:
    report = run(model, card, layout, **sizes).report
    elapsed_ps, reached_ps = report.totals.elapsed_ps, 0
    for step in report.steps:
        assert step.start_ps == reached_ps
        assert step.bounds.total_ps == step.end_ps - step.start_ps
        reached_ps = step.end_ps
    assert reached_ps == elapsed_ps
    for part in report.cards:
        for use in part.units.values():
            assert use.utilisation * elapsed_ps <= use.busy_ps + 1e-6 * elapsed_ps
            assert use.busy_ps <= elapsed_ps
        assert sum(part.by_tag.values()) == part.peak_bytes
        assert part.live_at_end_bytes == 0
    assert sum(link.bytes for link in report.links) == sum(row.bytes for row in report.collectives)


@pytest.mark.parametrize(("card", "layout", "sizes"), JOBS)
def test_first_tokens_and_the_time_between_tokens_are_those_of_the_steps(model: Path, card, layout, sizes) -> None:
    report = run(model, card, layout, **sizes).report
    ends = [step.end_ps for step in report.steps]
    for request in report.requests:
        assert request.output_tokens == 41  # the prompt's own, and one a decode step
        first = round(request.ttft_s * 1e12)
        last = first + round(request.tpot_s * 40 * 1e12)
        assert min(abs(end - first) for end in ends) <= 1
        assert ends.index(min(ends, key=lambda end: abs(end - last))) == (
            ends.index(min(ends, key=lambda end: abs(end - first))) + 40
        )
    assert max(request.ttft_s for request in report.requests) == report.totals.ttft_max_s


@pytest.mark.parametrize(("card", "layout", "sizes"), JOBS)
def test_a_trace_has_rows_without_overlap_and_counters_that_reach_the_peak(
    model: Path, tmp_path: Path, card, layout, sizes
) -> None:
    result = run(model, card, layout, **sizes)
    path = tmp_path / "trace.json"
    write_run_trace(str(path), result)
    events = json.loads(path.read_text())["traceEvents"]
    rows, counters, power, named = defaultdict(list), defaultdict(list), defaultdict(list), set()
    for event in events:
        if event["ph"] == "X":
            rows[event["pid"], event["tid"]].append((event["args"]["start_ps"], event["args"]["end_ps"]))
        elif event["ph"] == "C":
            watched = counters if event["name"] == "HBM bytes" else power
            watched[event["pid"]].append(sum(event["args"].values()))
        else:
            named.add((event["pid"], event.get("tid")))
    written = sum(len(card) for record in result.records for card in record.columns)
    assert written + len(result.records) == sum(map(len, rows.values()))
    assert rows.keys() <= named
    for spans in rows.values():
        spans.sort()
        assert all(before[1] <= after[0] for before, after in zip(spans, spans[1:], strict=False))
    shown = {card.rank for record in result.records for card in record.columns}
    assert counters.keys() == power.keys() == {FIRST_CARD_PID + rank for rank in shown}
    for pid, history in counters.items():
        part = result.report.cards[pid - FIRST_CARD_PID]
        assert (max(history), history[-1]) == (part.peak_bytes, 0)


def place(oom: OomReport) -> tuple:
    return oom.card, oom.step, oom.tag, oom.owner, oom.requested_bytes


@pytest.mark.parametrize(
    ("layout", "kv_share", "sizes", "card", "kind"),
    [
        (None, 1.5, {}, 0, "load"),  # without half of what is no KV page
        (None, 0.9, {}, 0, "prefill"),
        (None, 0.02, {}, 0, "decode"),
        (None, 0.5, {"chunk_tokens": 64}, 0, "mixed"),
        (None, 0.9, {"cached_len": 100, "input_len": 0}, 0, "load"),
        ("pp=2", 0.02, {"batch": 32, "input_len": 20}, 1, "decode"),  # the second card alone holds 30,001 logits a row
        ("tp=2,pp=2", 0.02, {"batch": 32, "input_len": 20}, 2, "decode"),  # and of its pair the one with 15,001
    ],
)
def test_the_missing_bytes_let_that_allocation_pass_and_one_less_does_not(
    model: Path, layout, kv_share: float, sizes, card: int, kind: str
) -> None:
    whole = run(model, "reference-npu", layout, 1 << 30, **sizes).report.cards
    largest = max(whole, key=lambda part: part.peak_bytes)
    kv = largest.by_tag["kv"]
    taken = kv * kv_share if kv_share < 1 else kv + (largest.peak_bytes - kv) * (kv_share - 1)
    capacity = RESERVED + largest.peak_bytes - int(taken)
    oom = run(model, "reference-npu", layout, capacity, **sizes).report.oom
    assert oom is not None
    assert (oom.card, oom.step_kind) == (card, kind)
    assert oom.missing_bytes <= oom.requested_bytes
    assert oom.free_bytes == capacity - RESERVED - sum(oom.by_tag.values())
    enough = run(model, "reference-npu", layout, capacity + oom.missing_bytes, **sizes).report.oom
    assert enough is None or place(enough) != place(oom)
    short = run(model, "reference-npu", layout, capacity + oom.missing_bytes - 1, **sizes).report.oom
    assert short is not None
    assert (place(short), short.missing_bytes) == (place(oom), 1)
