"""Systolic arrays: cycles of another simulator to the cycle, through a program on a card, and what folds may save."""

import csv
from itertools import groupby
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siltwin.emulator.cluster import Cluster
from siltwin.emulator.spec import CardSpec, load_card, override
from siltwin.emulator.ticket import Submission
from siltwin.emulator.units.demand import demand
from siltwin.interconnect.cluster import make_cluster
from siltwin.isa.dtype import BF16, DTYPES
from siltwin.isa.errors import ConfigError
from siltwin.isa.program import Binding
from siltwin.isa.text import assemble
from siltwin.isa.work import GroupedShape, MatmulShape, Unit, Work

DATA = Path(__file__).parent / "data"
ARRAY = load_card(DATA / "systolic.yaml")
DATAFLOWS = {"os": "output_stationary", "ws": "weight_stationary", "is": "input_stationary"}
with (DATA / "scalesim_cycles.csv").open() as table:
    ROWS = sorted(csv.DictReader(table), key=lambda row: (row["rows"], row["cols"], row["dataflow"]))
dataflows = st.sampled_from(sorted(DATAFLOWS.values()))
sizes = st.one_of(st.integers(1, 70), st.sampled_from([127, 128, 129, 1000, 5000]))


def array(rows: int, columns: int, dataflow: str, **changes: str) -> CardSpec:
    shape = {"tensor.rows": str(rows), "tensor.columns": str(columns), "tensor.dataflow": dataflow}
    return override(ARRAY, shape | {key.replace("__", "."): value for key, value in changes.items()})


def alone_ps(card: CardSpec, m: int, n: int, k: int, dtype: str = "bf16") -> int:
    return demand(Work(Unit.TENSOR, dtype=DTYPES[dtype], shape=MatmulShape(m, n, k)), card).alone_ps


def run_cycles(card: CardSpec, shapes: list[tuple[int, int, int]]) -> list[float]:
    """Cycles of matrix products, each a span of one program on a card."""
    lines = ["program p", *(f"queue {queue.name}" for queue in card.queues)]
    operands = [("w", "weight", "{n}, {k}"), ("x", "activation", "{m}, {k}"), ("y", "activation", "{m}, {n}")]
    buffers = [
        (f"{name}{i}", f"bf16[{dims.format(m=m, n=n, k=k)}]", space)
        for i, (m, n, k) in enumerate(shapes)
        for name, space, dims in operands
    ]
    lines += [f"buffer {name} : {kind} {space}" for name, kind, space in buffers]
    lines += ["block b", *(f"param {name} : {kind}" for name, kind, _ in buffers)]
    lines += [f"tensor | matmul dst=%y{i} a=%x{i} w=%w{i} bias=-" for i in range(len(shapes))]
    program = assemble("\n".join([*lines, "end", "call b " + " ".join(name for name, _, _ in buffers)]))
    cluster = Cluster(card, make_cluster("single", 1, 10**9, 0).topology())
    ticket = cluster.submit([Submission(0, program, Binding({}, {}), {})])
    cluster.run_until(ticket)
    return [(span.end_ps - span.start_ps) / 1000 for span in sorted(ticket.spans, key=lambda span: span.start_ps)]


@pytest.mark.parametrize("dataflow", DATAFLOWS)
def test_serial_folds_take_the_cycles_of_scalesim(dataflow: str) -> None:
    seen = 0
    for (rows, columns), group in groupby(
        (row for row in ROWS if row["dataflow"] == dataflow), key=lambda row: (row["rows"], row["cols"])
    ):
        alike = list(group)
        found = run_cycles(
            array(int(rows), int(columns), DATAFLOWS[dataflow]),
            [(int(row["M"]), int(row["N"]), int(row["K"])) for row in alike],
        )
        assert found == [int(row["total_cycles"]) - int(row["stall_cycles"]) for row in alike]
        seen += len(alike)
    assert seen == 41


def test_a_pipelined_fold_follows_when_the_stream_before_it_is_through() -> None:
    # 32 x 32 outputs on 16 x 16 cells are four folds; 100 products stream by, 30 cycles of skew once.
    assert alone_ps(array(16, 16, "output_stationary", tensor__folds="pipelined"), 32, 32, 100) == (400 + 30 - 1) * 1000
    # 64 x 64 weights are 16 folds; 8 rows stream while the next weights take 16 cycles: 15 x 16 + 16 + 8 + 30.
    assert alone_ps(array(16, 16, "weight_stationary", tensor__folds="pipelined"), 8, 64, 64) == (294 - 1) * 1000


@settings(max_examples=80, deadline=None)
@given(
    dataflows, sizes, sizes, sizes, st.integers(0, 2), st.sampled_from(["1", "3", "8"]), st.sampled_from(["8", "4096"])
)
def test_pipelined_is_never_slower_and_no_size_makes_it_faster(
    dataflow: str, m: int, n: int, k: int, grown: int, cores: str, load: str
) -> None:
    changes = {"cores__count": cores, "cores__load_bytes_per_cycle": load, "sram__1__capacity_bytes": "2KiB"}
    serial = array(16, 8, dataflow, **changes)
    piped = array(16, 8, dataflow, **changes, tensor__folds="pipelined")
    assert alone_ps(piped, m, n, k) <= alone_ps(serial, m, n, k)
    more = [m, n, k]
    more[grown] += 1
    for card in (serial, piped):
        assert alone_ps(card, m, n, k) <= alone_ps(card, *more)
        assert alone_ps(card, m, n, k) >= 2 * m * n * k * 10**12 // card.peak_ops_per_s(BF16) - 1000
        assert alone_ps(override(card, {"cores.count": str(2 * card.cores.count)}), m, n, k) <= alone_ps(card, m, n, k)


def test_narrow_elements_stream_faster_and_wide_ones_slower() -> None:
    card = array(16, 16, "output_stationary")
    # One fold: 64 elements of K in 64, 32 or 256 cycles, then 30 of skew (each of 4 cycles where a step takes 4).
    assert [alone_ps(card, 16, 16, 64, dtype) for dtype in ("bf16", "int8", "fp32")] == [93_000, 61_000, 375_000]


def test_sums_that_the_accumulators_cannot_keep_are_loaded_and_stored_by_each_fold() -> None:
    small = {"cores__load_bytes_per_cycle": "32", "sram__1__capacity_bytes": "1KiB"}  # 16 rows of 16 sums
    card = array(16, 16, "weight_stationary", **small)
    # A fold of 32 rows takes 16 + 32 + 30 cycles; weights and rows are 1,536 bytes, sums there and back 4,096 more.
    assert alone_ps(card, 32, 16, 16) == (78 - 1) * 1000
    assert alone_ps(card, 32, 16, 32) == (2 * (1536 + 4096) // 32 - 1) * 1000
    assert alone_ps(card, 16, 16, 32) == (2 * (16 + 16 + 30) - 1) * 1000, "16 rows are kept"


def test_experts_follow_one_another_and_an_idle_one_takes_nothing() -> None:
    card = array(16, 16, "weight_stationary", tensor__folds="pipelined")
    one = alone_ps(card, 40, 64, 64) + 1000
    work = Work(Unit.TENSOR, dtype=BF16, shape=GroupedShape((40, 0, 40), 64, 64))
    assert demand(work, card).alone_ps == 2 * one - 1000


def test_folds_without_a_dataflow_are_refused() -> None:
    with pytest.raises(ConfigError, match="give tensor.dataflow too"):
        override(load_card("reference-npu"), {"tensor.folds": "serial"})
