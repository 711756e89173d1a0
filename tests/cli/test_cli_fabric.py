"""`siltwin fabric bench`, `siltwin fabric tune` and `siltwin cluster`: tables, JSON lists, drawings and errors."""

import json
import xml.dom.minidom
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from siltwin.interconnect.cluster import cluster_names, load_cluster

Cli = Callable[..., Result]
MATPLOTLIB_IS_MISSING = "needs matplotlib: pip install 'siltwin[plot]'"


def words(result: Result) -> str:
    assert result.exit_code == 0, result.output
    return " ".join(result.stdout.split())


def test_bench_prints_the_table_that_nccl_tests_users_know(siltwin: Cli) -> None:
    # 1 MiB over 8 ranks: 14 steps of 131,072 bytes at 50 GB/s and 500 ns are 43.7 us; 24.0 GB/s, on the bus 42.0.
    text = words(siltwin("fabric", "bench", "--cluster", "ring-8", "--sizes", "1MiB", "--algorithm", "ring"))
    assert "all_reduce on ring-8 (ring, 8 cards), 8 ranks 0-7" in text
    assert "size count time algbw busbw algorithm" in text
    assert "1 MiB 262,144 43.70 us 23.99 41.99 ring" in text
    assert "Busiest link at 1 MiB: card 0 > card 1, 1.750 MiB at 50 GB/s, in use 84.0 % of the time" in text
    assert "ideal ends: no dispatch" in text and "assumed (weakest evidence)" in text


def test_bench_tells_where_algorithms_cross_over(siltwin: Cli) -> None:
    text = words(siltwin("fabric", "bench", "--cluster", "ring-8", "--ranks", "8", "--sizes", "1KiB:1MiB"))
    assert "Fastest algorithm direct up to" in text and "compared: ring, direct" in text


def test_bench_json_on_stdout_is_the_list_alone(siltwin: Cli) -> None:
    result = siltwin(
        "fabric", "bench", "--cluster", "ring-8", "--sizes", "1KiB:4KiB", "--algorithm", "ring", "--json", "-"
    )
    rows = json.loads(result.stdout)
    assert [row["size_bytes"] for row in rows] == [1024, 2048, 4096]
    keys = ["collective", "algorithm", "ranks", "size_bytes", "time_ps", "algbw_bytes_per_s", "busbw_bytes_per_s"]
    assert all(list(row) == keys for row in rows)
    assert all(isinstance(row["time_ps"], int) for row in rows)


def test_bench_takes_a_card_a_group_and_a_dtype(siltwin: Cli) -> None:
    options = (
        "--card",
        "ascend-910b2",
        "--group",
        "0-3,6",
        "--dtype",
        "bf16",
        "--factor",
        "8",
        "--sizes",
        "1KiB:64KiB",
    )
    text = words(siltwin("fabric", "bench", "--cluster", "full-mesh-8", "--collective", "all-gather", *options))
    assert "5 ranks 0-3,6" in text and "bf16; ends: ascend-910b2, with its dispatch" in text


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("bench",), "Missing option '--cluster'"),
        (("bench", "--cluster", "ring-8", "--ranks", "9"), "error: --ranks 9: ring-8 has 8 cards; choose 1 to 8"),
        (("bench", "--cluster", "ring-8", "--group", "0,0"), "error: rank 0 stands twice in the group"),
        (("bench", "--cluster", "ring-8", "--sizes", "0KiB"), "must be a whole number of bytes from 1"),
        (("bench", "--cluster", "ring-8", "--plot", "curve.jpeg"), "end it in .png or .pdf or .svg"),
        (("bench", "--cluster", "ring-8", "--json", "/no/such/place.json"), "there is no directory '/no/such'"),
        (("tune", "--cluster", "ring-8", "--ranks", "1"), "must be from 2 to the cluster's 8 cards"),
        (("tune", "--cluster", "ring-8", "--collectives", "alreduce"), "did you mean all_reduce?"),
    ],
)
def test_errors_are_one_line_and_exit_2(siltwin: Cli, args: tuple[str, ...], message: str) -> None:
    result = siltwin("fabric", *args)
    assert result.exit_code == 2 and message in result.stderr and result.stdout == ""


def test_tune_writes_a_cluster_file_that_bench_and_run_take(siltwin: Cli, tmp_path: Path) -> None:
    file = tmp_path / "tuned.yaml"
    options = ("--collectives", "all_reduce,all_gather", "--sizes", "1KiB:16MiB", "-o", str(file))
    text = words(siltwin("fabric", "tune", "--cluster", "ring-8", *options))
    assert "messages emulated" in text and f"Written to {file}".replace(" ", "") in text.replace(" ", "")
    assert {row.collective for row in load_cluster(file).choices} == {"all_reduce", "all_gather"}
    text = words(siltwin("fabric", "bench", "--cluster", str(file), "--sizes", "1KiB,16MiB"))
    assert "1 KiB 256" in text and "direct" in text.split("Fastest")[0]


def test_cluster_lists_what_is_shipped(siltwin: Cli) -> None:
    text = words(siltwin("cluster"))
    assert all(name in text for name in cluster_names())
    report = json.loads(siltwin("cluster", "--json", "-").stdout)
    assert [entry["name"] for entry in report["clusters"]] == list(cluster_names())


def test_cluster_draws_one_and_says_what_its_wires_amount_to(siltwin: Cli, tmp_path: Path) -> None:
    # Two wires of 50 GB/s lead from cards 0-3 to cards 4-7; the furthest card is 4 links of 500 ns away.
    file = tmp_path / "ring.svg"
    text = words(siltwin("cluster", "ring-8", "--svg", str(file)))
    assert "0 - 1 - 2 - 3 - 4 - 5 - 6 - 7" in text
    assert "card-card 16 50 GB/s 500 ns" in text
    assert "bisection, cards 0-3 | the rest 100 GB/s exact minimum cut" in text
    assert "diameter 4 links" in text and "longest route's latency 2 us" in text
    assert "0 to 7 500 ns card 0 > card 7" in text
    drawing = xml.dom.minidom.parse(str(file))
    assert len(drawing.getElementsByTagName("circle")) == 8
    assert len([path for path in drawing.getElementsByTagName("path") if path.getAttribute("fill")]) == 8


def test_cluster_json_holds_the_figures(siltwin: Cli) -> None:
    detail = json.loads(siltwin("cluster", "ring-8", "--json", "-").stdout)
    assert detail["bisection_bytes_per_s"] == 100 * 10**9
    assert (detail["diameter_hops"], detail["diameter_latency_ps"]) == (4, 2 * 10**6)
    assert {number["path"] for number in detail["numbers"]} == {"link.bandwidth_bytes_per_s", "link.latency_ps"}


@pytest.mark.parametrize("name", cluster_names())
def test_every_shipped_cluster_is_drawn(siltwin: Cli, tmp_path: Path, name: str) -> None:
    file = tmp_path / "drawing.svg"
    assert name in words(siltwin("cluster", name, "--svg", str(file)))
    xml.dom.minidom.parse(str(file))


def test_a_drawing_without_matplotlib_says_what_to_install(siltwin: Cli, tmp_path: Path) -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        for args in (
            ("cluster", "ring-8", "--png", str(tmp_path / "a.png")),
            ("fabric", "bench", "--cluster", "ring-8", "--plot", str(tmp_path / "a.png")),
        ):
            result = siltwin(*args)
            assert result.exit_code == 2 and MATPLOTLIB_IS_MISSING in result.stderr
        return
    assert siltwin("cluster", "ring-8", "--png", str(tmp_path / "a.png")).exit_code == 0
    args = ("fabric", "bench", "--cluster", "ring-8", "--sizes", "1KiB,1MiB", "--plot", str(tmp_path / "b.png"))
    assert siltwin(*args).exit_code == 0
    assert all((tmp_path / name).read_bytes()[1:4] == b"PNG" for name in ("a.png", "b.png"))


def test_a_picture_of_no_cluster_is_refused(siltwin: Cli, tmp_path: Path) -> None:
    result = siltwin("cluster", "--svg", str(tmp_path / "a.svg"))
    assert result.exit_code == 2 and "--svg draws one cluster; name it" in result.stderr
