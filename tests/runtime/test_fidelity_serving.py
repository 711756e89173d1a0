"""Rows of servers: read with their traps, and predicted from the programs that a server's steps run."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from siltwin.emulator.spec import load_card
from siltwin.isa.dtype import BF16
from siltwin.isa.errors import ConfigError
from siltwin.models.checkpoint import open_checkpoint
from siltwin.runtime.fabric.emulate import Fabric
from siltwin.runtime.fabric.messages import collective_of, message_of
from siltwin.runtime.fidelity.frameworks import framework_of, with_own_all_reduce
from siltwin.runtime.fidelity.serving import Tpot, emulated_tpot, predicted_tpot_ms
from siltwin.runtime.fidelity.serving_rows import ServingRow, measured_serving
from siltwin.runtime.job import Job
from siltwin.runtime.node import node_of
from siltwin.runtime.run import run_job

HEADER = "id,backend,model_path,system,gemm_quant_mode,isl,osl,batch_size,tp_size,pp_size,silicon_tpot_ms"
LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
ROW = ServingRow("a", "vllm", LLAMA, "h100_sxm", "", 1000, 100, 4, 1, 1, 8.0)


def emulated(row: ServingRow) -> Tpot:
    found = emulated_tpot(row, load_card("h100-sxm"), open_checkpoint("Llama-3.1-8B"))
    assert found is not None
    return found


def step_ms(**options: int) -> float:
    """What `siltwin run` takes for the first step of a job."""
    result = run_job(Job("Llama-3.1-8B", card="h100-sxm", payload=False, **options))
    return (result.records[0].end_ps - result.records[0].start_ps) / 1e9


def written(folder: Path, line: str) -> Path:
    path = folder / "rows.csv"
    path.write_text(f"{HEADER}\n{line}\n")
    return path


def test_a_row_says_its_model_precision_and_layout(tmp_path: Path) -> None:
    (row,) = measured_serving(written(tmp_path, f"x,trtllm,{LLAMA},h100_sxm,fp8,1024,128,8,2,1,9.5"), [])
    assert row == ServingRow("x", "trtllm", LLAMA, "h100_sxm", "fp8", 1024, 128, 8, 2, 1, 9.5)
    assert row.kv_dtype == "fp8"


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        (f"x,vllm,{LLAMA},h100_sxm,,1024,128,8,1,1,0.0095", r"rows.csv:2: .*0.0095.*another unit"),
        (f"x,vllm,{LLAMA},h100_sxm,,1024,128,8,1,1,nan", r"silicon_tpot_ms='nan'"),
        (f"x,vllm,{LLAMA},h100_sxm,,1024,128,0,1,1,9.5", r"batch_size='0' must be a whole number of at least 1"),
    ],
)
def test_a_wrong_row_is_refused_with_its_line(tmp_path: Path, line: str, wrong: str) -> None:
    with pytest.raises(ConfigError, match=wrong):
        measured_serving(written(tmp_path, line), [])


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (f"x,vllm,{LLAMA},h100_sxm,int3,1024,128,8,1,1,9.5", "gemm_quant_mode=int3 is none of .*fp8_block"),
        (f"x,mystery,{LLAMA},h100_sxm,,1024,128,8,1,1,9.5", "backend=mystery.*known: vllm, trtllm, sglang"),
        ("x,vllm,deepseek-ai/DeepSeek-V3,h100_sxm,,1024,128,,8,1,9.5", "deepseek-ai/DeepSeek-V3 is no dense model"),
    ],
)
def test_a_row_that_nothing_stands_for_is_left_out_and_told(tmp_path: Path, line: str, why: str) -> None:
    notes: list[str] = []
    assert measured_serving(written(tmp_path, line), notes) == ()
    assert len(notes) == 1 and re.search(f"rows.csv: 1 servers left out: {why}", notes[0])


def test_a_decode_step_takes_what_a_run_of_it_takes() -> None:
    found = emulated(ROW)
    assert found.decode_ms == pytest.approx(step_ms(batch=4, cached_len=1050, input_len=0, output_len=1), rel=1e-5)
    assert found.running == 4


def test_prompts_that_wait_for_no_decoding_add_their_own_steps() -> None:
    row = replace(ROW, backend="sglang")
    alone = step_ms(batch=4, input_len=1000, output_len=0)  # four prompts fit a chunk
    assert emulated(row).prompts_ms == pytest.approx(alone / 4 * 3 * row.peers / 100)  # of three peers


def test_small_sums_go_through_the_framework_and_large_ones_through_the_library() -> None:
    card = load_card("h100-sxm")
    cluster = with_own_all_reduce(node_of(card, 4))
    assert cluster.choose("all_reduce", 4, range(4), 64 << 10).algorithm == "direct"
    assert cluster.choose("all_reduce", 4, range(4), 64 << 20).algorithm != "direct"
    message = message_of(collective_of("all_reduce"), 64 << 10, BF16, range(4))
    found = Fabric(cluster, card).run(message, cluster.choose("all_reduce", 4, range(4), 64 << 10))
    steps_us = 2 * (card.link.latency_ps / 1e6 + 0.5)
    bytes_us = 2 * 3 * (64 << 10) / 4 / (0.75 * 450e9) * 1e6  # a quarter to and from each of three peers
    assert found.time_ps / 1e6 == pytest.approx(3 + steps_us + bytes_us, rel=1e-3)


def test_the_host_has_its_own_line() -> None:
    framework, found = framework_of("vllm"), emulated(ROW)
    assert found.host_ms == pytest.approx(1000 * (framework.step_s + 4 * framework.sequence_s))
    assert found.in_all_ms == found.decode_ms + found.prompts_ms + found.host_ms


def test_prompts_within_decode_steps_cost_less_than_alone_and_more_than_nothing() -> None:
    mixed = emulated(ROW)
    alone = step_ms(batch=1, input_len=1000, output_len=0)
    assert 0.5 * alone < mixed.prompts_ms * 100 / 3 / ROW.peers < alone


def test_no_more_sequences_run_than_the_cards_hold() -> None:
    row = replace(ROW, isl=8000, osl=1000, concurrency=256)
    found = emulated(row)
    kv_bytes = 9001 * 2 * 2 * 32 * 8 * 128  # of a sequence at its end
    room = 0.9 * 80 * 2**30 - 2 * 8.03e9  # without weights
    assert room / kv_bytes * 0.9 < found.running < room / kv_bytes


def test_a_server_of_longer_sequences_than_its_model_has_is_not_predicted() -> None:
    rows = [replace(ROW, model_path="Qwen/Qwen3-32B", isl=131_072, osl=4096), ROW]
    predicted = predicted_tpot_ms(rows, lambda system: load_card(system.replace("_", "-")))
    assert np.isnan(predicted[0])
    assert predicted[1] == pytest.approx(emulated(ROW).in_all_ms)


# The middle row of each framework, precision and number of cards of a public collection of servers without vLLM's fp8
# ones (ai-dynamo/aiconfigurator, Apache-2.0): isl, osl, concurrency, tp, milliseconds a token.
QWEN = "Qwen/Qwen3-32B"
SERVERS = (
    ("sglang", QWEN, "h100_sxm", "", 2048, 256, 128, 2, 58.383),
    ("sglang", QWEN, "h100_sxm", "", 2048, 256, 16, 8, 8.762),
    ("sglang", LLAMA, "h200_sxm", "fp8_block", 4000, 1000, 128, 1, 32.030),
    ("sglang", LLAMA, "h200_sxm", "fp8_block", 2000, 1000, 512, 4, 28.660),
    ("trtllm", LLAMA, "h100_sxm", "", 2048, 256, 16, 1, 10.876),
    ("trtllm", LLAMA, "h100_sxm", "", 2048, 256, 32, 4, 6.795),
    ("trtllm", QWEN, "h100_sxm", "fp8", 2048, 256, 128, 1, 102.765),
    ("trtllm", QWEN, "h100_sxm", "fp8", 2048, 256, 32, 8, 12.692),
    ("vllm", QWEN, "h100_sxm", "", 4096, 1024, 128, 2, 55.196),
    ("vllm", QWEN, "h100_sxm", "", 4096, 1024, 128, 8, 30.783),
)


@pytest.mark.long
def test_measured_servers_are_met_from_the_data_sheet() -> None:
    rows = [
        ServingRow("row", backend, model, system, quant, isl, osl, concurrency, tp, 1, tpot_ms)
        for backend, model, system, quant, isl, osl, concurrency, tp, tpot_ms in SERVERS
    ]
    predicted = predicted_tpot_ms(rows, lambda system: load_card(system.replace("_", "-")))
    errors = np.abs(predicted / [row.tpot_ms for row in rows] - 1)
    assert errors.mean() < 0.15
    assert errors.max() < 0.35
