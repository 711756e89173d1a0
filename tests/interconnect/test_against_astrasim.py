"""Times alone agree with those of an independent simulator wherever both model the same thing, within one percent.

The rows are ASTRA-sim's (MIT licence), described in data/README.md. A ring there is one of reduce-scatter, all-gather
or both; a ring all-to-all hands every message on one hop at a time. An Aware switch stores whole messages and forwards
them, an Unaware one cuts through.
"""

import csv
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from siltwin.interconnect.cluster import ClusterSpec
from siltwin.interconnect.collectives.amounts import GroupAmounts, group_amounts
from siltwin.interconnect.collectives.expand import NO_OPTIONS, expand
from siltwin.interconnect.collectives.registry import Options
from siltwin.interconnect.specfile import validated
from siltwin.interconnect.topology import Topology

ROWS = list(csv.DictReader((Path(__file__).parent / "data" / "astrasim_collectives.csv").open()))
Row = dict[str, str]
Key = tuple[str, str, str, str]
GROUPS: dict[Key, list[Row]] = defaultdict(list)
for _row in ROWS:
    GROUPS[_row["topology"], _row["algorithm"], _row["collective"], _row["backend"]].append(_row)
KINDS = {"Ring": "ring", "FullyConnected": "full_mesh", "Switch": "switch"}
ALGORITHMS = {"ring": "ring", "direct": "direct", "halvingDoubling": "halving_doubling", "ring+ring": "hierarchical"}


def quantity(value: float) -> dict[str, Any]:
    return {"value": int(value), "evidence": "assumed", "source": "ASTRA-sim's input"}


def link(row: Row, level: int, forwarding: str = "cut_through") -> dict[str, Any]:
    return {
        "bandwidth_bytes_per_s": quantity(float(row["bandwidth_GBps"].split("+")[level]) * 2**30),
        "latency_ps": quantity(float(row["latency_ns"].split("+")[level]) * 1000),
        "forwarding": forwarding,
    }


def net_of(row: Row) -> Topology:
    counts = [int(count) for count in row["npus"].split("x")]
    content: dict[str, Any] = {"name": "astra"}
    if len(counts) > 1:
        node = {"name": "node", "kind": "switch", "of": counts[0], "link": link(row, 0)}
        rails = {"name": "rails", "kind": "switch", "of": counts[1], "joins": "rails", "link": link(row, 1)}
        content |= {"levels": [node, rails]}
    else:
        stores = row["topology"] == "Switch" and row["backend"] == "Aware"
        made = link(row, 0, "store_and_forward" if stores else "cut_through")
        content |= {"kind": KINDS[row["topology"]], "cards": counts[0], "link": made}
    return validated(ClusterSpec, content, "astra").topology()


def amounts(row: Row) -> GroupAmounts:
    net, size = net_of(row), int(row["size_bytes"])
    options = Options(shape=net.shape) if net.shape else NO_OPTIONS
    plan = expand(row["collective"], net.cards, ALGORITHMS[row["algorithm"]], options=options)
    part = size if row["collective"] == "all_gather" else size // net.cards
    return group_amounts(plan, [part] * plan.given, range(net.cards), net)


def ratios(key: Key) -> list[float]:
    """Our time over ASTRA-sim's, row by row."""
    return [amounts(row).alone_ps / 1000 / int(row["time_ns"]) for row in GROUPS[key]]


EQUAL = [
    key
    for key in sorted(GROUPS)
    if key[:3] != ("Switch+Switch", "ring+ring", "all_reduce") and key[:2] != ("Switch", "direct")
]


@pytest.mark.parametrize("key", EQUAL, ids="-".join)
def test_times_agree_within_one_percent(key: Key) -> None:
    assert all(abs(ratio - 1) < 0.01 for ratio in ratios(key))


def test_every_row_of_a_ring_and_of_a_full_mesh_is_compared() -> None:
    compared = {key[:2] for key in EQUAL}
    assert {("Ring", "ring"), ("FullyConnected", "ring"), ("FullyConnected", "direct")} <= compared
    assert sum(len(GROUPS[key]) for key in EQUAL) == 495


@pytest.mark.parametrize("collective", ["all_gather", "all_reduce", "all_to_all", "reduce_scatter"])
def test_direct_messages_through_a_storing_switch_agree_where_bytes_decide(collective: str) -> None:
    """There messages leave one by one, 1 ns apart; here they leave at once, so the shortest times differ by 3 %."""
    found = ratios(("Switch", "direct", collective, "Aware"))
    assert all(0.995 < ratio < 1.03 for ratio in found)
    large = [
        ratio
        for row, ratio in zip(GROUPS["Switch", "direct", collective, "Aware"], found, strict=True)
        if int(row["size_bytes"]) >= 2**20
    ]
    assert all(abs(ratio - 1) < 0.01 for ratio in large)


def test_an_unaware_switch_forgets_that_a_card_has_one_port() -> None:
    """32 ranks exchange 1 GiB each: 31 parts of 32 MiB leave one port of 50 GiB/s, 31 * 0.625 ms = 19.375 ms.

    ASTRA-sim without contention lets all of them leave at once, in 0.625 ms and a latency: 31 times too fast.
    """
    row = next(
        row
        for row in GROUPS["Switch", "direct", "all_to_all", "Unaware"]
        if (row["npus"], row["size_bytes"]) == ("32", str(2**30))
    )
    assert amounts(row).alone_ps == 31 * 625 * 10**6 + 2 * 500_000
    assert int(row["time_ns"]) == pytest.approx(625_000, rel=0.01)


def test_an_all_reduce_in_two_dimensions_need_not_take_the_whole_buffer_across() -> None:
    """8 x 8, 1 GiB, 400 and 50 GiB/s: inside 2 * 7/8 * 2.5 ms, across 2 * 7/8 of an eighth of 20 ms: 8.75 ms.

    ASTRA-sim reduces the whole buffer in each dimension, 2 * 7/8 * (2.5 + 20) ms = 39.375 ms.
    """
    row = next(
        row for row in GROUPS["Switch+Switch", "ring+ring", "all_reduce", "Unaware"] if row["size_bytes"] == str(2**30)
    )
    work = amounts(row)
    assert work.flow_ps == 8_750 * 10**6
    assert work.latency_ps == 2 * 7 * 2 * (936_000 + 2_000_000)
    assert int(row["time_ns"]) == pytest.approx(39_375_000 + work.latency_ps / 1000, rel=0.001)
