"""`siltwin fidelity`: which card stands for which table, what it prints, its JSON, its plots and its errors."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from siltwin.emulator.spec import load_card
from siltwin.runtime.calibration.predict import predicted_ps
from siltwin.runtime.calibration.tables import read_table

Cli = Callable[..., Result]
GEMM = "gemm_dtype,m,n,k,latency_ms\n" + "".join(f"bfloat16,{m},4096,4096,{m / 1000 + 0.02}\n" for m in (1, 64, 4096))
DECODE = (
    "batch_size,num_heads,num_key_value_heads,step,latency_ms\n"
    "16,32,8,8191,0.9\n16,32,8,8191,1.1\n64,32,8,1023,0.3\n512,32,8,1023,9\n"
)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for device in ("h100_sxm", "a100_sxm", "strange"):
        (tmp_path / device).mkdir()
        (tmp_path / device / "gemm.csv").write_text(GEMM)
    for library in ("vllm", "trtllm"):
        (tmp_path / "h100_sxm" / f"generation_attention_{library}.csv").write_text(DECODE)
    return tmp_path


def entries(result: Result) -> list[dict]:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_every_device_is_compared_on_the_shipped_card_of_its_name(siltwin: Cli, data: Path) -> None:
    found = entries(siltwin("fidelity", "--data", str(data), "--json", "-"))
    assert [(each["card"], each["subset"], each["n"]) for each in found] == [
        ("a100-sxm", "gemm_all", 3),
        ("a100-sxm", "gemm_1k_16k", 3),
        ("h100-sxm", "gemm_all", 3),
        ("h100-sxm", "gemm_1k_16k", 3),
        ("h100-sxm", "decode_hd128", 3),  # a batch of 512 is outside of the subset
    ]


def test_an_error_is_that_of_the_emulated_instruction(siltwin: Cli, data: Path) -> None:
    scored = entries(siltwin("fidelity", "--card", "h100", "--data", str(data), "--json", "-"))[0]
    (table,) = read_table(data / "h100_sxm" / "gemm.csv")
    ratios = [
        own / theirs for own, theirs in zip(predicted_ps(table, load_card("h100")), table.latency_ps, strict=True)
    ]
    assert scored["mean_ape"] == pytest.approx(sum(abs(ratio - 1) for ratio in ratios) / 3)


def test_the_text_tells_what_was_left_out_and_how_far_repeats_lie_apart(siltwin: Cli, data: Path) -> None:
    result = siltwin("fidelity", "--data", str(data))
    text = " ".join(result.stdout.split())
    assert result.exit_code == 0, result.output
    assert "strange: left out, as no shipped card is called strange" in text
    assert "h100_sxm: kernels of trtllm left out, as the card emulates those of vllm" in text
    decode = next(line for line in result.stdout.splitlines() if "decode_hd128" in line)
    assert decode.split()[-1] == "10.0"  # 0.9 and 1.1 ms, each a tenth from their mean


def test_a_card_that_nobody_fitted_says_nothing_of_other_devices(siltwin: Cli, data: Path) -> None:
    result = siltwin("fidelity", "--card", "a100", "--data", str(data))
    assert "a100-sxm: its data sheet" in result.stdout and "h100-sxm gemm" not in result.stdout
    assert "h100_sxm: left out, as a100-sxm has no constants fitted" in " ".join(result.stdout.split())


def test_plots_are_written_one_a_comparison(siltwin: Cli, data: Path) -> None:
    plots = data / "plots"
    result = siltwin("fidelity", "--card", "h100", "--data", str(data / "h100_sxm"), "--plots", str(plots))
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in plots.iterdir()) == [
        f"h100-sxm-{subset}.png" for subset in ("decode_hd128", "gemm_1k_16k", "gemm_all")
    ]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in plots.iterdir())


def test_folders_without_a_row_to_compare_end_in_one_line(siltwin: Cli, data: Path) -> None:
    result = siltwin("fidelity", "--data", str(data / "strange"))
    assert result.exit_code == 2 and "no row can be compared; strange: left out, as no shipped card" in result.stderr


def test_a_calibrated_card_is_judged_by_rows_that_its_fit_did_not_see(siltwin: Cli, data: Path) -> None:
    sizes = [(m, n) for m in (1, 64, 512) for n in range(1024, 4096, 256)]
    rows = "".join(f"bfloat16,{m},{n},4096,{m * n / 3e7 + 0.02}\n" for m, n in sizes)
    (data / "h100_sxm" / "gemm.csv").write_text("gemm_dtype,m,n,k,latency_ms\n" + rows)
    (data / "h100_sxm" / "generation_attention_vllm.csv").unlink()
    card = str(data / "card.yaml")
    fitted = siltwin("calibrate", "--card", "h100", "--data", str(data), "--fit", "points", "--points", "5", "-o", card)
    assert fitted.exit_code == 0, fitted.output
    own = entries(siltwin("fidelity", "--card", card, "--data", str(data), "--json", "-"))
    rows = {each["card"]: each["n"] for each in own if each["subset"] == "gemm_all"}
    assert rows["a100-sxm"] == 3  # under the fit of the other card
    assert 0 < rows["h100-sxm"] <= len(sizes) - 5 and rows["h100-sxm"] % 3 == 0  # whole groups of three m
    every = siltwin("fidelity", "--card", card, "--data", str(data), "--training-rows", "--json", "-")
    assert entries(every)[-1]["n"] == len(sizes)


def test_servers_of_dense_models_are_compared_by_their_time_per_output_token(siltwin: Cli, tmp_path: Path) -> None:
    (tmp_path / "serving").mkdir()
    (tmp_path / "h100_sxm").mkdir()
    (tmp_path / "h100_sxm" / "gemm.csv").write_text(GEMM)
    head = "id,backend,model_path,system,gemm_quant_mode,isl,osl,batch_size,tp_size,pp_size,silicon_tpot_ms\n"
    models = ("meta-llama/Llama-3.1-8B-Instruct,h100_sxm", "deepseek-ai/DeepSeek-V3,h100_sxm", "Qwen/Qwen3-32B,abacus")
    rows = [f"{index},vllm,{model},,1024,128,4,1,1,8\n" for index, model in enumerate(models)]
    (tmp_path / "serving" / "servers.csv").write_text(head + "".join(rows))
    result = siltwin("fidelity", "--data", str(tmp_path))
    assert result.exit_code == 0, result.output
    tpot = next(line.split() for line in result.stdout.splitlines() if "tpot_dense" in line)
    assert tpot[1] == "1"  # the dense one alone
    assert float(tpot[2]) < 50  # weights of 16 GB at 3.35 TB/s are 4.8 ms
    assert "servers of abacus left out" in result.stdout


def test_tables_that_are_not_compared_are_not_read(siltwin: Cli, data: Path) -> None:
    for name in ("moe.csv", "generation_attention_trtllm.csv"):
        (data / "h100_sxm" / name).write_text("no,such,columns\n1,2,3\n")
    assert siltwin("fidelity", "--card", "h100", "--data", str(data), "--json", "-").exit_code == 0
    (data / "h100_sxm" / "generation_attention_vllm.csv").write_text("no,such,columns\n1,2,3\n")
    refused = siltwin("fidelity", "--card", "h100", "--data", str(data))
    assert refused.exit_code == 2 and "the column batch_size (sequences) is missing" in refused.stderr
