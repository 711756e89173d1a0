"""What is predicted for a measured row is what a program of its instructions takes on the card."""

from pathlib import Path

import numpy as np
import pytest

from siltwin.emulator.cluster import Cluster
from siltwin.emulator.spec import load_card, override
from siltwin.emulator.ticket import Submission
from siltwin.interconnect.cluster import make_cluster
from siltwin.isa.dtype import DTYPES
from siltwin.isa.program import Binding, Block, BoundShapes, Buffer, Call, Extent, Issue, Program, Space
from siltwin.isa.work import GroupedShape
from siltwin.runtime.calibration.expert_works import moe_block
from siltwin.runtime.calibration.fit import Sample, fit
from siltwin.runtime.calibration.predict import predicted_ps, predictor_of
from siltwin.runtime.calibration.rowwise_works import rowwise_block
from siltwin.runtime.calibration.tables import read_measured, read_table
from siltwin.runtime.calibration.works import (
    Extents,
    decode_block,
    gemm_block,
    mla_decode_block,
    mla_prefill_block,
    prefill_block,
)
from siltwin.runtime.node import collective_times_ps

HEADS = {"num_heads": 16, "num_key_value_heads": 4, "head_dim": 128, "window_size": 0}
TYPES = {"attn_dtype": "bf16", "kv_cache_dtype": "bf16"}
ROWS = {
    "gemm": ({"gemm_dtype": "bf16", "m": 300, "n": 512, "k": 1024}, gemm_block),
    "gemm_fp8": ({"gemm_dtype": "fp8_block", "m": 300, "n": 512, "k": 1024}, gemm_block),
    "context_attention_vllm": ({"batch_size": 3, "isl": 700, **HEADS, **TYPES}, prefill_block),
    "generation_attention_vllm": ({"batch_size": 5, "step": 999, **HEADS, **TYPES}, decode_block),
    "context_mla": (
        {"batch_size": 2, "isl": 700, "num_heads": 16, "tp_size": 8, "kv_cache_dtype": "bf16"},
        mla_prefill_block,
    ),
    "layers": ({"op_name": "gated", "dtype": "bf16", "num_tokens": 300, "width": 4096}, rowwise_block),
    "generation_mla": (
        {"batch_size": 5, "step": 999, "num_heads": 16, "tp_size": 8, "kv_cache_dtype": "bf16"},
        mla_decode_block,
    ),
    "moe": (
        {
            "kernel_source": "",
            "moe_dtype": "fp8",
            "num_tokens": 50,
            "hidden_size": 512,
            "inter_size": 1024,
            "topk": 4,
            "num_experts": 16,
            "moe_tp_size": 2,
            "moe_ep_size": 4,
            "distribution": "balanced",
        },
        moe_block,
    ),
}


def program_of(block: Block, extents: Extents) -> Program:
    chained = tuple(
        Issue("stream0", issue.instruction, (("stream0", place),)) for place, issue in enumerate(block.body)
    )
    block = Block(block.name, block.params, (), chained)
    buffers = tuple(Buffer(name, kind, Space.ACTIVATION) for name, kind in block.params)
    names = tuple(Extent(name, is_vector=name in ("q", "kv", "counts")) for name in extents)
    queues = tuple(queue.name for queue in load_card("h100-sxm").queues)
    call = Call(block.name, tuple(name for name, _ in block.params))
    return Program("p", queues, names, (), (), buffers, (block,), (call,))


@pytest.mark.parametrize("case", ROWS)
def test_a_row_is_predicted_as_its_program_runs(case: str, tmp_path: Path) -> None:
    row, block_of = ROWS[case]
    (tmp_path / f"{case.removesuffix('_fp8')}.csv").write_text(
        f"{','.join(row)},latency_ms\n{','.join(map(str, row.values()))},0.05\n"
    )
    (table,) = read_measured(tmp_path)
    card = load_card("h100-sxm")
    block, extents = block_of(row)
    cluster = Cluster(card, make_cluster("single", 1, 10**10, 10**6).topology())
    ticket = cluster.submit([Submission(0, program_of(block, extents), Binding(extents, {}), {})])
    cluster.run_until(ticket)
    assert predicted_ps(table, card).tolist() == [max(span.end_ps for span in ticket.spans)]
    assert len(ticket.spans) == len(block.body)


def test_a_collective_is_predicted_by_bytes_where_tables_count_elements(tmp_path: Path) -> None:
    rows = [("all_reduce", "half", 8, 1 << 20), ("all_reduce", "int8", 8, 1 << 21), ("alltoall", "half", 2, 1 << 20)]
    lines = "\n".join(",".join(map(str, row)) + ",0.1" for row in rows)
    (tmp_path / "nccl.csv").write_text(f"op_name,nccl_dtype,num_gpus,message_size,latency_ms\n{lines}\n")
    card, (reduced, exchanged) = load_card("h100"), read_measured(tmp_path)
    two_mib = collective_times_ps(card, "all_reduce", 8, [2 << 20])[0]
    assert predicted_ps(reduced, card).tolist()[0] == two_mib
    assert (
        predicted_ps(reduced, card).tolist()[1]
        == collective_times_ps(card, "all_reduce", 8, [2 << 20], DTYPES["int8"])[0]
    )
    assert predicted_ps(exchanged, card).tolist() == collective_times_ps(card, "all_to_all", 2, [2 << 20]).tolist()


def test_a_layer_of_experts_is_one_cards_even_part_of_the_choices() -> None:
    # 50 tokens choose 4 each: 200 rows over 4 cards are 50 on each one's 4 experts, of which half the width is here.
    block, extents = moe_block(ROWS["moe"][0])
    assert extents == {"tokens": (50,), "rows": (50,), "counts": (13, 13, 12, 12)}
    works = [issue.instruction.work(BoundShapes(block, {}, Binding(extents, {}))) for issue in block.body]
    assert [work.shape for work in works if isinstance(work.shape, GroupedShape)] == [
        GroupedShape((13, 13, 12, 12), 1024, 512),
        GroupedShape((13, 13, 12, 12), 512, 512),
    ]


def test_a_fit_finds_the_card_that_made_the_times(tmp_path: Path) -> None:
    sheet = load_card("h100")
    truth = {"start_cycles": 20_000.0, "step_cycles": 1500.0, "share": 0.5, "ramp_cycles": 60_000.0}
    hidden = override(sheet, {f"tuning.collective.{name}": str(value) for name, value in truth.items()})
    rows = [("all_gather", cards, 1 << power) for cards in (2, 4, 8) for power in range(10, 29, 2)]
    header = "op_name,num_gpus,message_size,latency_ms"
    (tmp_path / "nccl.csv").write_text("\n".join([header, *(f"{a},{b},{c},1" for a, b, c in rows)]))
    (table,) = read_table(tmp_path / "nccl.csv")
    measured = predicted_ps(table, hidden)
    found = fit(sheet, "collective", [Sample(predictor_of(table), measured, table.weights)], prior=0.01)
    assert np.abs(predicted_ps(table, found) / measured - 1).max() < 0.02
    for name, value in truth.items():
        assert getattr(found.tuning.collective, name) == pytest.approx(value, rel=0.1), name
    assert found.tuning.matmul == sheet.tuning.matmul


def test_row_wise_operators_fit_the_shares_of_bandwidth_that_made_their_times(tmp_path: Path) -> None:
    sheet = load_card("h100")
    hidden = override(sheet, {"tuning.vector.gate_share": "0.4", "tuning.vector.reduce_share": "0.3"})
    rows = [(op, tokens, width) for op in ("rmsnorm", "gated") for tokens in (1024, 8192) for width in (2048, 8192)]
    header = "op_name,num_tokens,width,latency_ms"
    (tmp_path / "layers.csv").write_text("\n".join([header, *(f"{a},{b},{c},1" for a, b, c in rows)]))
    (table,) = read_table(tmp_path / "layers.csv")
    samples = [Sample(predictor_of(table), predicted_ps(table, hidden), table.weights)]
    found = fit(sheet, "vector", samples, prior=0.01).tuning.vector
    assert found.gate_share == pytest.approx(0.4, rel=0.03) and found.reduce_share == pytest.approx(0.3, rel=0.05)
