"""The Chrome trace is well formed, exact to the picosecond, and shows every queue, step and byte."""

import io
import json
from decimal import Decimal
from typing import Any, NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from siltwin.emulator.hbm import Hbm
from siltwin.runtime.report import StepReport
from siltwin.runtime.report_base import Bounds
from siltwin.runtime.trace import TraceNames, chrome_trace, write_trace


class TestSpan(NamedTuple):
    __test__ = False
    card: int
    queue: str
    call: int
    position: int
    mnemonic: str
    issue_ps: int
    start_ps: int
    end_ps: int
    bound: str
    late: int = -1


SPANS = [
    TestSpan(0, "tensor", 0, 0, "MATMUL", 0, 1_500, 4_000_001, "compute"),
    TestSpan(1, "tensor", 0, 0, "MATMUL", 0, 1_500, 4_000_003, "compute"),
    TestSpan(0, "link", 0, 1, "ALL_REDUCE", 4_000_001, 4_000_003, 9_123_456, "link", late=1),
    TestSpan(1, "link", 0, 1, "ALL_REDUCE", 4_000_003, 4_000_003, 9_123_456, "link"),
    TestSpan(0, "tensor", 1, 0, "MATMUL", 4_000_001, 9_123_456, 9_123_456, "dispatch"),
]
NAMED = [(span, "layer", f"{span.mnemonic} x, y") for span in SPANS]
STEPS = [
    StepReport(
        index=0,
        kind="prefill",
        start_ps=0,
        end_ps=9_123_456,
        tokens=7,
        sequences=1,
        bound="link",
        bounds=Bounds(link=9_123_456),
    )
]


def names() -> TraceNames:
    labels = {0: "card 0: ascend-910b2, stage 0", 1: "card 1: ascend-910b2, stage 0"}
    return TraceNames(labels, STEPS)


def history() -> list[tuple[int, int, str]]:
    hbm = Hbm(1 << 20, granule_bytes=1)
    weights = hbm.allocate(1000, owner="w", tag="weight", now_ps=0)
    page = hbm.allocate(64, owner="kv", tag="kv", now_ps=2_000_000)
    scratch = hbm.allocate(500, owner="a", tag="activation", now_ps=3_000_000)
    hbm.free(scratch, 3_000_000)
    hbm.free(page, 9_000_000)
    hbm.free(weights, 9_000_001)
    return list(hbm.history())


def trace() -> dict[str, Any]:
    return json.loads(json.dumps(chrome_trace(NAMED, {0: history()}, names())))


def events(phase: str) -> list[dict[str, Any]]:
    return [event for event in trace()["traceEvents"] if event["ph"] == phase]


def test_every_event_has_what_its_phase_wants() -> None:
    wanted = {
        "M": {"name", "pid", "args"},
        "X": {"name", "cat", "pid", "tid", "ts", "dur", "args"},
        "C": {"name", "pid", "ts", "args"},
    }
    for event in trace()["traceEvents"]:
        assert wanted[event["ph"]] <= event.keys()
        assert event["pid"] > 0 and event.get("tid", 1) > 0
        assert event.get("ts", 0) >= 0 and event.get("dur", 0) >= 0


def test_a_card_is_a_process_and_a_queue_a_named_row() -> None:
    metadata = events("M")
    processes = {e["pid"]: e["args"]["name"] for e in metadata if e["name"] == "process_name"}
    rows = {e["tid"]: (e["pid"], e["args"]["name"]) for e in metadata if e["name"] == "thread_name"}
    assert processes == {1: "steps", 2: "card 0: ascend-910b2, stage 0", 3: "card 1: ascend-910b2, stage 0"}
    assert sorted(rows.values()) == [(1, "steps"), (2, "link"), (2, "tensor"), (3, "link"), (3, "tensor")]
    assert all(rows[event["tid"]][0] == event["pid"] for event in events("X"))


def test_microseconds_are_the_exact_decimal_of_the_picoseconds() -> None:
    spans = [event for event in events("X") if event["pid"] != 1]
    assert [event["ts"] for event in spans] == [0.0015, 0.0015, 4.000003, 4.000003, 9.123456]
    assert [event["dur"] for event in spans] == [3.998501, 3.998503, 5.123453, 5.123453, 0.0]
    assert [event["args"]["end_ps"] for event in spans] == [span.end_ps for span in SPANS]


@given(st.integers(0, 10**15 - 1), st.integers(0, 10**12))
def test_text_of_a_time_is_exact_up_to_a_thousand_seconds(start_ps: int, length_ps: int) -> None:
    span = TestSpan(0, "tensor", 0, 0, "ADD", start_ps, start_ps, start_ps + length_ps, "hbm")
    text = json.dumps(chrome_trace([(span, "b", "i")], {}, TraceNames({}, [])))
    event = json.loads(text, parse_float=Decimal)["traceEvents"][-1]
    assert event["ts"] * 10**6 == start_ps
    assert event["dur"] * 10**6 == length_ps


def test_rows_hold_no_overlap() -> None:
    ends_ps: dict[int, int] = {}
    for event in sorted(events("X"), key=lambda event: event["args"]["start_ps"]):
        assert event["args"]["start_ps"] >= ends_ps.get(event["tid"], 0)
        ends_ps[event["tid"]] = event["args"]["end_ps"]


def test_an_event_tells_its_block_its_bound_and_for_whom_it_waited() -> None:
    reduce = next(event for event in events("X") if event["name"] == "ALL_REDUCE" and event["pid"] == 2)
    assert reduce["args"] == {
        "block": "layer",
        "instruction": "ALL_REDUCE x, y",
        "call": 0,
        "position": 1,
        "bound": "link",
        "issue_ps": 4_000_001,
        "waited_ps": 2,
        "waited_for_card": 1,
        "start_ps": 4_000_003,
        "end_ps": 9_123_456,
    }
    assert all("waited_for_card" not in e["args"] for e in events("X") if e is not reduce and e["pid"] == 3)


def test_steps_have_a_row_of_their_own() -> None:
    step = next(event for event in events("X") if event["pid"] == 1)
    assert (step["name"], step["cat"], step["ts"], step["dur"]) == ("prefill 0", "prefill", 0.0, 9.123456)
    assert step["args"]["tokens"] == 7


def test_the_memory_counter_follows_the_allocator_and_shows_a_peak_of_no_duration() -> None:
    counters = events("C")
    assert {(e["pid"], e["name"]) for e in counters} == {(2, "HBM bytes")}
    assert [(e["ts"], e["args"]) for e in counters] == [
        (0.0, {"weight": 1000, "kv": 0, "activation": 0}),
        (2.0, {"weight": 1000, "kv": 64, "activation": 0}),
        (3.0, {"weight": 1000, "kv": 64, "activation": 500}),
        (3.0, {"weight": 1000, "kv": 64, "activation": 0}),
        (9.0, {"weight": 1000, "kv": 0, "activation": 0}),
        (9.000001, {"weight": 0, "kv": 0, "activation": 0}),
    ]


def test_a_card_without_spans_still_shows_its_memory() -> None:
    found = chrome_trace([], {4: [(0, 8, "weight")]}, TraceNames({}, []))["traceEvents"]
    assert {e["pid"] for e in found} == {1, 6}
    assert [e["args"] for e in found if e["ph"] == "C"] == [{"weight": 8}]


def test_the_written_file_is_the_same_trace() -> None:
    file = io.StringIO()
    write_trace(file, NAMED, {0: history()}, names())
    assert json.loads(file.getvalue()) == trace()


def test_an_empty_run_is_still_a_trace() -> None:
    file = io.StringIO()
    write_trace(file, [], {}, TraceNames({}, []))
    assert json.loads(file.getvalue())["traceEvents"][0]["args"] == {"name": "steps"}
