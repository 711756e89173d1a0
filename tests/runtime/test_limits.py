"""Limits: boundaries are those of runs, changes are what jobs so changed need, and the best layouts are the best."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from checkpoints import save
from click.testing import CliRunner
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from siltwin.cli import cli
from siltwin.isa.errors import ConfigError
from siltwin.runtime.fits import smallest_hbm
from siltwin.runtime.job import Job
from siltwin.runtime.layout import check_layout, parse_layout
from siltwin.runtime.legal_layouts import legal_layouts
from siltwin.runtime.limits import find_limits
from siltwin.runtime.prepare import checkpoint_of, prepare
from siltwin.runtime.report import Report
from siltwin.runtime.report_limits import Boundary, LimitsReport
from siltwin.runtime.room import room_of
from siltwin.runtime.run import run_job

GIB = 2**30


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("limits"), "llama", 0)


def small(model: str | Path, **asked: Any) -> Job:
    """A job on cards that hold some sequences of it more than asked."""
    sizes = {"batch": 3, "input_len": 20, "output_len": 9, "card": "reference-npu", "payload": False} | asked
    job = Job(str(model), **sizes)
    plan = prepare(job).plan
    most = smallest_hbm(plan.with_lengths([plan.sequences[0]] * 5))
    return replace(job, overrides=(("hbm.capacity_bytes", str(most)),))


def of(report: LimitsReport, size: str) -> Boundary:
    return next(boundary for boundary in report.boundaries if boundary.of == size)


def ran(job: Job) -> Report:
    return run_job(job).report


def check_batch(job: Job, report: LimitsReport) -> None:
    """The batch boundary against two whole runs."""
    boundary = of(report, "batch")
    assert boundary.last is not None and boundary.first is not None
    assert boundary.first.value == boundary.last.value + 1
    held = ran(replace(job, batch=boundary.last.value))
    assert held.oom is None
    assert held.steps[0].end_ps - held.steps[0].start_ps == boundary.last.step_ps
    assert max(card.peak_bytes for card in held.cards) == boundary.last.peak_bytes
    broken = ran(replace(job, batch=boundary.first.value)).oom
    assert broken is not None
    said = ("card", "step", "step_kind", "request", "tag", "owner", "requested_bytes", "missing_bytes", "by_tag")
    assert {name: getattr(boundary.first, name) for name in said} == {name: getattr(broken, name) for name in said}


def check_context(job: Job, report: LimitsReport) -> None:
    """The context boundary against two whole runs that grow what the job grows."""
    boundary, generated = of(report, "context"), (job.output_len or 0)
    grown = "input_len" if not job.cached_len else "cached_len"
    other = 0 if grown == "input_len" else job.input_len or 0
    if boundary.last is not None:
        assert ran(replace(job, **{grown: boundary.last.value - generated - other})).oom is None
    if boundary.first is not None:
        assert ran(replace(job, **{grown: boundary.first.value - generated - other})).oom is not None
    else:
        assert boundary.end is not None and boundary.last is not None


@pytest.mark.parametrize("layout", ["tp=1", "tp=2,pp=2", "tp=2,cp=2", "dp=2"])
def test_boundaries_are_those_of_runs(path: Path, layout: str) -> None:
    job = small(path, layout=layout)
    report = find_limits(job)
    check_batch(job, report)
    check_context(job, report)


@settings(
    max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(
    layout=st.sampled_from(["tp=1", "tp=2", "pp=3", "dp=2", "tp=2,pp=3", "cp=2", "tp=2,dp=2"]),
    kv_dtype=st.sampled_from(["bf16", "fp32", "fp8_e4m3", "int8"]),
    chunk=st.sampled_from([None, 8, 32]),
    policy=st.sampled_from(["paged", "preallocated", "virtual"]),
    lengths=st.tuples(st.integers(1, 40), st.integers(0, 12), st.integers(0, 40)),
)
@example(
    layout="cp=2", kv_dtype="bf16", chunk=8, policy="paged", lengths=(40, 8, 0)
)  # the bound of one card says too much
def test_boundaries_of_any_job_are_those_of_runs(path, layout, kv_dtype, chunk, policy, lengths) -> None:
    prompt, output, cached = lengths
    coded = kv_dtype not in ("bf16", "fp32")
    assume(not (coded and "cp" in layout))
    job = small(
        path,
        layout=layout,
        kv_dtype=kv_dtype,
        chunk_tokens=chunk,
        kv_policy=policy,
        kv_granule="4KiB" if policy == "virtual" else None,
        input_len=prompt,
        output_len=output,
        cached_len=cached,
    )
    report = find_limits(job)
    assert report.fits_as_asked
    if of(report, "batch").first is not None:
        check_batch(job, report)
    if cached == 0:
        check_context(job, report)


def test_helps_are_what_the_changed_jobs_need(path: Path) -> None:
    job = small(path, layout="tp=2,dp=2")
    before = smallest_hbm(prepare(job).plan)
    helps = {found.change: found for found in find_limits(job).helps}
    for change, fields in {
        "--kv-dtype int8": {"kv_dtype": "int8"},
        "--layout tp=2,pp=2,dp=2": {"layout": "tp=2,dp=2,pp=2"},
        "--layout tp=2,cp=2": {"layout": "tp=2,cp=2"},
        "--sequence-parallel": {"sequence_parallel": True},
    }.items():
        found, changed = helps[change], replace(job, **fields)
        assert found.need_bytes == smallest_hbm(prepare(changed).plan) == before - (found.saves_bytes or 0), change
        largest = prepare(replace(changed, batch=found.largest_batch)).plan
        assert smallest_hbm(largest) <= largest.card.hbm.capacity_bytes
        more = prepare(replace(changed, batch=(found.largest_batch or 0) + 1)).plan
        assert smallest_hbm(more) > more.card.hbm.capacity_bytes
    wide = {found.change: found.refused for found in find_limits(small(path, layout="tp=8")).helps}
    assert "tp=16 does not fit" in (wide["--layout tp=16"] or "") and wide["--layout tp=8,pp=2"] is None


def test_an_alert_of_memory_lowers_the_limits_to_where_a_run_crosses_none(path: Path) -> None:
    job = small(path)
    share = smallest_hbm(prepare(replace(job, batch=4)).plan) / int(job.overrides[0][1])
    alerted = replace(job, alerts=(f"memory={share + 1e-9}",))
    assert find_limits(job).fits.largest_batch == 5
    report = find_limits(alerted)
    assert report.fits.largest_batch == 4 and report.within == share + 1e-9
    assert [alert.crossed for alert in ran(replace(alerted, batch=4)).alerts] == [0]
    assert [alert.crossed for alert in ran(replace(alerted, batch=5)).alerts] == [1]
    with pytest.raises(ConfigError, match="limits tell no time"):
        find_limits(replace(job, alerts=("ttft=2s",)))


def test_best_is_what_asking_every_legal_layout_finds(path: Path) -> None:
    job = small(path, layout="tp=1")
    report = find_limits(replace(job, layout="best,cards=2"))
    found = {}
    for layout in ("tp=1", "tp=2", "pp=2", "dp=2"):
        plan = prepare(replace(job, layout=layout)).plan
        capacity, one = plan.card.hbm.capacity_bytes, plan.sequences[0]
        fitting = [n for n in range(1, 60) if smallest_hbm(plan.with_lengths([one] * n)) <= capacity]
        found[str(plan.layout)] = max(fitting, default=0)
    assert report.layouts is not None and report.layouts.legal == len(found) + 1 and not report.layouts.left_out
    assert found[report.layouts.best_batch] == max(found.values()) == report.fits.largest_batch
    assert report.layout.cards == 2


def test_the_fewest_cards_hold_the_job_and_the_next_fewer_do_not(path: Path) -> None:
    job = small(path, layout="tp=1")
    need = min(smallest_hbm(prepare(replace(job, layout=text)).plan) for text in ("tp=2", "pp=2", "cp=2", "dp=2"))
    tight = replace(job, layout="best,cards=8", overrides=(("hbm.capacity_bytes", str(need)),))
    boundary = of(find_limits(tight), "cards")
    assert boundary.last is not None and boundary.last.value == 2
    assert boundary.first is not None and boundary.first.value == 1


@pytest.mark.parametrize("model", ["Llama-3.1-405B", "DeepSeek-V3", "Kimi-K3", "gpt-oss-120b"])
def test_legal_layouts_are_those_that_a_job_takes(model: str) -> None:
    graph = checkpoint_of(Job(model)).graph
    legal = set(map(str, legal_layouts(graph, 8)))
    for tp, pp, dp, cp, ep in product((1, 2, 4, 8), repeat=5):
        if 8 % (tp * pp * dp * cp):
            continue
        text = f"tp={tp},pp={pp},dp={dp},cp={cp},ep={ep}"
        try:
            check_layout(parse_layout(text), graph, None)
        except ConfigError:
            assert text not in legal
        else:
            assert text in legal


def test_bounds_stay_below_what_cards_need() -> None:
    job = Job("OLMoE-1B-7B", payload=False, batch=16, input_len=100, output_len=4, scale=True)
    room = room_of(prepare(job).plan)
    graph = checkpoint_of(job).graph
    for layout in legal_layouts(graph, 4):
        plan = prepare(replace(job, layout=str(layout))).plan
        assert room.need_bytes(layout) + plan.card.hbm.reserved_bytes <= smallest_hbm(plan)


def test_what_cannot_fit_exits_3_with_the_report_and_tells_no_time(path: Path) -> None:
    """A card of which all but 4 KiB is reserved holds neither fewer sequences nor shorter ones."""
    sizes = ["--batch", "2", "--input-len", "8", "--output-len", "2", "--card", "reference-npu", "--json", "-"]
    tiny = ["--set", f"hbm.capacity_bytes={GIB + 4096}", "--set", f"hbm.reserved_bytes={GIB}"]
    limits = CliRunner().invoke(cli, ["limits", str(path), *sizes, *tiny])
    assert limits.exit_code == 3 and "cannot fit" in limits.stderr
    found = LimitsReport.model_validate_json(limits.stdout)
    assert not found.fits_as_asked and found.fits.largest_batch is None and found.fits.largest_context is None
    assert [boundary.last for boundary in found.boundaries] == [None] * 3
    assert of(found, "batch").first is not None and of(found, "context").first is not None
    ran_out = CliRunner().invoke(cli, ["run", str(path), "--no-payload", *sizes, *tiny])
    assert ran_out.exit_code == 3
    report = Report.model_validate_json(ran_out.stdout)
    assert report.oom is not None and report.steps == () and report.totals.elapsed_ps == 0
    best = CliRunner().invoke(cli, ["limits", str(path), *sizes, *tiny, "--layout", "best,cards=2"])
    assert best.exit_code == 3


def test_limits_of_what_fits_exit_0_whether_or_not_the_job_does(path: Path) -> None:
    job = small(path)
    sizes = ["--input-len", "20", "--output-len", "9", "--card", "reference-npu", "--json", "-"]
    tight = ["--set", f"hbm.capacity_bytes={job.overrides[0][1]}"]
    for batch, fits in ((5, True), (6, False)):
        result = CliRunner().invoke(cli, ["limits", str(path), "--batch", str(batch), *sizes, *tight])
        assert result.exit_code == 0 and LimitsReport.model_validate_json(result.stdout).fits_as_asked is fits


def test_layouts_beside_best_are_refused(path: Path) -> None:
    for text in ("best,tp=2", "best,cards=0", "best,cards=x"):
        with pytest.raises(ConfigError, match="beside best only cards=N"):
            find_limits(replace(small(path), layout=text))
