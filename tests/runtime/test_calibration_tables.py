"""Measured tables: what a row means, and what is no measurement."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from siltwin.isa.errors import ConfigError
from siltwin.runtime.calibration.schema import KINDS
from siltwin.runtime.calibration.tables import MeasuredTable, read_measured

GEMM = "gemm_dtype,m,n,k,latency_ms\n"
ROWS = "bfloat16,1,4096,4096,0.02\nbfloat16,64,4096,4096,0.03\n"


def folder(root: Path, device: str = "h100_sxm", **files: str) -> Path:
    (root / device).mkdir()
    for stem, text in files.items():
        (root / device / f"{stem}.csv").write_text(text)
    return root


def only(tables: list[MeasuredTable]) -> MeasuredTable:
    (table,) = tables
    return table


def refusal(root: Path, **files: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read_measured(folder(root, **files))
    return str(caught.value)


def test_a_row_is_what_its_columns_say_and_milliseconds_become_picoseconds(tmp_path: Path) -> None:
    table = only(read_measured(folder(tmp_path, gemm=GEMM + ROWS)))
    assert (table.device, table.card_name, table.op) == ("h100_sxm", "h100-sxm", "gemm")
    assert table.columns["m"].tolist() == [1, 64] and table.columns["gemm_dtype"].tolist() == ["bf16", "bf16"]
    assert table.latency_ps.tolist() == [20_000_000, 30_000_000] and table.lines.tolist() == [2, 3]


def test_a_device_folder_is_read_by_itself_and_compressed_files_alike(tmp_path: Path) -> None:
    whole = only(read_measured(folder(tmp_path, gemm=GEMM + ROWS)))
    (tmp_path / "h100_sxm" / "gemm.csv").unlink()
    (tmp_path / "h100_sxm" / "gemm.csv.gz").write_bytes(gzip.compress((GEMM + ROWS).encode()))
    again = only(read_measured(tmp_path / "h100_sxm"))
    assert np.array_equal(again.row_hashes, whole.row_hashes) and again.device == "h100_sxm"


def test_columns_that_are_not_there_have_stated_defaults(tmp_path: Path) -> None:
    text = "batch_size,num_heads,num_key_value_heads,step,latency_ms\n4,32,8,1023,0.02\n"
    table = only(read_measured(folder(tmp_path, generation_attention_vllm=text)))
    assert (table.op, table.library) == ("decode", "vllm")
    assert {name: values[0] for name, values in table.columns.items()} == {
        "kernel_source": "", "batch_size": 4, "num_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
        "window_size": 0, "attn_dtype": "bf16", "kv_cache_dtype": "bf16", "step": 1023,
    }  # fmt: skip
    assert "head_dim is not told: 128 is taken" in table.notes


def test_an_identical_row_is_dropped_and_a_repeat_is_kept_at_half_the_weight(tmp_path: Path) -> None:
    text = GEMM + ROWS + "bfloat16,1,4096,4096,0.02\nbfloat16,64,4096,4096,0.05\n"
    table = only(read_measured(folder(tmp_path, gemm=text)))
    assert table.latency_ps.tolist() == [2e7, 3e7, 5e7] and table.weights.tolist() == [1, 0.5, 0.5]
    assert "1 identical rows dropped (the first: line 4)" in table.notes
    assert table.noise == pytest.approx(0.25)  # 3 and 5 about 4


def test_collectives_of_one_file_are_a_table_each(tmp_path: Path) -> None:
    text = (
        "op_name,nccl_dtype,num_gpus,message_size,latency_ms\nall_reduce,half,8,1024,0.02\nalltoall,half,8,1024,0.02\n"
    )
    assert [table.op for table in read_measured(folder(tmp_path, nccl=text))] == ["all_reduce", "all_to_all"]


def test_a_hash_is_of_the_content_and_not_of_the_place_or_the_spelling(tmp_path: Path) -> None:
    first = only(read_measured(folder(tmp_path, "one", gemm=GEMM + ROWS)))
    other = "latency_ms,k,n,m,gemm_dtype\n0.03,4096,4096,64,bf16\n0.0301,4096,4096,64,bf16\n"
    second = only(read_measured(folder(tmp_path, "two", gemm=other).joinpath("two")))
    assert second.row_hashes[0] == first.row_hashes[1]
    assert second.row_hashes[1] not in first.row_hashes


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GEMM + ROWS + "bfloat16,8,4096,4096,0\n", "line 4: latency_ms='0' is not a time above 0"),
        (GEMM + ROWS + "bfloat16,8,4096,4096,nan\n", "line 4: latency_ms='nan'"),
        (GEMM + ROWS + "bfloat16,-8,4096,4096,0.02\n", "line 4: m='-8' is not a whole number of at least 1"),
        (GEMM + ROWS + "bfloat16,8.5,4096,4096,0.02\n", "line 4: m='8.5'"),
        (GEMM + ROWS + "bfloat16,many,4096,4096,0.02\n", "line 4: m='many'"),
        (GEMM + ROWS + "bf61,8,4096,4096,0.02\n", "line 4: gemm_dtype='bf61'; known: bf16"),
        (GEMM + ROWS + "bfloat16,8,4096,0.02\n", "line 4: has 4 cells, the header 5"),
        (GEMM + ROWS + "bfloat16,64,4096,4096,0.0601\n", "line 4: the same key as line 3 took 2 times as long"),
        (
            GEMM + ROWS + "bfloat16,8,4096,4096,1e300\n",
            "line 4: latency_ms='1e300' is not a time above 0 and below 1e+07",
        ),
        (GEMM + ROWS + "bfloat16,1_000,4096,4096,0.02\n", "line 4: m='1_000'"),
        (GEMM + ROWS + f"{'x' * 200_000},8,4096,4096,0.02\n", "gemm.csv: cannot be read as CSV: field larger"),
        (GEMM, "has no rows"),
        ("gemm_dtype,m,n,latency_ms\nbf16,1,1,1\n", "the column k (columns of the input) is missing"),
        ("gemm_dtype,m,n,k,latency_us\nbf16,1,1,1,1\n", "latency_us would have to be converted"),
    ],
)
def test_what_is_no_measurement_is_refused_with_its_line_and_the_reason(tmp_path: Path, text: str, said: str) -> None:
    assert said in refusal(tmp_path, gemm=text)


def test_sizes_that_contradict_each_other_are_no_measurement(tmp_path: Path) -> None:
    decode = "batch_size,num_heads,num_key_value_heads,step,latency_ms\n4,32,5,1023,0.02\n"
    said = refusal(tmp_path, generation_attention_vllm=decode)
    assert "line 2: num_heads=32 is no multiple of num_key_value_heads=5" in said
    experts = "num_tokens,hidden_size,inter_size,topk,num_experts,latency_ms\n16,4096,1024,8,1000000000000,0.1\n"
    (tmp_path / "other").mkdir()
    said = refusal(tmp_path / "other", moe=experts)
    assert "line 2: topk=8 of num_experts=1000000000000" in said


def test_a_damaged_archive_is_no_table(tmp_path: Path) -> None:
    file = folder(tmp_path) / "h100_sxm" / "gemm.csv.gz"
    packed = gzip.compress((GEMM + ROWS).encode())
    file.write_bytes(packed[:14] + bytes([255] * 20) + packed[34:])
    with pytest.raises(ConfigError, match="cannot be read as CSV"):
        read_measured(tmp_path)


def test_two_files_of_one_table_are_refused_and_so_are_two_names_of_one_card(tmp_path: Path) -> None:
    folder(tmp_path, gemm=GEMM + ROWS)
    folder(tmp_path, "h100", gemm=GEMM + ROWS)
    with pytest.raises(ConfigError, match="holds gemm of the same card"):
        read_measured(tmp_path)
    (tmp_path / "h100_sxm" / "gemm.csv.gz").write_bytes(gzip.compress((GEMM + ROWS).encode()))
    with pytest.raises(ConfigError, match="holds gemm of the same card"):
        read_measured(tmp_path / "h100_sxm")


def test_a_folder_without_tables_says_what_is_known(tmp_path: Path) -> None:
    assert "generation_attention_LIBRARY" in refusal(tmp_path, notes="a\n1\n")


FULL = "bfloat16,4096,8192,8192,1.0\n"  # 0.55 TFLOP: 0.556 ms at the peak of an H100, 23 is 40 times that and a launch


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GEMM + ROWS + FULL.replace("1.0", "0.0010"), "line 4: 0.001 ms, and h100-sxm cannot compute it in less than"),
        (GEMM + ROWS + FULL.replace("1.0", "1000"), "line 4: 1e+03 ms, over 23 ms"),
        (GEMM + "bfloat16,1,4096,4096,0.00002\n", "line 2: 2e-05 ms is shorter than any launch takes"),
    ],
)
def test_a_time_in_another_unit_is_caught_by_what_the_card_can_do(tmp_path: Path, text: str, said: str) -> None:
    assert said in refusal(tmp_path, gemm=text)


def test_a_message_in_bytes_is_caught_by_the_links_and_by_two_types_that_take_as_long(tmp_path: Path) -> None:
    header = "op_name,nccl_dtype,num_gpus,message_size,latency_ms\n"
    # 512 MiB of fp16 between 8 cards in 1.4 ms; the links carry 7/8 of that in 1.04 ms, and of twice as much in 2.09 ms
    right = "all_gather,half,8,268435456,1.4\n"
    assert len(read_measured(folder(tmp_path, nccl=header + right))[0]) == 1
    wrong = right.replace("268435456", "536870912")
    (tmp_path / "h100_sxm" / "nccl.csv").write_text(header + wrong)
    with pytest.raises(
        ConfigError, match=r"line 2: 536870912 elements in 1.4 ms pass the links .* message_size in bytes"
    ):
        read_measured(tmp_path)
    slow = "all_gather,int8,8,16777216,0.31\nall_gather,half,8,16777216,0.32\n"
    (tmp_path / "h100_sxm" / "nccl.csv").write_text(header + slow)
    with pytest.raises(ConfigError, match="line 3: as many elements of one byte take as long as those of two"):
        read_measured(tmp_path)


def test_every_table_and_column_stands_in_the_documentation() -> None:
    text = (Path(__file__).parents[2] / "docs" / "calibration.md").read_text()
    for kind in KINDS:
        assert kind.stem.replace("(?P<library>[a-z0-9]+)", "LIBRARY") + ".csv" in text
        for column in kind.columns:
            assert f"`{column.name}`" in text, f"{kind.stem}: {column.name}"
