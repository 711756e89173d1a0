"""Algorithms and protocols are chosen by the cluster's table, and sensibly without one."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siltwin.interconnect.choices import candidates, group_shape
from siltwin.interconnect.cluster import ClusterSpec, load_cluster, make_cluster
from siltwin.interconnect.collectives.amounts import group_amounts, step_profile
from siltwin.interconnect.collectives.expand import expand
from siltwin.interconnect.collectives.protocol import Protocol
from siltwin.interconnect.specfile import validated
from siltwin.isa.errors import ConfigError


def quantity(value: int) -> dict[str, Any]:
    return {"value": value, "evidence": "assumed", "source": "a test"}


LINK = {"bandwidth_bytes_per_s": quantity(10**9), "latency_ps": quantity(10**6)}
PROTOCOLS = {
    "bulk": {"start_ps": quantity(8000), "step_ps": quantity(3000), "bandwidth_ppm": quantity(800_000)},
    "quick": {"start_ps": quantity(5000), "step_ps": quantity(100), "bandwidth_ppm": quantity(500_000)},
}
LEVELS = [
    {"name": "node", "kind": "full_mesh", "of": 4, "link": LINK},
    {"name": "rails", "kind": "switch", "of": 3, "joins": "rails", "link": LINK},
]


def spec_of(*choices: dict[str, Any], levels: Any = LEVELS) -> ClusterSpec:
    return validated(
        ClusterSpec, {"name": "mine", "levels": levels, "protocols": PROTOCOLS, "choices": list(choices)}, "mine"
    )


def test_the_first_row_that_fits_counts() -> None:
    spec = spec_of(
        {"collective": "all_reduce", "algorithm": "direct", "protocol": "quick", "up_to_bytes": 1000},
        {"collective": "all_reduce", "algorithm": "ring", "up_to_ranks": 3},
        {"collective": "all_reduce", "algorithm": "double_binary_tree", "chunks": 4, "within": "node"},
        {"collective": "all_reduce", "algorithm": "hierarchical", "beyond": "node"},
    )
    whole = tuple(range(12))
    chosen = {
        "small": spec.choose("all_reduce", 12, whole, 1000),
        "few": spec.choose("all_reduce", 3, (0, 1, 2), 1001),
        "inside": spec.choose("all_reduce", 4, (4, 5, 6, 7), 1001),
        "across": spec.choose("all_reduce", 12, whole, 1001),
        "uneven": spec.choose("all_reduce", 4, (0, 1, 2, 4), 1001),
    }
    assert {name: choice.algorithm for name, choice in chosen.items()} == {
        "small": "direct",
        "few": "ring",
        "inside": "double_binary_tree",
        "across": "hierarchical",
        "uneven": "ring",  # no row that such a group can run: the usual
    }
    assert (chosen["small"].protocol.name, chosen["few"].protocol.name) == ("quick", "bulk")
    assert chosen["inside"].options.chunks == 4
    assert chosen["across"].options.shape == (3, 4)
    assert chosen["across"].plan("all_reduce", 12).num_steps == 2 * (3 + 2)


def test_without_a_row_groups_across_nodes_go_level_by_level() -> None:
    spec = spec_of()
    assert spec.choose("all_gather", 12, range(12), 10**9).algorithm == "hierarchical"
    assert spec.choose("all_gather", 4, range(4), 10**9).algorithm == "ring"
    assert spec.choose("all_gather", 3, (0, 4, 8), 10**9).algorithm == "ring"
    assert spec.choose("send_recv", 2, (0, 4), 10).algorithm == "direct"


@pytest.mark.parametrize(
    ("kind", "few", "many"),
    [("full_mesh", "direct", "direct"), ("switch", "halving_doubling", "ring"), ("ring", "ring", "ring")],
)
def test_without_a_row_few_bytes_take_few_steps_and_many_use_all_links(kind: str, few: str, many: str) -> None:
    spec = make_cluster(kind, 8, 10**9, 10**6)
    assert spec.choose("all_reduce", 8, range(8), 1 << 15).algorithm == few
    assert spec.choose("all_reduce", 8, range(8), 1 << 20).algorithm == many


def test_a_choice_needs_ranks_that_are_the_group() -> None:
    spec = make_cluster("ring", 4, 1, 0)
    with pytest.raises(ConfigError, match=r"ranks \(0, 1\) are 2; the group has 3 members"):
        spec.choose("all_reduce", 3, (0, 1), 1)
    with pytest.raises(ConfigError, match="rank 4 is no card; ring-4 has 0 to 3"):
        spec.choose("all_reduce", 2, (0, 4), 1)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"collective": "all_redoes", "algorithm": "ring"}, "'all_redoes' is not a collective"),
        ({"collective": "barrier", "algorithm": "direct"}, "no algorithm 'direct' for barrier; choose ring, "),
        ({"collective": "all_reduce", "algorithm": "ring", "chunks": 2}, "ring all_reduce takes no chunks"),
        ({"collective": "all_reduce", "algorithm": "ring", "protocol": "slow"}, "no protocol 'slow' .known: bulk, qui"),
        ({"collective": "all_reduce", "algorithm": "ring", "within": "pod"}, "no level 'pod' .known: node, rails"),
        ({"collective": "all_reduce", "algorithm": "ring", "up_to_bytes": -1}, "up_to_bytes: .*got -1"),
    ],
)
def test_a_row_that_names_what_there_is_not_is_refused(row: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"choices.*{message}"):
        spec_of(row)


def test_an_unknown_number_of_a_protocol_is_refused_with_those_there_are() -> None:
    protocols = {"mine": PROTOCOLS["bulk"] | {"ramp": quantity(1)}}
    with pytest.raises(ConfigError, match="protocols.mine.ramp: is not a field here; did you mean ramp_ps"):
        validated(ClusterSpec, {"name": "mine", "levels": LEVELS, "protocols": protocols}, "mine")


@pytest.mark.parametrize(
    ("ranks", "shape"),
    [
        (range(16), (2, 8)),
        (range(4, 12), (2, 4)),
        (range(8), (8,)),
        ((0, 8, 16), (3,)),
        ((0, 1, 8), ()),
        ((0, 8, 1, 9), ()),  # counts through nodes first
        ((8, 9, 0, 1), (2, 2)),
        ((5,), ()),
    ],
)
def test_a_group_has_the_shape_in_which_it_stands_on_the_machine(ranks: Any, shape: tuple[int, ...]) -> None:
    assert group_shape(tuple(ranks), (4, 8)) == shape


def test_levels_without_a_part_in_a_group_are_left_out() -> None:
    assert group_shape(range(768), (48, 8, 2)) == (48, 8, 2)
    assert group_shape(range(0, 768, 2), (48, 8, 2)) == (48, 8)
    assert group_shape(range(0, 768, 16), (48, 8, 2)) == (48,)


def test_candidates_are_all_algorithms_that_the_group_can_run() -> None:
    flat = {choice.algorithm for choice in candidates("all_reduce", load_cluster("ring-8").group(range(8)))}
    assert flat == {"ring", "direct", "double_binary_tree", "halving_doubling", "ring_both_ways", "rings"}
    rails = {choice.algorithm: choice for choice in candidates("all_reduce", load_cluster("h100-4x8").group(range(32)))}
    assert rails.keys() == flat | {"hierarchical", "hierarchical_direct"}
    assert rails["rings"].options.shape == (4, 8)


def test_a_switch_reduces_for_those_who_reach_it_over_switches_alone() -> None:
    """On 4 nodes of 8 the NVSwitch of a node adds for its 8 cards; rail groups would pass cards on their way to it."""
    spec = load_cluster("h100-4x8")
    for ranks, there in {
        tuple(range(8, 16)): True,
        (9, 12, 10): True,
        (0, 8, 16, 24): False,
        (3, 11): False,
        (0, 1, 2, 3, 4, 5, 6, 7, 8): False,
        tuple(range(32)): False,
    }.items():
        for collective in ("all_reduce", "all_gather", "broadcast"):
            offered = {choice.algorithm for choice in candidates(collective, spec.group(ranks))}
            assert ("in_switch" in offered) == there, ranks


def test_a_row_for_a_switch_that_a_group_does_not_share_is_passed_over() -> None:
    levels = [LEVELS[0] | {"kind": "switch", "switch_reduces": True}, LEVELS[1]]
    spec = spec_of({"collective": "all_reduce", "algorithm": "in_switch"}, levels=levels)
    assert spec.choose("all_reduce", 4, (4, 5, 6, 7), 1 << 20).algorithm == "in_switch"
    assert spec.choose("all_reduce", 3, (0, 4, 8), 1 << 20).algorithm == "ring"
    assert spec.choose("all_reduce", 12, range(12), 1 << 20).algorithm == "hierarchical"
    with pytest.raises(ConfigError, match="in_switch.*cards 0, 4, 8 do not all reach one switch that reduces without"):
        group_amounts(expand("all_reduce", 3, "in_switch"), [1] * 3, (0, 4, 8), spec.topology())


def test_a_fat_tree_whose_spines_reduce_adds_over_its_leaves() -> None:
    spec = load_cluster("fat-tree-512").model_copy(update={"switch_reduces": True})
    offered = {choice.algorithm for choice in candidates("all_reduce", spec.group((0, 100, 511)))}
    assert "in_switch" in offered


def test_a_protocol_costs_a_start_and_a_step_and_takes_its_share_of_the_bandwidth() -> None:
    """4 cards, 4 MB at 1 GB/s and 1 us: 6 (1 ms / 0.8 + 1 us + 3 ns) + 8 ns."""
    net, plan = make_cluster("ring", 4, 10**9, 10**6).topology(), expand("all_reduce", 4)
    bulk = Protocol("bulk", start_ps=8000, step_ps=3000, bandwidth_ppm=800_000)
    work = group_amounts(plan, [10**6] * 4, range(4), net, bulk)
    assert (work.flow_ps, work.latency_ps) == (6 * 125 * 10**7, 6 * (10**6 + 3000) + 8000)
    profile = step_profile(plan, [10**6] * 4, range(4), net, bulk)
    assert set(profile.flow_ps.tolist()) == {125 * 10**7}
    assert work.link_bytes == group_amounts(plan, [10**6] * 4, range(4), net).link_bytes


@given(st.integers(2, 9), st.integers(0, 10**6))
def test_low_latency_wins_for_few_bytes_and_high_bandwidth_for_many(size: int, part: int) -> None:
    """They meet where bytes cost what latency saves: 2(n-1) (P (2 - 1.25) ns) = 2(n-1) 2.9 ns + 3 ns."""
    spec, net, plan = spec_of(), make_cluster("ring", size, 10**9, 10**6).topology(), expand("all_reduce", size)
    times = {
        name: group_amounts(plan, [part] * size, range(size), net, spec.protocol(name)).alone_ps for name in PROTOCOLS
    }
    saved = 2 * (size - 1) * 2900 + 3000
    lost = 2 * (size - 1) * part * 750
    assert times["bulk"] - times["quick"] == pytest.approx(saved - lost, abs=2)
