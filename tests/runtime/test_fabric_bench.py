"""The bench: sizes and bandwidths as nccl-tests counts them, emulated times, held to an independent simulator."""

import json
from pathlib import Path

import pytest

from siltwin.isa.errors import ConfigError
from siltwin.runtime.fabric.bench import Ask, BenchReport, run_bench

GIB = 1 << 30
LINK = """link:
  bandwidth_bytes_per_s: {{value: {bandwidth}, evidence: assumed, source: a test}}
  latency_ps: {{value: {latency}, evidence: assumed, source: a test}}
"""


def cluster(folder: Path, kind: str, cards: int, bandwidth: int = 10**10, latency: int = 10**6, more: str = "") -> str:
    """A user's own cluster file: links of `bandwidth` bytes a second and `latency` picoseconds."""
    file = folder / f"{kind}-{cards}.yaml"
    text = f"name: {kind}-{cards}\nkind: {kind}\ncards: {cards}\n" + LINK.format(bandwidth=bandwidth, latency=latency)
    file.write_text(text + more)
    return str(file)


def times(report: BenchReport) -> list[int]:
    return [row.time_ps for row in report.rows]


# From ASTRA-sim's analytical network (congestion aware, dataset_splits 1, links of 50 GiB/s and 500 ns, endpoint delay
# 1 ns), MIT licence, https://github.com/astra-sim/astra-sim: topology, cards, algorithm, collective, size_bytes, ns.
ASTRA_SIM = [
    ("ring", 4, "ring", "all_gather", 1048576, 60097),
    ("ring", 8, "ring", "all_reduce", 1024, 7043),
    ("ring", 8, "ring", "all_reduce", 33554432, 1100849),
    ("ring", 8, "ring", "all_reduce", 1073741824, 35009829),
    ("ring", 8, "ring", "all_to_all", 33554432, 2201529),
    ("full_mesh", 8, "direct", "all_reduce", 33554432, 157265),
    ("full_mesh", 8, "ring", "all_reduce", 33554432, 1100849),
    ("ring", 16, "ring", "reduce_scatter", 32768, 8086),
    ("full_mesh", 16, "direct", "all_gather", 32768, 1112),
    ("ring", 32, "ring", "all_gather", 33554432, 19390532),
    ("full_mesh", 32, "direct", "all_reduce", 1048576, 2223),
    ("full_mesh", 32, "direct", "reduce_scatter", 1073741824, 625601),
    ("full_mesh", 32, "ring", "reduce_scatter", 33554432, 621086),
    ("ring", 64, "ring", "all_reduce", 1048576, 101557),
    ("ring", 64, "ring", "reduce_scatter", 1073741824, 19722088),
    ("full_mesh", 64, "direct", "all_to_all", 1073741824, 313002),
]


@pytest.mark.parametrize(("kind", "cards", "algorithm", "collective", "size_bytes", "nanoseconds"), ASTRA_SIM)
def test_the_bench_agrees_with_astra_sim_to_one_percent(
    tmp_path: Path, kind: str, cards: int, algorithm: str, collective: str, size_bytes: int, nanoseconds: int
) -> None:
    if collective == "all_gather":
        size_bytes *= cards  # there it is what one rank puts in, here the whole buffer
    asked = Ask(
        cluster(tmp_path, kind, cards, 50 * GIB, 500_000), collective, sizes=str(size_bytes), algorithm=algorithm
    )
    assert times(run_bench(asked))[0] == pytest.approx(nanoseconds * 1000, rel=0.01)


def test_a_ring_all_reduce_is_timed_and_counted_by_hand(tmp_path: Path) -> None:
    # 8 MB over 4 ranks: 6 steps of 2 MB at 10 GB/s (200 us) and 1 us; every link carries 12 MB.
    asked = Ask(cluster(tmp_path, "ring", 4), sizes="8MB", algorithm="ring")
    (row,) = run_bench(asked).rows
    assert row.time_ps == 6 * (200 * 10**6 + 10**6)
    assert row.algbw_bytes_per_s == pytest.approx(8e6 / 1206e-6)
    assert row.busbw_bytes_per_s == pytest.approx(8e6 / 1206e-6 * 2 * 3 / 4)
    assert row.busiest is not None and row.busiest.bytes == 12 * 10**6
    assert row.busiest.utilisation == pytest.approx(1200 / 1206)


@pytest.mark.parametrize(
    ("collective", "algorithm", "microseconds", "factor"),
    [
        ("all_gather", "ring", 3 * 201, 3 / 4),  # 8 MB is the whole buffer: 3 steps of 2 MB
        ("reduce_scatter", "ring", 3 * 201, 3 / 4),
        ("all_to_all", "direct", 602, 3 / 4),  # 2 MB to each; a link ahead carries a neighbour's and two of two hops
        ("broadcast", "direct", 1602, 1.0),  # the root's two links carry 8 and 16 MB of it, two hops to the far card
        ("reduce", "direct", 1602, 1.0),
    ],
)
def test_sizes_mean_what_nccl_tests_means(
    tmp_path: Path, collective: str, algorithm: str, microseconds: int, factor: float
) -> None:
    asked = Ask(cluster(tmp_path, "ring", 4), collective, sizes="8MB", algorithm=algorithm)
    (row,) = run_bench(asked).rows
    assert row.time_ps == pytest.approx(microseconds * 10**6, rel=0.003)
    assert row.busbw_bytes_per_s == pytest.approx(row.algbw_bytes_per_s * factor)


def test_an_all_to_all_through_a_switch_is_held_by_every_port(tmp_path: Path) -> None:
    # Every port sends 7/8 of 8 MB and receives as much at 10 GB/s, over two links of 1 us: 700 us + 2 us.
    asked = Ask(cluster(tmp_path, "switch", 8), "all_to_all", sizes="8MB", algorithm="direct")
    assert times(run_bench(asked)) == [702 * 10**6]


def test_send_recv_takes_latency_and_bytes_over_bandwidth(tmp_path: Path) -> None:
    asked = Ask(cluster(tmp_path, "ring", 4), "send_recv", group="2,3", sizes="1MB")
    assert times(run_bench(asked)) == [10**6 + 100 * 10**6]


def test_json_is_exactly_the_list_of_rows(tmp_path: Path) -> None:
    report = run_bench(Ask(cluster(tmp_path, "ring", 4), sizes="8MB", algorithm="ring"))
    assert json.loads(report.to_json()) == [
        {
            "collective": "all_reduce",
            "algorithm": "ring",
            "ranks": 4,
            "size_bytes": 8 * 10**6,
            "time_ps": 1206 * 10**6,
            "algbw_bytes_per_s": pytest.approx(8e6 / 1206e-6),
            "busbw_bytes_per_s": pytest.approx(12e6 / 1206e-6),
        }
    ]


def test_sizes_that_do_not_divide_are_cut_to_whole_elements_and_dealt_unevenly(tmp_path: Path) -> None:
    # 4,099 bytes are 1,024 fp32; 1,022 of them over 4 ranks are shares of 256, 256, 255 and 255.
    name = cluster(tmp_path, "ring", 4)
    (row,) = run_bench(Ask(name, sizes="4099", algorithm="ring")).rows
    assert (row.message.size_bytes, row.message.count) == (4096, 1024)
    for collective in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        (row,) = run_bench(Ask(name, collective, sizes=str(4 * 1022))).rows
        assert row.message.size_bytes == 4088 and row.time_ps > 0


def test_a_message_of_fewer_elements_than_ranks_runs(tmp_path: Path) -> None:
    for collective in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"):
        (row,) = run_bench(Ask(cluster(tmp_path, "ring", 8), collective, sizes="4")).rows
        assert row.time_ps > 0


def test_one_rank_has_nothing_to_wait_for(tmp_path: Path) -> None:
    report = run_bench(Ask(cluster(tmp_path, "ring", 4), ranks=1, sizes="1MiB"))
    assert times(report) == [0] and report.rows[0].busiest is None and report.crossovers == ()


def test_a_group_keeps_its_order(tmp_path: Path) -> None:
    # 0, 2, 1, 3 round a ring of four crosses two links at every other step, and links then carry two messages.
    name = cluster(tmp_path, "ring", 4)
    natural, mixed = (
        times(run_bench(Ask(name, group=group, sizes="8MB", algorithm="ring"))) for group in ("0-3", "0,2,1,3")
    )
    assert mixed[0] > 1.9 * natural[0]


def test_a_card_brings_its_dispatch(tmp_path: Path) -> None:
    name = cluster(tmp_path, "ring", 4)
    ideal, real = (times(run_bench(Ask(name, sizes="4KiB", card=card)))[0] for card in (None, "reference-npu"))
    assert real - ideal == pytest.approx(10**6, rel=0.01)  # 1 us of link dispatch, and next to nothing in HBM


def test_a_card_whose_memory_is_slower_than_its_links_holds_the_collective(tmp_path: Path) -> None:
    name = cluster(tmp_path, "ring", 4, bandwidth=10**13, latency=0)
    ideal, real = (times(run_bench(Ask(name, sizes="1GiB", card=card)))[0] for card in (None, "reference-npu"))
    assert real > 5 * ideal


def test_the_crossover_is_found_between_the_sizes_and_is_true(tmp_path: Path) -> None:
    # Over a full mesh of 2-way pairs, direct has 2 steps and ring 14; with one port a card (a switch) direct is held by
    # the port as ring is, so halving-doubling's 6 steps win small sizes.
    name = cluster(tmp_path, "ring", 8)
    report = run_bench(Ask(name, sizes="1KiB:16MiB", factor=4))
    assert report.crossovers, report.others
    for found in report.crossovers:
        assert found.below_bytes < found.size_bytes <= 1.07 * found.below_bytes
        for size, faster, slower in (
            (found.below_bytes, found.before, found.to),
            (found.size_bytes, found.to, found.before),
        ):
            first, second = (times(run_bench(Ask(name, sizes=str(size), algorithm=a)))[0] for a in (faster, slower))
            assert first <= second


def test_the_table_of_the_cluster_file_decides_and_the_user_overrides(tmp_path: Path) -> None:
    table = """protocols:
  quick: {start_ps: {value: 0, evidence: assumed, source: a test}, step_ps: {value: 0, evidence: assumed, source: t},
    bandwidth_ppm: {value: 500000, evidence: assumed, source: half of the bytes are flags}}
  wide: {start_ps: {value: 20e6, evidence: assumed, source: t}, step_ps: {value: 0, evidence: assumed, source: t},
    bandwidth_ppm: {value: 1000000, evidence: assumed, source: a test}}
choices:
  - {collective: all_reduce, algorithm: direct, protocol: quick, up_to_bytes: 4096}
  - {collective: all_reduce, algorithm: ring, protocol: wide}
"""
    name = cluster(tmp_path, "full_mesh", 4, more=table)
    small, large = run_bench(Ask(name, sizes="4096,8MB")).rows
    assert (small.choice.algorithm, small.choice.protocol.name) == ("direct", "quick")
    assert (large.choice.algorithm, large.choice.protocol.name) == ("ring", "wide")
    assert large.time_ps == 20 * 10**6 + 6 * 201 * 10**6  # the start, and six steps of 2 MB
    assert small.time_ps == 2 * 10**6 + 2 * 204_800  # two steps of 1 KiB at half of 10 GB/s
    (forced,) = run_bench(Ask(name, sizes="8MB", algorithm="direct", protocol="quick")).rows
    assert (forced.choice.algorithm, forced.choice.protocol.name) == ("direct", "quick")
    assert forced.time_ps == 2 * (10**6 + 400 * 10**6)  # 2 MB to each of three peers at 5 GB/s, twice


# What other simulators get wrong, by numbers.


def test_512_mib_take_twice_as_long_as_256(tmp_path: Path) -> None:
    half, whole = times(run_bench(Ask(cluster(tmp_path, "ring", 8), sizes="256MiB,512MiB", algorithm="ring")))
    assert whole / half == pytest.approx(2, rel=0.001)


def test_32_and_64_cards_differ(tmp_path: Path) -> None:
    # Of 64 KiB nearly all is latency: 62 steps against 126 of 1 us; of bytes, 31/32 against 63/64.
    small = [times(run_bench(Ask(cluster(tmp_path, "ring", n), sizes="64KiB", algorithm="ring")))[0] for n in (32, 64)]
    assert small == [62 * 10**6 + 12_697_600, 126 * 10**6 + 12_902_400]


@pytest.mark.parametrize("kind", ["ring", "switch"])
def test_a_direct_all_reduce_is_not_faster_than_its_ports_allow(tmp_path: Path, kind: str) -> None:
    # Every card must send and receive 2 (n - 1) / n of the buffer; on a switch it has one port for that, on a ring two.
    ports = 2 if kind == "ring" else 1
    (row,) = run_bench(Ask(cluster(tmp_path, kind, 8), sizes="64MB", algorithm="direct")).rows
    assert row.time_ps >= 64e6 * 2 * 7 / 8 / (ports * 10**10) * 10**12


def test_every_algorithm_keeps_to_the_ports_bound(tmp_path: Path) -> None:
    report = run_bench(Ask(cluster(tmp_path, "switch", 8), sizes="64MB", algorithm="all"))
    assert len(report.rows) >= 4
    for row in report.rows:
        assert row.time_ps >= 64e6 * 2 * 7 / 8 / 10**10 * 10**12, row.choice.algorithm


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"collective": "all_redcue"}, "did you mean all_reduce"),
        ({"ranks": 5}, "has 4 cards; choose 1 to 4"),
        ({"ranks": 0}, "choose 1 to 4"),
        ({"group": "0,1,1"}, "rank 1 stands twice"),
        ({"group": "0,4"}, "rank 4 is no card"),
        ({"group": "0;1"}, "write 0,1,2 or 0-3,8-11"),
        ({"group": "3-1"}, "is no rank"),
        ({"group": "0-1", "ranks": 3}, "--ranks 3 and --group of 2 ranks differ"),
        ({"sizes": "0"}, "whole number of bytes from 1"),
        ({"sizes": "3"}, "holds no element of fp32; give at least 4"),
        ({"collective": "send_recv"}, "is between 2 ranks, not 4"),
        ({"algorithm": "rng"}, "no algorithm 'rng' for all_reduce; choose ring"),
        ({"algorithm": "in_switch"}, "cannot run all_reduce by it on this cluster"),
        ({"protocol": "ll"}, "has no protocol 'll'; it has none"),
        ({"protocol": ""}, "has no protocol ''; it has none"),
        ({"card": "h200-sxn"}, "unknown card"),
        ({"dtype": "fp7"}, "fp7"),
        ({"dtype": "int8"}, "all_reduce adds floats; choose fp32, bf16 or fp16"),
        ({"cluster": "ring-9"}, "did you mean ring-8"),
    ],
)
def test_bad_questions_are_refused_by_name(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    asked: dict[str, object] = {"cluster": cluster(tmp_path, "ring", 4), "sizes": "1KiB", **changes}
    with pytest.raises(ConfigError, match=message):
        run_bench(Ask(**asked))  # type: ignore[arg-type]


def test_cards_that_are_cut_off_are_an_error_that_names_the_cut(tmp_path: Path) -> None:
    down = "links:\n" + "".join(f"  - {{source: {a}, target: {b}, down: true}}\n" for a, b in ((0, 1), (2, 1)))
    with pytest.raises(ConfigError, match="no route from card 0 to card 1"):
        run_bench(Ask(cluster(tmp_path, "ring", 4, more=down), sizes="1KiB", algorithm="ring"))


def test_a_link_that_is_down_is_gone_round_and_costs(tmp_path: Path) -> None:
    down = "links:\n  - {source: 0, target: 1, down: true}\n"
    # The step of 2 MB from 0 to 1 goes 0 > 3 > 2 > 1, whose last two links carry no other: 3 us, and 0 > 3 is free too.
    (whole,), (broken,) = (
        times(run_bench(Ask(cluster(tmp_path, "ring", 4, more=more), sizes="8MB", algorithm="ring")))
        for more in ("", down)
    )
    assert (whole, broken) == (6 * 201 * 10**6, 6 * 203 * 10**6)
