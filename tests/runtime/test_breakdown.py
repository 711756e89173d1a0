"""Where time went: parts and instructions add up to what a slow reading of the spans gives, on either calendar."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from test_report import shown

from siltwin.emulator.span import BOUNDS
from siltwin.emulator.span_columns import CardColumns
from siltwin.emulator.spec import load_card
from siltwin.isa.dtype import BF16, DTYPES
from siltwin.isa.link import ALL_REDUCE
from siltwin.isa.operands import Ref
from siltwin.isa.vector import ADD
from siltwin.isa.work import GroupedShape, MatmulShape, Unit, Work
from siltwin.runtime.hidden import Hidden
from siltwin.runtime.job import Job
from siltwin.runtime.limiting import limits
from siltwin.runtime.report_base import Bounds
from siltwin.runtime.report_breakdown import PartReport
from siltwin.runtime.roofline import ceiling, peak_ops_per_s
from siltwin.runtime.run import RunResult, run_job
from siltwin.runtime.shape_text import ranged, shape_text

SIZES: dict[str, Any] = {"batch": 4, "input_len": 24, "output_len": 2, "payload": False}
X = Ref("x")
LAYOUT = "tp=2,pp=2,dp=2,ep=4"


@pytest.fixture(scope="module", params=["compiled", "simpy"])
def result(request: pytest.FixtureRequest) -> RunResult:
    return run_job(Job("DeepSeek-V3", scale=True, layout=LAYOUT, engine=request.param, **SIZES))


def slowly(result: RunResult, kind: str) -> Counter[str]:
    """Picoseconds of a phase by mnemonic: span after span, each gets what none that started before it had."""
    held: Counter[str] = Counter()
    for record in result.records:
        if record.step.kind != kind:
            continue
        reached = record.start_ps
        working = [span for span in record.spans if span.bound != "dependency" and span.end_ps > span.start_ps]
        for span in sorted(working, key=lambda span: (span.start_ps, -span.end_ps, span.card)):
            held[span.mnemonic] += max(0, span.end_ps - max(span.start_ps, reached))
            reached = max(reached, span.end_ps)
    return +held


@pytest.mark.parametrize("kind", ["prefill", "decode"])
def test_parts_sum_to_the_phase_and_to_each_bound(result: RunResult, kind: str) -> None:
    phase = getattr(result.report.phases, kind)
    parts = phase.breakdown.parts
    assert sum(part.time_ps for part in parts) == phase.elapsed_ps
    assert sum(part.share for part in parts) == pytest.approx(1)
    for name in BOUNDS:
        assert sum(getattr(part.bounds, name) for part in parts) == getattr(phase.bounds, name)
    assert {"attention latent", "routed experts", "shared experts", "collectives ep", "router"} <= {
        p.part for p in parts
    }


@pytest.mark.parametrize("kind", ["prefill", "decode"])
def test_instructions_hold_what_a_slow_reading_of_the_spans_gives_them(result: RunResult, kind: str) -> None:
    breakdown, held = getattr(result.report.phases, kind).breakdown, slowly(result, kind)
    found: Counter[str] = Counter()
    for one in breakdown.instructions:
        found[one.mnemonic] += one.time_ps
    assert len(breakdown.instructions) == 12 and breakdown.left_out > 0
    assert all(time_ps <= held[mnemonic] for mnemonic, time_ps in found.items())
    wires = sum(part.time_ps for part in breakdown.parts if part.part.startswith("collectives"))
    assert wires == sum(held[name] for name in ("all_reduce", "all_to_all", "all_gather", "send", "recv"))
    routers = next(part.time_ps for part in breakdown.parts if part.part == "router")
    assert held["route"] + held["tally"] <= routers


def test_an_instruction_is_counted_as_often_as_the_card_that_does_most_of_it(result: RunResult) -> None:
    phase = result.report.phases.decode
    assert phase is not None
    (add,) = [one for one in phase.breakdown.instructions if one.mnemonic == "add"]
    decodes = [record for record in result.records if record.step.kind == "decode"]
    counts = Counter(span.card for record in decodes for span in record.spans if span.mnemonic == "add")
    assert add.count == max(counts.values())
    assert add.shape.endswith(" bf16") and add.part == "norms and residuals" and add.bound == "dispatch"


def test_both_calendars_break_a_job_down_alike() -> None:
    jobs = (Job("Kimi-K3", scale=True, layout="tp=2,ep=2", engine=engine, **SIZES) for engine in ("simpy", "compiled"))
    one, other = (run_job(job).report.phases for job in jobs)
    assert one == other
    assert one.prefill is not None
    assert {"attention linear", "attention latent", "dense"} <= {part.part for part in one.prefill.breakdown.parts}


TIMELINE: Any = SimpleNamespace(
    sites=[
        SimpleNamespace(instruction=one)
        for one in (ADD(dst=X, a=X, b=X), ALL_REDUCE(x=X, group="tp"), ALL_REDUCE(x=X, group="ep"))
    ]
)


def card(*rows: tuple[int, int, int, int], ranks: tuple[int, ...] = (0,)) -> CardColumns:
    """A card of (site, issued, start, end): site 0 computes, 1 is an exchange over tp, 2 one over ep."""
    table = np.array([(0, 0, at, site, *times, 0, -1) for at, (site, *times) in enumerate(rows)], np.int64)
    return CardColumns(ranks, TIMELINE, (), ("tensor",), *table.reshape(-1, 9).T)


def test_communication_is_hidden_where_the_same_card_computes() -> None:
    busy = card((0, 0, 0, 10), (0, 8, 8, 12), (0, 20, 20, 30), (1, 2, 5, 15), (1, 15, 15, 19), (2, 24, 25, 35))
    idle = card((1, 0, 5, 15), ranks=(1, 2, 3))
    hidden = Hidden(4)
    hidden.add([([0], [busy]), ([1, 2, 3], [idle])])
    tp, ep = hidden.reports()
    # tp: 14 on card 0, 7 of it hidden (5 to 12), 3 waited; 10 on each of three more, all exposed, 5 waited
    assert (tp.axis, tp.time_ps, tp.hidden_ps, tp.exposed_ps, tp.waited_ps) == ("tp", 44 // 4, 7 // 4, 11 - 1, 18 // 4)
    assert (ep.axis, ep.time_ps, ep.hidden_ps, ep.exposed_ps, ep.waited_ps) == ("ep", 10 // 4, 5 // 4, 2 - 1, 1 // 4)


def test_steps_in_flight_together_hide_one_another_s_communication() -> None:
    hidden = Hidden(1)
    hidden.add([([0], [card((1, 0, 0, 10)), card((0, 4, 4, 20))])])
    (tp,) = hidden.reports()
    assert (tp.time_ps, tp.hidden_ps) == (10, 6)


def test_the_roofline_is_the_peak_or_the_bandwidth() -> None:
    npu = load_card("ascend-910b2")
    peak = npu.peak_ops_per_s(DTYPES["bf16"])
    memory = npu.hbm.attainable_bytes_per_s
    dense = ceiling(npu, Unit.TENSOR, BF16, 10**15, 10**6)
    assert dense is not None and dense.ops_per_s == peak and dense.bytes_per_s == pytest.approx(peak / 10**9)
    thin = ceiling(npu, Unit.TENSOR, BF16, 2 * 10**9, 10**9)
    assert (
        thin is not None and thin.bytes_per_s == pytest.approx(memory) and thin.ops_per_s == pytest.approx(2 * memory)
    )
    lanes = npu.cores.count * npu.vector.lanes_of(2) * npu.clock_hz
    assert peak_ops_per_s(npu, Unit.VECTOR, BF16) == lanes
    assert ceiling(npu, Unit.DMA, None, 0, 100) == (0.0, memory)
    assert ceiling(npu, Unit.LINK, BF16, 0, 100) is None


def test_shapes_are_told_with_the_numbers_that_differ_as_ranges() -> None:
    grouped = Work(Unit.TENSOR, dtype=BF16, shape=GroupedShape((5, 0, 1100), 7168, 2048))
    experts = shape_text(grouped, "packed_grouped_matmul")
    assert experts.pattern == "[{} rows x 2048] x {} of 3 experts [2048 x 7168] bf16"
    states = shape_text(grouped, "gated_delta")
    assert states == ("[{} rows x 2048] x {} of 3 groups [2048 x 7168] bf16", (1105, 2))
    plain = shape_text(Work(Unit.TENSOR, dtype=BF16, shape=MatmulShape(4096, 512, 7168)))
    assert ranged(plain.pattern, (4000,), (4096,)) == "[4,000-4,096 x 7168] x [7168 x 512] bf16"
    assert ranged(plain.pattern, (4096,), (4096,)) == "[4,096 x 7168] x [7168 x 512] bf16"


def test_the_page_of_a_run_without_numbers_tells_where_its_time_went(result: RunResult) -> None:
    text = " ".join(shown(result.report).split())
    for words in (
        "Critical time of decode, by part of the model",
        "Where they stand under the roofline in prefill",
        "Communication of prefill beside computation",
        "What limits decode",
        "of the time is held by launching instructions",
        "The largest is that of card",
    ):
        assert words in text
    assert max(map(len, shown(result.report).splitlines())) <= 80
    assert "Critical time" not in shown(result.report.model_copy(update={"payload": True}))


def test_parts_that_hold_no_share_worth_a_digit_are_not_named_as_what_limits() -> None:
    held = {"waiting": 552_000, "dense": 300, "head": 0}
    parts = [
        PartReport(part=part, time_ps=ps, share=ps / 10**6, bounds=Bounds(dependency=ps)) for part, ps in held.items()
    ]
    assert limits(parts, (), (), 10**6) == ("55.2 % of the time is held by waiting for others: waiting 55.2 %",)
