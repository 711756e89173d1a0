"""Profilers' exports become tables of the schema; what they do not tell is refused or left out."""

from pathlib import Path

import pytest

from siltwin.isa.errors import ConfigError
from siltwin.runtime.calibration.profiles import converted
from siltwin.runtime.calibration.tables import read_table

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


def rows_of(tmp_path: Path, tables: dict[str, str], name: str) -> list[tuple[object, ...]]:
    (tmp_path / name).write_text(tables[name])
    (table,) = read_table(tmp_path / name)
    columns = [table.columns[key].tolist() for key in table.columns if key != "kernel_source"]
    return list(zip(*columns, table.latency_ps.tolist(), strict=True))


def test_products_of_an_msprof_summary_are_read_from_their_shapes(tmp_path: Path) -> None:
    tables = converted(EXAMPLES / "msprof_op_summary.csv")
    assert tables.keys() == {"gemm.csv"}  # the norm, the attention and the grouped product are left out
    assert rows_of(tmp_path, tables, "gemm.csv") == [
        ("bf16", 256, 6144, 4096, pytest.approx(52.48e6)),  # [256, 4096] x [4096, 6144] in 52.48 us
        ("bf16", 256, 4096, 4096, pytest.approx(37.12e6)),  # a weight that lies as [n, k]
        ("fp16", 512, 1024, 2048, pytest.approx(18.5e6)),  # [2, 256, 2048] counts 512 rows
    ]


def test_nvtx_ranges_of_nsight_name_their_row_and_add_up_their_kernels(tmp_path: Path) -> None:
    tables = converted(EXAMPLES / "nsight_nvtx_kern_sum.csv")
    assert tables.keys() == {"gemm.csv", "generation_attention_vllm.csv"}
    # 10 times 24 us, and 10 times 18 + 2.5 us: a split product and its sum
    assert [row[1:] for row in rows_of(tmp_path, tables, "gemm.csv")] == [
        (64, 4096, 4096, pytest.approx(24e6)), (8, 4096, 14336, pytest.approx(20.5e6))
    ]  # fmt: skip
    (decode,) = rows_of(tmp_path, tables, "generation_attention_vllm.csv")
    assert decode == (16, 32, 8, 128, 0, "bf16", "bf16", 4095, pytest.approx(61.25e6))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Name,Total Time (ns)\nk,1\n", "neither msprof's op_summary"),
        ("NVTX Range,NVTX Inst,Total Time (ns)\nmy step,1,10\n", "no row tells its sizes"),
        ("NVTX Range,NVTX Inst,Total Time (ns)\ngemm m=1 n=2 k=3,0,10\n", "line 2: no time can be read"),
        (
            "OP Type,Task Duration(us),Input Shapes,Input Data Types,Output Shapes\n"
            'MatMulV2,12,"16,32;32,8",DT_COMPLEX;DT_COMPLEX,"16,8"\n',
            "line 2: no product can be read",
        ),
    ],
)
def test_what_is_no_known_export_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "export.csv"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said):
        converted(path)
