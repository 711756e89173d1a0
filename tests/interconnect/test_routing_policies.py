"""Routes follow the policy that is asked for, go round what is down or slow, and are the same on every machine."""

from dataclasses import replace
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siltwin.interconnect.cluster import ClusterSpec, load_cluster
from siltwin.interconnect.link import Link
from siltwin.interconnect.policy import Routing
from siltwin.interconnect.routing import route, router
from siltwin.interconnect.specfile import validated
from siltwin.interconnect.topology import Topology
from siltwin.isa.errors import ConfigError


def net_of(kind: str, routing: dict[str, Any] | None = None, **fields: Any) -> Topology:
    number = {"value": 10**9, "evidence": "assumed", "source": "a test"}
    link = {"bandwidth_bytes_per_s": number, "latency_ps": number | {"value": 1000}}
    content = {"name": "mine", "kind": kind, "link": link} | fields | ({"routing": routing} if routing else {})
    return validated(ClusterSpec, content, "mine").topology()


def all_pairs(nodes: int) -> tuple[np.ndarray, np.ndarray]:
    source, target = np.divmod(np.arange(nodes * nodes), nodes)
    return source, target


def nodes_on(net: Topology, path: tuple[int, ...]) -> list[int]:
    return [net.links[path[0]].source, *(net.links[link_id].target for link_id in path)]


def with_down(net: Topology, *names: str) -> Topology:
    return replace(net, links=tuple(replace(link, down=link.name in names) for link in net.links))


GRAPHS = [
    net_of("torus", dims=[3, 4]),
    net_of("fat_tree", cards=24, leaf_cards=4, pod_leaves=2),
    net_of("mesh", dims=[2, 3, 4]),
    net_of("fat_tree", {"policy": "shortest"}, cards=16, leaf_cards=4),
    net_of("fat_tree", {"policy": "by_destination"}, cards=16, leaf_cards=4),
    net_of("torus", {"policy": "dimension_order"}, dims=[4, 5]),
]


@pytest.mark.parametrize("net", GRAPHS, ids=lambda net: f"{net.kind}-{net.routing.policy}")
def test_all_routes_at_once_are_shortest_ways_that_hang_together(net: Topology) -> None:
    """networkx is the judge of how long a shortest way is."""
    graph = nx.DiGraph([(link.source, link.target) for link in net.links])
    lengths = dict(nx.all_pairs_shortest_path_length(graph))
    source, target = all_pairs(net.cards)
    routes = router(net).routes(source, target)
    for pair, (start, goal) in enumerate(zip(source.tolist(), target.tolist(), strict=True)):
        path = tuple(routes.links[routes.starts[pair] : routes.starts[pair + 1]].tolist())
        assert len(path) == lengths[start][goal]
        assert path == route(net, start, goal)
        if path:
            seen = nodes_on(net, path)
            assert (seen[0], seen[-1]) == (start, goal)
            assert all(net.links[a].target == net.links[b].source for a, b in zip(path, path[1:], strict=False))


def test_dimension_order_corrects_the_first_coordinate_first_and_the_shorter_way_round() -> None:
    """Card (x, y) of 4 x 5 is 5x + y: from (0, 0) to (3, 2) back over the end, then two ahead."""
    net = net_of("torus", {"policy": "dimension_order"}, dims=[4, 5])
    assert nodes_on(net, route(net, 0, 17)) == [0, 15, 16, 17]
    assert nodes_on(net, route(net, 0, 10)) == [0, 5, 10]  # two ahead or two back: ahead
    mesh = net_of("mesh", {"policy": "dimension_order"}, dims=[4, 5])
    assert nodes_on(mesh, route(mesh, 0, 17)) == [0, 5, 10, 15, 16, 17]


def test_dimension_order_takes_another_way_only_where_its_own_is_down() -> None:
    net = with_down(net_of("mesh", {"policy": "dimension_order"}, dims=[3, 3]), "0>3")
    assert nodes_on(net, route(net, 0, 4)) == [0, 1, 4]
    assert nodes_on(net, route(net, 1, 3)) == [1, 4, 3]


def test_ecmp_spreads_pairs_over_all_spines_evenly_and_by_its_seed() -> None:
    """32 cards, 4 spines: 32 * 24 pairs between leaves of 8, so 192 a spine; three standard deviations are 36."""
    taken = {}
    for seed in (0, 1):
        net = net_of("fat_tree", {"policy": "ecmp", "seed": seed}, cards=32, leaf_cards=8, oversubscription=[2])
        source, target = all_pairs(32)
        routes = router(net).routes(source, target)
        long = np.flatnonzero(routes.hops == 4)
        spines = net.columns.target[routes.links[routes.starts[long] + 1]]
        counts = np.bincount(spines - 32 - 4)
        assert counts.sum() == 32 * 24 and len(counts) == 4
        assert abs(counts - 192).max() < 36
        taken[seed] = spines
    assert 0.15 < (taken[0] == taken[1]).mean() < 0.35


def splitmix(*values: int) -> int:
    """The finaliser of splitmix64 over values, in plain whole numbers."""
    mask, mixed = (1 << 64) - 1, values[0]
    for value in values[1:]:
        mixed = (mixed + value + 0x9E3779B97F4A7C15) & mask
        mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & mask
        mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & mask
        mixed ^= mixed >> 31
    return mixed


def test_the_hash_of_ecmp_is_the_stated_one() -> None:
    """Of (seed, source, target, choices so far), modulo the four spines, which are switches 4 to 7."""
    net = net_of("fat_tree", {"policy": "ecmp", "seed": 7}, cards=16, leaf_cards=4)
    spines = [net.links[route(net, 0, target)[1]].name for target in range(4, 12)]
    assert spines == [f"s0>s{4 + splitmix(7, 0, target, 0) % 4}" for target in range(4, 12)]


def test_by_destination_gives_a_shift_its_own_way_for_every_card() -> None:
    """Every card sends to the one 4 further on: no two of the 16 flows meet on any link, for there is one for each."""
    net = net_of("fat_tree", {"policy": "by_destination"}, cards=16, leaf_cards=4)
    source = np.arange(16)
    links = router(net).routes(source, (source + 4) % 16).links
    assert len(links) == len(np.unique(links)) == 64


def test_routes_go_round_a_link_that_is_down() -> None:
    net = net_of("ring", cards=6)
    assert nodes_on(with_down(net, "0>1"), route(with_down(net, "0>1"), 0, 2)) == [0, 5, 4, 3, 2]
    tree = net_of("fat_tree", cards=8, leaf_cards=4)
    broken = with_down(tree, "s0>s2", "s0>s3", "s0>s4")
    assert {broken.links[route(broken, 0, target)[1]].name for target in range(4, 8)} == {"s0>s5"}


def test_where_links_that_are_down_cut_the_cards_apart_the_error_names_them() -> None:
    net = with_down(net_of("ring", cards=6), "0>1", "4>3")
    message = r"no route from card 5 to card 2: no link leads from cards 0, 4-5 to cards 1-3 \(0>1, 4>3 are down\); add"
    with pytest.raises(ConfigError, match=message):
        route(net, 5, 2)
    assert route(net, 2, 5)


def test_a_link_that_is_down_stands_in_the_cluster_file() -> None:
    net = net_of("ring", cards=4, links=[{"source": 1, "target": 2, "down": True}])
    assert [link.name for link in net.links if link.down] == ["1>2"]
    assert len(route(net, 1, 2)) == 3


def test_routes_by_time_go_round_a_slow_link_when_that_is_worth_it() -> None:
    """One MiB at 1 GB/s takes 1.05 ms a link, so five links are worth it from a fifth of the bandwidth down."""
    slow = {"source": 0, "target": 1, "bandwidth_bytes_per_s": {"value": 0, "evidence": "assumed", "source": "slow"}}
    for bandwidth, length in ((10**9 // 4, 1), (10**9 // 6, 5)):
        slow["bandwidth_bytes_per_s"]["value"] = bandwidth  # type: ignore[index]
        net = net_of("ring", {"metric": "time", "message_bytes": 1 << 20}, cards=6, links=[slow])
        assert len(route(net, 0, 1)) == length
        assert len(route(net_of("ring", cards=6, links=[slow]), 0, 1)) == 1


def test_of_parallel_links_time_takes_the_faster_one() -> None:
    links = (Link(0, 1, 10, 0, "slow"), Link(0, 1, 20, 0, "fast"))
    assert route(Topology("by hand", 2, links), 0, 1) == (0,)
    assert route(Topology("by hand", 2, links, routing=Routing(metric="time")), 0, 1) == (1,)


def test_stripes_take_neighbouring_choices_and_share_what_there_is() -> None:
    net = net_of("switch", {"stripes": 4}, cards=3, planes=2)
    routes = router(net).routes(np.array([0]), np.array([1]))
    assert [net.links[i].target for i in routes.links[::2].tolist()] == [3, 4, 3, 4]


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 9), st.data())
def test_on_any_graph_routes_exist_exactly_where_networkx_finds_them(nodes: int, data: st.DataObject) -> None:
    ends = st.integers(0, nodes - 1)
    pairs = data.draw(st.lists(st.tuples(ends, ends).filter(lambda p: p[0] != p[1]), max_size=20))
    down = data.draw(st.lists(st.booleans(), min_size=len(pairs), max_size=len(pairs)))
    links = tuple(Link(s, t, 1, 0, f"{i}", down=off) for i, ((s, t), off) in enumerate(zip(pairs, down, strict=True)))
    policy = data.draw(st.sampled_from(["shortest", "ecmp", "by_destination"]))
    net = Topology("by hand", nodes, links, routing=Routing(policy=policy))
    graph = nx.DiGraph()
    graph.add_nodes_from(range(nodes))
    graph.add_edges_from((link.source, link.target) for link in links if not link.down)
    source, target = data.draw(ends), data.draw(ends)
    if nx.has_path(graph, source, target):
        path = route(net, source, target)
        assert len(path) == nx.shortest_path_length(graph, source, target)
        assert not any(links[i].down for i in path)
    else:
        with pytest.raises(ConfigError, match="no link leads from"):
            route(net, source, target)


def test_shares_that_take_all_planes_alike_take_them_in_turn_and_a_hash_draws_only_beyond() -> None:
    net = load_cluster("cloudmatrix-384").topology()
    for source, target in ((0, 2), (5, 14), (17, 30), (0, 16), (3, 700)):
        routes = router(net).routes(np.array([source]), np.array([target]))
        ups = [net.links[link_id] for link_id in routes.links[routes.starts[:-1]].tolist()]
        node = source // 16
        assert [link.target - net.cards for link in ups] == [7 * node + plane for plane in range(7)]
    one, other = (router(net).routes(np.array([source]), np.array([target])) for source, target in ((0, 16), (0, 18)))
    assert [net.links[i].target for i in one.links[1::4]] != [net.links[i].target for i in other.links[1::4]]
