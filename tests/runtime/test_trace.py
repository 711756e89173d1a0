"""The Chrome trace is well formed, exact to the picosecond, and shows every queue, step and byte."""

import io
import json
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from siltwin.emulator.hbm import Hbm
from siltwin.emulator.site import Site
from siltwin.emulator.span import BOUNDS
from siltwin.emulator.span_columns import CardColumns
from siltwin.isa.errors import ConfigError
from siltwin.isa.text import assemble
from siltwin.runtime import trace_file
from siltwin.runtime.power_curve import Curve
from siltwin.runtime.report import StepReport
from siltwin.runtime.report_base import Bounds
from siltwin.runtime.trace import TraceNames, write_trace
from siltwin.runtime.trace_file import write_run_trace

BODY = "tensor | matmul dst=%y a=%x w=%w bias=-\nlink | all_reduce x=%y group=tp"
QUEUES = ("tensor", "link")
LAYER = assemble(
    "\n".join(
        ["program p", *(f"queue {name}" for name in QUEUES), "group tp 2", "block layer"]
        + [f"param {name} : bf16[2, 2]" for name in "yxw"]
        + [BODY, "end"]
    )
).blocks[0]
TIMELINE: Any = SimpleNamespace(
    sites=[Site(LAYER, at, issue.queue, issue.instruction) for at, issue in enumerate(LAYER.body)]
)


def card(ranks: tuple[int, ...], *rows: tuple[str, int, int, int, int, int, str, int]) -> CardColumns:
    """What a card did: (queue, call, position, issued, start, end, bound, late)."""
    table = [
        (QUEUES.index(queue), call, position, position, *times, BOUNDS.index(bound), late)  # type: ignore[arg-type]
        for queue, call, position, *times, bound, late in rows
    ]
    return CardColumns(ranks, TIMELINE, (), QUEUES, *np.array(table, np.int64).reshape(-1, 9).T)


CARDS = [
    card(
        (0,),
        ("tensor", 0, 0, 0, 1_500, 4_000_001, "compute", -1),
        ("link", 0, 1, 4_000_001, 4_000_003, 9_123_456, "link", 1),
        ("tensor", 1, 0, 4_000_001, 9_123_456, 9_123_456, "dispatch", -1),
    ),
    card(
        (1,),
        ("tensor", 0, 0, 0, 1_500, 4_000_003, "compute", -1),
        ("link", 0, 1, 4_000_003, 4_000_003, 9_123_456, "link", -1),
    ),
]
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
    return TraceNames({0: "ascend-910b2, stage 0", 1: "ascend-910b2, stage 0"}, STEPS)


def history() -> list[tuple[int, int, str]]:
    hbm = Hbm(1 << 20, granule_bytes=1)
    weights = hbm.allocate(1000, owner="w", tag="weight", now_ps=0)
    page = hbm.allocate(64, owner="kv", tag="kv", now_ps=2_000_000)
    scratch = hbm.allocate(500, owner="a", tag="activation", now_ps=3_000_000)
    hbm.free(scratch, 3_000_000)
    hbm.free(page, 9_000_000)
    hbm.free(weights, 9_000_001)
    return list(hbm.history())


def written(steps: Any, histories: Any, named: TraceNames, curves: Any = None) -> str:
    file = io.StringIO()
    write_trace(file, steps, histories, named, curves)
    return file.getvalue()


def trace() -> dict[str, Any]:
    return json.loads(written([CARDS], {0: history()}, names()))


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
    assert [event["ts"] for event in spans] == [0.0015, 4.000003, 9.123456, 0.0015, 4.000003]
    assert [event["dur"] for event in spans] == [3.998501, 5.123453, 0.0, 3.998503, 5.123453]
    assert [event["args"]["end_ps"] for event in spans] == [4_000_001, 9_123_456, 9_123_456, 4_000_003, 9_123_456]


@given(st.integers(0, 10**15 - 1), st.integers(0, 10**12))
def test_text_of_a_time_is_exact_up_to_a_thousand_seconds(start_ps: int, length_ps: int) -> None:
    one = card((0,), ("tensor", 0, 0, start_ps, start_ps, start_ps + length_ps, "hbm", -1))
    text = written([[one]], {}, TraceNames({}, []))
    event = json.loads(text, parse_float=Decimal)["traceEvents"][-1]
    assert event["ts"] * 10**6 == start_ps
    assert event["dur"] * 10**6 == length_ps


def test_rows_hold_no_overlap() -> None:
    ends_ps: dict[int, int] = {}
    for event in sorted(events("X"), key=lambda event: event["args"]["start_ps"]):
        assert event["args"]["start_ps"] >= ends_ps.get(event["tid"], 0)
        ends_ps[event["tid"]] = event["args"]["end_ps"]


def test_an_event_tells_its_block_its_bound_and_for_whom_it_waited() -> None:
    reduce = next(event for event in events("X") if event["name"] == "all_reduce" and event["pid"] == 2)
    assert reduce["args"] == {
        "block": "layer",
        "instruction": "all_reduce x=%y group=tp",
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
    found = json.loads(written([], {4: [(0, 8, "weight")]}, TraceNames({}, [])))["traceEvents"]
    assert {e["pid"] for e in found} == {1, 6}
    assert [e["args"] for e in found if e["ph"] == "C"] == [{"weight": 8}]


def test_an_empty_run_is_still_a_trace() -> None:
    found = json.loads(written([], {}, TraceNames({}, [])))
    assert found["traceEvents"][0]["args"] == {"name": "steps"}


def named(steps: Any) -> dict[int, str]:
    found = json.loads(written(steps, {}, names()))["traceEvents"]
    return {e["pid"]: e["args"]["name"] for e in found if e["name"] == "process_name" and e["pid"] > 1}


def test_a_card_that_stands_for_others_says_for_which() -> None:
    row = ("tensor", 0, 0, 0, 0, 9, "hbm", -1)
    many = card(tuple(range(128)), row)
    assert named([[many], [many]]) == {2: "card 0 (stands for 128 cards: 0-127): ascend-910b2, stage 0"}
    changing = [[card((0, 1, 4), row), card((2, 3), row)], [card((0,), row), card((1, 2, 3, 4), row)]]
    assert named(changing) == {
        2: "card 0 (stands in steps 0 for 3 cards: 0-1,4): ascend-910b2, stage 0",
        3: "card 1 (stands for 4 cards: 1-4): ascend-910b2, stage 0",
        4: "card 2 (stands for 2 cards: 2-3)",
    }


class Ran(NamedTuple):
    """What the file of a trace is made from."""

    report: Any
    records: Any
    memory: Any
    power_curve: Any = None


def run_of(cards: list[CardColumns], count: int) -> Any:
    parts = [SimpleNamespace(rank=rank, stage=0) for rank in range(count)]
    report = SimpleNamespace(cards=parts, card=SimpleNamespace(name="npu"), steps=[])
    return Ran(report, [SimpleNamespace(columns=cards)], {rank: [(0, 8, "kv")] for rank in range(count)})


def test_a_huge_run_writes_as_many_cards_as_a_file_should_hold_and_others_when_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_file, "MOST_SPANS", 5)
    cards = [card((rank,), *[("tensor", 0, 0, n, n, n + 1, "hbm", -1) for n in range(2)]) for rank in range(4)]
    path, run = tmp_path / "trace.json", run_of(cards, 4)

    def written_cards() -> set[int]:
        return {e["pid"] - 2 for e in json.loads(path.read_text())["traceEvents"] if e["ph"] in "XC"}

    note = write_run_trace(str(path), run)
    assert written_cards() == {0, 1} and "cards 0-1 of 4: all have 8 spans" in str(note)
    assert write_run_trace(str(path), run, "2-3") is None and written_cards() == {2, 3}
    assert write_run_trace(str(path), run, "all") is None and written_cards() == {0, 1, 2, 3}
    folded = run_of([card((0, 1, 2, 3), ("tensor", 0, 0, 0, 0, 1, "hbm", -1))], 4)
    assert write_run_trace(str(path), folded, "3") is None and written_cards() == {0}
    with pytest.raises(ConfigError, match="cards 0 to 3, and no 9"):
        write_run_trace(str(path), run, "9")


def test_watts_and_the_clock_of_a_card_are_counters_of_its_process() -> None:
    curve = Curve(2 * 10**6, (90.0, 250.5), (None, 1_830_000_000), 300.0)
    found = json.loads(written([], {}, TraceNames({}, []), {3: curve}))["traceEvents"]
    counters = [(e["name"], e["pid"], e["ts"], e["args"]) for e in found if e["ph"] == "C"]
    assert counters == [
        ("watts", 5, 0.0, {"watts": 90.0}),
        ("watts", 5, 2.0, {"watts": 250.5}),
        ("clock MHz", 5, 2.0, {"MHz": 1830}),
    ]
