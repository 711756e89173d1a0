"""A sweep is the same runs one by one; what does not fit stands in it, and the reason for a bend is arithmetic."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from test_report import text_of

from siltwin.isa.errors import ConfigError
from siltwin.runtime import prepare, sweep
from siltwin.runtime.bend import why_it_bends
from siltwin.runtime.job import Job
from siltwin.runtime.render_sweep import print_sweep
from siltwin.runtime.report_base import Bounds
from siltwin.runtime.report_sweep import SweepPoint, SweepReport
from siltwin.runtime.run import run_job
from siltwin.runtime.sweep import Sweep, parse_sweep, run_sweep, with_axis

JOB = Job("Llama-3.1-405B", scale=True, layout="tp=1", payload=False, batch=4, input_len=16, output_len=2)


@pytest.fixture(scope="module")
def report() -> SweepReport:
    return run_sweep(JOB, parse_sweep("tp=1,2,3,4"))


def test_every_point_is_the_run_of_its_job(report: SweepReport) -> None:
    assert [(point.value, point.status) for point in report.points] == [
        (1, "ran"),
        (2, "ran"),
        (3, "refused"),
        (4, "ran"),
    ]
    for point in report.ran:
        alone = run_job(replace(JOB, layout=f"tp={point.value}")).report
        assert (point.elapsed_ps, point.ttft_s) == (alone.totals.elapsed_ps, alone.totals.ttft_mean_s)
        assert point.tpot_s == alone.totals.tpot_mean_s and point.cards == point.value
        assert point.tokens == 4 * 16 + 2 * 4
        rate = 72e12 / alone.totals.elapsed_ps
        assert (point.tokens_per_s, point.tokens_per_s_per_card) == (
            pytest.approx(rate),
            pytest.approx(rate / point.value),
        )
        assert point.peak_bytes == max(card.peak_bytes for card in alone.cards)
        assert point.bounds is not None and point.bounds.total_ps == point.elapsed_ps
    assert report.points[0].exposed_ps == 0 < report.points[1].exposed_ps  # type: ignore[operator]


def test_a_layout_that_does_not_fit_stands_with_the_legal_ones(report: SweepReport) -> None:
    assert "choose tp from 1, 2, 4" in str(report.points[2].reason) and report.points[2].elapsed_ps is None
    text = " ".join(text_of(print_sweep, report).split())
    assert "tp=3: tp=3 does not fit" in text and "Why it bends" in text and "tp 1 to 2:" in text


def test_memory_that_runs_out_stands_in_the_curve_with_what_was_missing() -> None:
    job = replace(JOB, overrides=(("hbm.capacity_bytes", "2MiB"), ("hbm.reserved_bytes", "0")))
    report = run_sweep(job, parse_sweep("batch=1,1024"))
    assert [point.status for point in report.points] == ["ran", "oom"]
    assert "out of memory on card 0" in str(report.points[1].reason) and "more would hold" in str(
        report.points[1].reason
    )
    assert report.points[1].tokens_per_s is None and report.why == ()


def test_a_model_is_opened_once(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Job] = []
    whole = prepare.checkpoint_of

    def counting(job: Job) -> Any:
        opened.append(job)
        return whole(job)

    monkeypatch.setattr(prepare, "checkpoint_of", counting)
    monkeypatch.setattr(sweep, "checkpoint_of", counting)
    run_sweep(replace(JOB, output_len=1), parse_sweep("input-len=8,16,24"))
    assert len(opened) == 1


@pytest.mark.parametrize(
    ("axis", "value", "field"),
    [
        ("batch", 7, "batch"),
        ("cached-len", 3, "cached_len"),
        ("chunk-tokens", 5, "chunk_tokens"),
        ("micro-batches", 2, "micro_batches"),
    ],
)
def test_an_axis_of_the_job_changes_that_alone(axis: str, value: int, field: str) -> None:
    assert Sweep(axis, (value,)).job(JOB, value) == replace(JOB, **{field: value})  # type: ignore[arg-type]


def test_an_axis_of_the_layout_keeps_the_others_and_lets_dp_follow() -> None:
    assert with_axis("tp=8,dp=16,ep=128", "tp", 4) == "dp=16,ep=128,tp=4"
    assert with_axis(None, "pp", 2) == "pp=2" and with_axis("pp=3+5, tp=2", "pp", 4) == " tp=2,pp=4"
    job = replace(JOB, layout="cards=4,tp=1")
    report = run_sweep(job, parse_sweep("tp=1,2"))
    assert [point.layout for point in report.points] == ["dp=4", "tp=2 dp=2"]
    assert [point.cards for point in report.points] == [4, 4]


@pytest.mark.parametrize(
    "text", ["tp", "speed=1,2", "tp=", "tp=1,x", "tp=-1", "=3", "batch=" + ",".join(map(str, range(1, 70)))]
)
def test_a_sweep_that_says_nothing_is_refused_in_words(text: str) -> None:
    with pytest.raises(ConfigError, match="--sweep"):
        parse_sweep(text)
    assert parse_sweep(" batch = 8, 2,8 ") == Sweep("batch", (8, 2))


def point(value: int, cards: int, **bounds: int) -> SweepPoint:
    held = Bounds(**bounds)
    rate = 1000 * 10**12 / held.total_ps
    return SweepPoint(
        value=value,
        status="ran",
        cards=cards,
        elapsed_ps=held.total_ps,
        tokens=1000,
        tokens_per_s=rate,
        tokens_per_s_per_card=rate / cards,
        bounds=held,
    )


def test_what_bends_a_curve_is_the_part_of_a_token_s_card_time_that_grew() -> None:
    # 8 ms on one card; on two 4 ms of computing became 4 ms of which 2 are computing, 1 link and 1 dispatch of 2
    one, two = point(1, 1, compute=8 * 10**9), point(2, 2, compute=4 * 10**9, link=10**9, dispatch=10**8)
    told = why_it_bends("tp", [two, one])
    # a token: 8 us on one card; then 5.1 ms on two cards, 10.2 us, of it 2 us of links (0.2 of dispatch is too little)
    assert told[0] == (
        "tp 1 to 2: 1.569x the tokens/s on 2x the cards; a token takes 10.20 us of cards, 1.275x as before: "
        "exposed communication +2 us"
    )
    assert told[1] == "most tokens/s of a card at tp=1 (125,000), most of all at tp=2 (196,078)"
    assert why_it_bends("tp", [one]) == ()


def test_a_curve_that_stays_straight_is_said_to_be() -> None:
    told = why_it_bends("dp", [point(1, 1, hbm=8 * 10**9), point(2, 2, hbm=4 * 10**9)])
    assert told[0].endswith("a token takes 8 us of cards, 1x as before, made of the same parts")
