"""Topologies have the links that their kind says, and routes are the shortest, the same on every machine."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siltwin.interconnect.cluster import make_cluster
from siltwin.interconnect.kinds import KINDS, kind
from siltwin.interconnect.link import Link
from siltwin.interconnect.routing import route
from siltwin.interconnect.topology import Topology
from siltwin.isa.errors import ConfigError


def topology(kind_name: str, cards: int) -> Topology:
    return make_cluster(kind_name, cards, 10**9, 1000).topology()


def nodes_on(net: Topology, path: tuple[int, ...]) -> list[int]:
    return [net.links[path[0]].source, *(net.links[link_id].target for link_id in path)] if path else []


def by_hand(cards: int, *pairs: tuple[int, int], switches: int = 0) -> Topology:
    links = tuple(Link(source, target, 1, 0, f"{source}>{target}") for source, target in pairs)
    return Topology("by hand", cards, links, switches)


def test_a_ring_of_eight_has_sixteen_links_and_a_mesh_fifty_six() -> None:
    assert len(topology("ring", 8).links) == 16
    assert len(topology("full_mesh", 8).links) == 56
    assert topology("single", 1).links == ()


def test_a_ring_of_two_is_one_wire_and_of_one_has_none() -> None:
    assert [(link.source, link.target) for link in topology("ring", 2).links] == [(0, 1), (1, 0)]
    assert topology("ring", 1).links == topology("full_mesh", 1).links == ()


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("cards", [1, 2, 3, 7, 8])
def test_every_kind_joins_all_cards_by_distinct_wires_that_exist_both_ways(name: str, cards: int) -> None:
    if cards > KINDS[name].max_cards:
        return
    net = topology(name, cards)
    wires = [(link.source, link.target) for link in net.links]
    assert len(set(wires)) == len(wires)
    assert {(target, source) for source, target in wires} == set(wires)
    for source in range(cards):
        for target in range(cards):
            seen = nodes_on(net, route(net, source, target))
            assert seen[:1] + seen[-1:] == ([source, target] if source != target else [])
    assert KINDS[name].summary


@given(st.integers(3, 40), st.data())
def test_a_route_on_a_ring_goes_the_shorter_way_round(cards: int, data: st.DataObject) -> None:
    source, target = (data.draw(st.integers(0, cards - 1)) for _ in range(2))
    path = route(topology("ring", cards), source, target)
    ahead = (target - source) % cards
    assert len(path) == min(ahead, cards - ahead)


def test_the_opposite_card_of_an_even_ring_is_reached_by_the_lowest_link_ids() -> None:
    net = topology("ring", 6)  # links 0 to 5 lead ahead, 6 to 11 back
    assert route(net, 1, 4) == (1, 2, 3)
    assert route(net, 4, 1) == (4, 5, 0)
    assert route(net, 1, 0) == (6,)


def test_ties_go_to_the_lowest_id_even_among_parallel_links() -> None:
    net = by_hand(4, (0, 2), (0, 1), (1, 3), (2, 3), (0, 2))
    assert route(net, 0, 3) == (0, 3)


def test_a_route_leads_through_a_switch() -> None:
    net = by_hand(2, (0, 2), (2, 1), switches=1)
    assert route(net, 0, 1) == (0, 1)
    assert net.node_name(2) == "switch 0"


def test_where_nothing_leads_the_error_names_the_cut() -> None:
    net = by_hand(6, (0, 1), (1, 2), (2, 0), (3, 4), (4, 3), (4, 5), (3, 0), (1, 6), switches=1)
    message = "no route from card 0 to card 5: no link leads from cards 0-2 and switch 0 to cards 3-5; "
    with pytest.raises(ConfigError, match=message):
        route(net, 0, 5)
    assert route(net, 3, 2) == (6, 0, 1)


def test_a_node_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match="node 8 is not in the topology; its nodes are 0 to 7"):
        route(topology("ring", 8), 0, 8)


@pytest.mark.parametrize("pair", [(0, 0), (0, 2), (-1, 0)])
def test_a_link_must_join_two_nodes_that_exist(pair: tuple[int, int]) -> None:
    with pytest.raises(ConfigError, match="must join two different nodes from 0 to 1"):
        by_hand(2, pair)


def test_names_join_runs_of_nodes() -> None:
    net = by_hand(9, switches=2)
    assert net.names([0, 1, 2, 5, 10, 9]) == "cards 0-2, 5 and switches 0-1"
    assert net.names([4]) == "card 4"


def test_a_kind_that_is_registered_twice_is_an_error() -> None:
    with pytest.raises(AssertionError, match="topology kind ring already belongs to ring"):
        kind("ring", max_cards=1)(KINDS["ring"].wire)


def test_topologies_are_values() -> None:
    net = topology("ring", 4)
    same = Topology(net.kind, net.cards, net.links)
    assert same == net and hash(same) == hash(net)
    assert topology("ring", 5) != net
