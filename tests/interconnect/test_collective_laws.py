"""Laws that every algorithm obeys on every topology: closed counts, bounds, monotony, names that do not matter."""

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siltwin.interconnect.choices import Choice, candidates
from siltwin.interconnect.cluster import ClusterSpec, make_cluster
from siltwin.interconnect.collectives.amounts import GroupAmounts, group_amounts, step_profile
from siltwin.interconnect.collectives.expand import expand
from siltwin.interconnect.collectives.registry import COLLECTIVES, Options
from siltwin.interconnect.measures import cut_bytes_per_s
from siltwin.interconnect.routing import router
from siltwin.interconnect.specfile import validated
from siltwin.interconnect.topology import Topology
from siltwin.isa.errors import ConfigError

PS = 10**12
GB = 10**9


def link(bandwidth: int = GB, latency_ps: int = 10**6, **more: Any) -> dict[str, Any]:
    number = {"evidence": "assumed", "source": "a test"}
    values = {"bandwidth_bytes_per_s": bandwidth, "latency_ps": latency_ps}
    return {name: number | {"value": value} for name, value in values.items()} | more


def spec_of(**fields: Any) -> ClusterSpec:
    if "levels" not in fields:
        fields.setdefault("link", link())
    return validated(ClusterSpec, {"name": "mine"} | fields, "mine")


def nodes_of(count: int, inner: int, inside: int = 4 * GB, across: int = GB) -> ClusterSpec:
    node = {"name": "node", "kind": "switch", "of": inner, "link": link(inside), "switch_reduces": True}
    rails = {"name": "rails", "kind": "switch", "of": count, "joins": "rails", "link": link(across, 2 * 10**6)}
    return spec_of(levels=[node, rails])


SPECS = {
    "ring": spec_of(kind="ring", cards=8),
    "mesh": spec_of(kind="mesh", dims=[2, 4], routing={"policy": "dimension_order"}),
    "torus": spec_of(kind="torus", dims=[3, 3]),
    "full mesh": spec_of(kind="full_mesh", cards=6, link=link(GB, 10**6)),
    "switch": spec_of(kind="switch", cards=8, switch_reduces=True),
    "storing switch": spec_of(kind="switch", cards=5, link=link(GB, 10**6, forwarding="store_and_forward")),
    "planes": spec_of(kind="switch", cards=8, planes=3),
    "fat tree": spec_of(kind="fat_tree", cards=12, leaf_cards=4, oversubscription=[2]),
    "rails": nodes_of(3, 4),
}
REDUCING = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "reduce", "scatter", "gather")


@lru_cache(maxsize=1024)
def choices_of(name: str, collective: str) -> tuple[Choice, ...]:
    spec = SPECS[name]
    return candidates(collective, spec.group(range(spec.cards)))


def amounts(net: Topology, choice: Choice, collective: str, parts: list[int], root: int = 0) -> GroupAmounts:
    plan = choice.plan(collective, net.cards, root)
    return group_amounts(plan, parts, range(net.cards), net)


def parts_of(collective: str, cards: int) -> st.SearchStrategy[list[int]]:
    count = COLLECTIVES[collective].parts(cards)
    return st.lists(st.integers(0, 1 << 30), min_size=count, max_size=count)


CASES = [(name, collective) for name in SPECS for collective in REDUCING]


def demands(collective: str, cards: int, parts: np.ndarray, near: list[int]) -> tuple[int, int]:
    """Bytes that must leave some cards for the others, and reach them from there, whatever the algorithm."""
    inside = np.isin(np.arange(cards), near)
    total = int(parts.sum())
    if collective == "all_to_all":
        table = parts.reshape(cards, cards)
        return int(table[inside][:, ~inside].sum()), int(table[~inside][:, inside].sum())
    if collective in ("reduce_scatter", "scatter"):
        out, back = int(parts[~inside].sum()), int(parts[inside].sum())
    elif collective in ("all_gather", "gather"):
        out, back = int(parts[inside].sum()), int(parts[~inside].sum())
    else:
        out = back = total
    if COLLECTIVES[collective].rooted:  # bytes leave the side of the root, or go there
        leaves = collective in ("broadcast", "scatter")
        return (out, 0) if inside[0] == leaves else (0, back)
    return out, back


@pytest.mark.parametrize(("name", "collective"), CASES)
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_no_algorithm_beats_its_ports_or_any_cut_or_a_latency(name: str, collective: str, data: st.DataObject) -> None:
    """What must cross a cut takes at least its bytes over all that passes there; one card's ports are a cut too.

    With an in-switch reduction the bounds are the same: all_reduce S/b, and 2 L.
    """
    net = SPECS[name].topology()
    parts = data.draw(parts_of(collective, net.cards))
    size = data.draw(st.integers(1, net.cards - 1))
    near = sorted(data.draw(st.permutations(range(net.cards)))[:size])
    far = [card for card in range(net.cards) if card not in near]
    out, back = demands(collective, net.cards, np.array(parts), near)
    bound_ps = max(out * PS / cut_bytes_per_s(net, near, far), back * PS / cut_bytes_per_s(net, far, near))
    for choice in choices_of(name, collective):
        work = amounts(net, choice, collective, parts)
        assert work.flow_ps >= bound_ps - 1, choice.algorithm
        assert work.latency_ps >= min(li.latency_ps for li in net.links)


@pytest.mark.parametrize("name", SPECS)
def test_no_all_reduce_between_members_beats_twice_the_buffer_through_a_port(name: str) -> None:
    """2 (n-1)/n S over a card's ports, as a direct one must not; a switch that reduces needs S/b + 2 L."""
    net, part = SPECS[name].topology(), 720_720
    ports = min(sum(net.links[i].bandwidth_bytes_per_s for i in net.outgoing[card]) for card in range(net.cards))
    whole = part * net.cards
    for choice in choices_of(name, "all_reduce"):
        work = amounts(net, choice, "all_reduce", [part] * net.cards)
        if choice.algorithm == "in_switch":
            assert work.flow_ps >= whole * PS // ports
            assert work.latency_ps >= 2 * net.links[0].latency_ps
        else:
            assert work.flow_ps >= 2 * (net.cards - 1) * part * PS // ports, choice.algorithm


@pytest.mark.parametrize(("name", "collective"), CASES)
@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_time_never_falls_when_bytes_grow_or_a_link_slows(name: str, collective: str, data: st.DataObject) -> None:
    net = SPECS[name].topology()
    parts = data.draw(parts_of(collective, net.cards))
    more = [part + data.draw(st.integers(0, 1 << 20)) for part in parts]
    slow = data.draw(st.integers(0, len(net.links) - 1))
    rate = data.draw(st.integers(10**6, GB))
    links = tuple(
        replace(li, bandwidth_bytes_per_s=min(rate, li.bandwidth_bytes_per_s)) if i == slow else li
        for i, li in enumerate(net.links)
    )
    for choice in choices_of(name, collective):
        before = amounts(net, choice, collective, parts).alone_ps
        assert amounts(net, choice, collective, more).alone_ps >= before, choice.algorithm
        assert amounts(replace(net, links=links), choice, collective, parts).alone_ps >= before, choice.algorithm


@pytest.mark.parametrize("collective", ["all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast"])
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_relabelling_ranks_cards_and_links_together_changes_no_time(collective: str, data: st.DataObject) -> None:
    """In a full mesh of links of any speeds, for there every route is one link, whatever its number."""
    size = 6
    relabel = data.draw(st.permutations(range(size)))
    speeds = data.draw(st.lists(st.integers(1, 10**12), min_size=30, max_size=30))
    parts = data.draw(parts_of(collective, size))
    plain = SPECS["full mesh"].topology()
    net = replace(
        plain, links=tuple(replace(li, bandwidth_bytes_per_s=s) for li, s in zip(plain.links, speeds, strict=True))
    )
    order = data.draw(st.permutations(range(30)))
    moved = [replace(li, source=relabel[li.source], target=relabel[li.target]) for li in net.links]
    renamed = replace(net, links=tuple(moved[i] for i in order))
    for choice in choices_of("full mesh", collective):
        plan = choice.plan(collective, size)
        before = group_amounts(plan, parts, range(size), net)
        after = group_amounts(plan, parts, relabel, renamed)
        assert (after.flow_ps, after.latency_ps, after.members) == (before.flow_ps, before.latency_ps, before.members)
        assert {order[i]: size for i, size in after.link_bytes.items()} == dict(before.link_bytes)


@pytest.mark.parametrize(("name", "collective"), [case for case in CASES if case[0] in ("rails", "fat tree", "planes")])
def test_the_steps_one_by_one_sum_up_to_the_whole(name: str, collective: str) -> None:
    net = SPECS[name].topology()
    parts = [1000 + 7 * index for index in range(COLLECTIVES[collective].parts(net.cards))]
    for choice in choices_of(name, collective):
        plan = choice.plan(collective, net.cards)
        whole = group_amounts(plan, parts, range(net.cards), net)
        profile = step_profile(plan, parts, range(net.cards), net)
        assert 0 <= profile.flow_ps.sum() - whole.flow_ps < max(1, plan.num_steps)
        assert profile.latency_ps.sum() == whole.latency_ps
        for index in range(min(3, plan.num_steps)):
            single = group_amounts(plan.step(index), plan.sizes_of(np.array(parts)).tolist(), range(net.cards), net)
            assert (single.flow_ps, single.latency_ps) == (profile.flow_ps[index], profile.latency_ps[index])
            moved = [r + w for r, w in zip(single.members.read_bytes, single.members.write_bytes, strict=True)]
            assert (max(moved), max(single.reduced_bytes)) == (profile.moved_bytes[index], profile.reduced_bytes[index])


def by_ends(net: Topology, work: GroupAmounts) -> dict[tuple[int, int], int]:
    return {(net.links[i].source, net.links[i].target): size for i, size in work.link_bytes.items()}


def test_bytes_on_links_are_the_closed_counts_of_the_direct_algorithms() -> None:
    """Parts of 1 to 6 kB in a mesh of 6: to its owner, and from it; each pair what it has for the other."""
    net, parts = SPECS["full mesh"].topology(), [1000 * (m + 1) for m in range(6)]
    pairs = [(s, t) for s in range(6) for t in range(6) if s != t]

    def found(collective: str, sizes: list[int], root: int = 0) -> dict[tuple[int, int], int]:
        return by_ends(net, amounts(net, Choice("direct"), collective, sizes, root))

    assert found("reduce_scatter", parts) == {(s, t): parts[t] for s, t in pairs}
    assert found("all_gather", parts) == {(s, t): parts[s] for s, t in pairs}
    assert found("all_reduce", parts) == {(s, t): parts[s] + parts[t] for s, t in pairs}
    assert found("scatter", parts, 2) == {(2, t): parts[t] for t in range(6) if t != 2}
    assert found("gather", parts, 2) == {(s, 2): parts[s] for s in range(6) if s != 2}
    assert found("broadcast", [77], 2) == {(2, t): 77 for t in range(6) if t != 2}
    assert found("reduce", [77], 2) == {(s, 2): 77 for s in range(6) if s != 2}
    table = list(range(100, 136))
    for name in ("direct", "pairwise"):
        work = amounts(net, Choice(name), "all_to_all", table)
        assert by_ends(net, work) == {(s, t): table[s * 6 + t] for s, t in pairs}


def test_bytes_of_recursive_halving_are_halves_at_every_distance() -> None:
    """8 members, parts of 1 kB: 4, 2, 1 kB to the peers at distance 4, 2, 1, and as much again for an all-reduce."""
    net = make_cluster("full_mesh", 8, GB, 10**6).topology()
    work = amounts(net, Choice("halving_doubling"), "all_reduce", [1000] * 8)
    assert by_ends(net, work) == {(m, m ^ d): 2 * 1000 * d for m in range(8) for d in (1, 2, 4)}
    assert work.alone_ps == 2 * (7 * 1000 * 1000 + 3 * 10**6)


def test_a_ring_both_ways_uses_both_directions_of_every_wire_and_takes_half_as_long() -> None:
    net = SPECS["ring"].topology()
    one, both = (amounts(net, Choice(name), "all_reduce", [8000] * 8) for name in ("ring", "ring_both_ways"))
    assert set(both.link_bytes.values()) == {2 * 7 * 4000}
    assert len(both.link_bytes) == 16
    assert both.flow_ps * 2 == one.flow_ps


def test_rings_in_a_mesh_share_the_bytes() -> None:
    """Strides 1 and 5 of 6 members: half of the bytes each; the mesh's links are 2 of 5 in use."""
    net = SPECS["full mesh"].topology()
    work = amounts(net, Choice("rings"), "all_reduce", [6000] * 6)
    assert by_ends(net, work) == {(m, (m + d) % 6): 2 * 5 * 3000 for m in range(6) for d in (1, 5)}


def test_a_double_binary_tree_sends_the_buffer_up_and_down_each_edge_in_halves() -> None:
    net, size = make_cluster("full_mesh", 7, GB, 10**6).topology(), 16_000 * 7
    work = amounts(net, Choice("double_binary_tree"), "all_reduce", [16_000] * 7)
    assert sum(work.link_bytes.values()) == 2 * 6 * size  # two trees of 6 edges, half of it up and half of it down each
    assert max(work.sent_bytes) <= 2 * size


def test_an_in_switch_all_reduce_crosses_every_link_once() -> None:
    """8 cards, 3.2 MB, 32 chunks at 1 GB/s: 33/32 * 3.2 ms and 2 us, close to S/b + 2 L."""
    net = SPECS["switch"].topology()
    work = amounts(net, Choice("in_switch"), "all_reduce", [400_000] * 8)
    assert set(work.link_bytes.values()) == {3_200_000}
    assert (work.flow_ps, work.latency_ps) == (3_300_000 * 1000, 2 * 10**6)
    assert work.reduced_bytes == (0,) * 8
    assert set(work.sent_bytes) == {3_200_000}


def test_switches_below_the_reducing_one_add_what_meets_there() -> None:
    """12 cards on 3 leaves, nearest to all is a spine: a leaf sends it its four cards' sum once, not four times."""
    spec = spec_of(kind="fat_tree", cards=12, leaf_cards=4, switch_reduces=True)
    net = spec.topology()
    work = amounts(net, Choice("in_switch"), "all_reduce", [32_000] * 12)
    used = by_ends(net, work)
    assert set(used.values()) == {12 * 32_000}
    assert len(used) == 2 * (12 + 3)


@pytest.mark.parametrize("algorithm", ["hierarchical", "hierarchical_direct"])
def test_a_hierarchical_all_reduce_takes_an_eighth_across(algorithm: str) -> None:
    """4 nodes of 8, S = 320 kB, 4 GB/s inside and 1 across, a microsecond and two a link.

    Inside 2 * 7/8 S / 4 GB/s = 140 us, across 2 * 3/4 * S/8 / 1 GB/s = 60 us.
    """
    net, size = nodes_of(4, 8).topology(), 320_000
    work = amounts(net, Choice(algorithm, Options(shape=(4, 8))), "all_reduce", [size // 32] * 32)
    rounds = (7, 3) if algorithm == "hierarchical" else (1, 1)
    assert work.flow_ps == (140 + 60) * 10**6
    assert work.latency_ps == 2 * (rounds[0] * 2 + rounds[1] * 4) * 10**6
    across = [work.link_bytes[i] for i in work.link_bytes if net.links[i].level == 1]
    assert set(across) == {2 * 3 * size // 32}


def test_chunks_of_a_hierarchical_all_reduce_keep_both_levels_busy() -> None:
    """4 nodes of 4, S = 1.6 MB, 1 GB/s inside and across, no ring but direct, so a step a stage.

    Inside a stage takes 3/4 S / 1 GB/s = 1.2 ms, across 3/4 of S/4: 0.3 ms; whole: 2 (1.2 + 0.3) ms. In 8 chunks stages
    in, across, across, in follow one another; both inner ones share the ports inside, 2 * 1.2 / 8 a slot, for 8 - 3
    slots, and the 3 first and 3 last have one of them each: (5 * 0.3 + 6 * 0.15) = 2.4 ms, all that the ports can do.
    """
    net = nodes_of(4, 4, GB, GB).topology()
    times = {}
    for chunks in (1, 8):
        plan = expand("all_reduce", 16, "hierarchical_direct", options=Options(shape=(4, 4), chunks=chunks))
        times[chunks] = group_amounts(plan, [100_000] * 16, range(16), net).flow_ps
    assert times == {1: 3_000 * 10**6, 8: 2_400 * 10**6}


def test_hierarchies_of_two_by_eight_and_eight_by_two_differ_by_their_links_only() -> None:
    """Alike links: 2 (15/16) S/b for both. Slow ones across: one takes S/8 across, the other S/2."""
    parts = [10_000] * 16
    times = {}
    for across in (GB, GB // 4):
        for count, inner in ((2, 8), (8, 2)):
            net = nodes_of(count, inner, GB, across).topology()
            net = replace(net, links=tuple(replace(li, latency_ps=0) for li in net.links))
            choice = Choice("hierarchical", Options(shape=(count, inner)))
            times[across, count] = amounts(net, choice, "all_reduce", parts).alone_ps
    assert times[GB, 2] == times[GB, 8] == 2 * 15 * 10_000 * 1000
    assert times[GB // 4, 2] == 2 * (14 + 1 * 4) * 10_000 * 1000
    assert times[GB // 4, 8] == 2 * (8 + 7 * 4) * 10_000 * 1000


def test_a_hierarchical_all_to_all_carries_a_whole_node_between_rail_mates() -> None:
    """2 nodes of 3, parts of 10 B: inside each sends 2 * 10 to each mate, across 3 * 10 to its like."""
    net = nodes_of(2, 3).topology()
    work = amounts(net, Choice("hierarchical", Options(shape=(2, 3))), "all_to_all", [10] * 36)
    assert work.steps == 2
    assert {work.link_bytes[i] for i in work.link_bytes if net.links[i].level == 0} == {2 * 2 * 10}
    assert {work.link_bytes[i] for i in work.link_bytes if net.links[i].level == 1} == {3 * 10}


def test_rings_over_rails_use_every_cards_port_out_of_the_node() -> None:
    """4 nodes of 4: a single ring leaves each node by one port, four rings by four, so across takes a quarter."""
    net = nodes_of(4, 4).topology()
    one = amounts(net, Choice("ring"), "all_reduce", [16_000] * 16)
    four = amounts(net, Choice("rings", Options(shape=(4, 4))), "all_reduce", [16_000] * 16)
    assert one.flow_ps == 4 * four.flow_ps == 30 * 16_000 * 1000
    ports = [four.link_bytes[i] for i in four.link_bytes if net.links[i].level == 1]
    assert len(ports) == 32 and set(ports) == {30 * 4_000}


def test_chunks_of_a_chain_follow_one_another() -> None:
    """4 members, 8 MB in 8 chunks at 1 GB/s: (3 + 7) ms and three latencies; in one chunk 24 ms."""
    net = SPECS["ring"].topology()
    for chunks, expected_ms in ((1, 24), (8, 10)):
        plan = expand("broadcast", 4, "chain", options=Options(chunks=chunks))
        work = group_amounts(plan, [8 * 10**6], range(4), net)
        assert (work.flow_ps, work.latency_ps) == (expected_ms * 10**9, 3 * 10**6)


def test_messages_hold_the_port_that_they_leave_by() -> None:
    """Direct all-to-all of 8 through one port each: 7 messages of 100 ns; in a mesh of as many, one a port."""
    parts = [1000] * 64
    overhead = {"overhead_ps": {"value": 100_000, "evidence": "assumed", "source": "a test"}}
    held = {}
    for kind in ("switch", "full_mesh"):
        with_it = spec_of(kind=kind, cards=8, link=link() | overhead).topology()
        work = amounts(with_it, Choice("direct"), "all_to_all", parts)
        held[kind] = (
            work.latency_ps
            - amounts(spec_of(kind=kind, cards=8).topology(), Choice("direct"), "all_to_all", parts).latency_ps
        )
    assert held == {"switch": 700_000, "full_mesh": 100_000}


def test_a_storing_switch_takes_a_message_whole_or_packet_by_packet() -> None:
    """1 MB at 1 GB/s: stored whole 2 ms, in packets of 1 kB 1 ms and a packet, cut through 1 ms; incast of 4: 5 ms."""
    flows = {}
    for name, more in {
        "whole": {"forwarding": "store_and_forward"},
        "packets": {"forwarding": "store_and_forward", "packet_bytes": 1000},
        "through": {},
    }.items():
        net = spec_of(kind="switch", cards=5, link=link(GB, 0, **more)).topology()
        work = group_amounts(expand("send_recv", 2), [10**6], (0, 1), net)
        incast = group_amounts(expand("gather", 5), [10**6] * 5, range(5), net)
        flows[name] = (work.flow_ps, incast.flow_ps)
    ms = 10**9
    assert flows == {"whole": (2 * ms, 5 * ms), "packets": (ms + 10**6, 4 * ms + 10**6), "through": (ms, 4 * ms)}


def test_planes_carry_their_shares() -> None:
    net = SPECS["planes"].topology()
    work = group_amounts(expand("send_recv", 2), [10], (0, 1), net)
    assert list(work.link_bytes.values()) == [4, 4, 3, 3, 3, 3]


def test_a_layout_that_leaves_a_node_partly_used_is_right() -> None:
    """tp=24 on nodes of 8 cards is three whole nodes; of 20 ranks the third node is uneven, and a ring serves them."""
    spec = nodes_of(4, 8)
    whole = spec.choose("all_reduce", 24, range(24), 1 << 30)
    assert (whole.algorithm, whole.options.shape) == ("hierarchical", (3, 8))
    uneven = spec.choose("all_reduce", 20, range(20), 1 << 30)
    assert uneven.algorithm == "ring"
    assert group_amounts(uneven.plan("all_reduce", 20), [1] * 20, range(20), spec.topology()).steps == 38


@pytest.mark.parametrize("name", SPECS)
def test_no_bytes_and_one_rank_cost_what_they_should(name: str) -> None:
    net = SPECS[name].topology()
    for collective in REDUCING:
        empty = [0] * COLLECTIVES[collective].parts(net.cards)
        for choice in choices_of(name, collective):
            work = amounts(net, choice, collective, empty)
            assert (work.flow_ps, dict(work.link_bytes)) == (0, {})
            assert work.latency_ps > 0
        one = group_amounts(expand(collective, 1), [5] * COLLECTIVES[collective].parts(1), (2,), net)
        assert (one.alone_ps, one.link_bytes) == (0, {})


def test_an_in_switch_reduction_without_such_a_switch_is_refused() -> None:
    plan = expand("all_reduce", 4, "in_switch")
    with pytest.raises(ConfigError, match="in_switch all_reduce of 4: no switch of this ring reduces; choose another"):
        group_amounts(plan, [1] * 4, range(4), SPECS["ring"].topology())


def test_groups_on_disjoint_links_do_not_meet() -> None:
    net = nodes_of(3, 4).topology()
    for choice in candidates("all_reduce", nodes_of(3, 4).group(range(4))):
        links = [
            group_amounts(choice.plan("all_reduce", 4), [9] * 4, range(n, n + 4), net).link_bytes.keys()
            for n in (0, 4, 8)
        ]
        assert not links[0] & links[1] and not links[1] & links[2]


def test_all_routes_of_a_plan_are_the_routers() -> None:
    net = SPECS["fat tree"].topology()
    routes = router(net).routes(np.array([0]), np.array([11]))
    work = group_amounts(expand("send_recv", 2), [7], (0, 11), net)
    assert sorted(work.link_bytes) == sorted(routes.links.tolist())
