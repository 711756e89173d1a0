"""Alerts: which card, step or request crossed a threshold first, and when, by the allocator's history and the steps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from siltwin.isa.errors import ConfigError
from siltwin.runtime.alerts import Alert, parse_alert
from siltwin.runtime.job import Job
from siltwin.runtime.run import RunResult, run_job

CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 1001,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e4,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
CAPACITY, RESERVED = 4 << 20, 1 << 20


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("alerts") / "config.json"
    path.write_text(json.dumps(CONFIG))
    return path


def run(model: Path, *alerts: str, **asked: Any) -> RunResult:
    overrides = (("hbm.capacity_bytes", str(CAPACITY)), ("hbm.reserved_bytes", str(RESERVED)))
    sizes = {"batch": 3, "input_len": 20, "output_len": 100, "layout": "pp=2"}
    return run_job(Job(str(model), payload=False, alerts=alerts, overrides=overrides, **{**sizes, **asked}))


def test_memory_is_crossed_when_the_allocator_first_holds_more(model: Path) -> None:
    result = run(model, layout="tp=1")
    starts = [record.start_ps for record in result.records]
    # the last page of each sequence is taken by the step that writes token 112
    (step,) = [record.step for record in result.records if record.step.entries[0].start == 112]
    held = RESERVED + sum(delta for ps, delta, _ in result.memory[0] if ps < starts[step.index])
    (alert,) = run(model, f"memory={held / CAPACITY}", layout="tp=1").report.alerts
    assert (alert.card, alert.step, alert.time_ps, alert.crossed) == (0, step.index, starts[step.index], 1)
    (below,) = run(model, f"memory={(held - 1) / CAPACITY}", layout="tp=1").report.alerts
    assert below.time_ps is not None and below.time_ps < starts[step.index], "a byte less, and a page earlier"
    assert alert.most == max(RESERVED + card.peak_bytes for card in result.report.cards) / CAPACITY


def test_memory_that_is_never_reached_is_no_alert(model: Path) -> None:
    (alert,) = run(model, "memory=1").report.alerts
    assert (alert.crossed, alert.card, alert.step, alert.time_ps) == (0, None, None, None)


def test_times_are_crossed_by_the_request_that_is_told_first(model: Path) -> None:
    report = run(model, chunk_tokens=20).report
    ttft = [request.ttft_s for request in report.requests]
    assert ttft[0] < ttft[1] < ttft[2]
    first, tpot = run(model, f"ttft={round(ttft[0] * 1e12)}ps", "tpot=1s", chunk_tokens=20).report.alerts
    assert (first.crossed, first.request, first.step, first.most) == (2, 1, 1, ttft[2])
    assert first.time_ps == report.steps[1].end_ps
    assert tpot.crossed == 0 and tpot.most == max(request.tpot_s for request in report.requests)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("heat=3", "--alert 'heat=3' names none of memory, ttft, tpot"),
        ("memory=1.2", "a share of a card's capacity is above 0 and at most 1"),
        ("memory=most", "'most' is not a number"),
        ("ttft=2", "a time is above 0 and has a unit, such as ms"),
        ("tpot=50 miles", "is not a number of picoseconds"),
    ],
)
def test_what_is_no_alert_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_alert(text)


def test_alerts_are_read_with_their_units() -> None:
    assert parse_alert("memory=0.9") == Alert("memory", 0.9)
    assert parse_alert("ttft=2s") == Alert("ttft", 2.0) and parse_alert(" tpot = 50ms ") == Alert("tpot", 0.05)
