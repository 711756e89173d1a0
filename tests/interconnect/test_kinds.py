"""Every kind of topology has the links that its definition counts, level by level, and its geometry's distances."""

from typing import Any

import numpy as np
import pytest

from siltwin.interconnect.cluster import ClusterSpec
from siltwin.interconnect.routing import route, router
from siltwin.interconnect.specfile import validated
from siltwin.interconnect.topology import Topology
from siltwin.isa.errors import ConfigError


def quantity(value: int) -> dict[str, Any]:
    return {"value": value, "evidence": "assumed", "source": "a test"}


def link(bandwidth: int = 10**9, latency_ps: int = 1000, **more: Any) -> dict[str, Any]:
    return {"bandwidth_bytes_per_s": quantity(bandwidth), "latency_ps": quantity(latency_ps)} | more


def spec_of(**fields: Any) -> ClusterSpec:
    if "levels" not in fields:
        fields.setdefault("link", link())
    return validated(ClusterSpec, {"name": "mine"} | fields, "mine")


def net_of(**fields: Any) -> Topology:
    return spec_of(**fields).topology()


def hops(net: Topology) -> np.ndarray:
    """Links between every two cards."""
    source, target = (side.reshape(-1) for side in np.divmod(np.arange(net.cards**2), net.cards))
    return router(net).routes(source, target).hops.reshape(net.cards, net.cards, -1)[:, :, 0]


def test_a_torus_joins_neighbours_in_every_dimension_and_round_the_ends() -> None:
    """4 x 4 x 4: 64 cards with 6 links out each; two opposite corners of a side of 4 are 2 apart, so at most 6."""
    net = net_of(kind="torus", dims=[4, 4, 4])
    assert (net.cards, len(net.links), net.dims) == (64, 64 * 6, (4, 4, 4))
    assert hops(net).max() == 6
    assert {net.links[i].target for i in net.outgoing[0]} == {1, 3, 4, 12, 16, 48}


def test_a_mesh_has_no_wires_round_the_ends() -> None:
    """3 x 4: 2 * 4 + 3 * 3 wires both ways; from corner to corner 2 + 3 hops."""
    net = net_of(kind="mesh", dims=[3, 4])
    assert len(net.links) == 2 * (2 * 4 + 3 * 3)
    assert hops(net).max() == 5
    assert net_of(kind="mesh", cards=5).links[-1].name == "4>3"  # without dims a line


def test_sides_of_two_have_one_wire_and_of_one_none() -> None:
    assert len(net_of(kind="torus", dims=[2, 2, 2]).links) == 8 * 3
    assert len(net_of(kind="torus", dims=[1, 5]).links) == 10


def test_a_torus_of_one_dimension_is_a_ring() -> None:
    ring, torus = net_of(kind="ring", cards=6), net_of(kind="torus", dims=[6])
    assert ring.links == torus.links


def test_a_switch_joins_all_by_two_links() -> None:
    net = net_of(kind="switch", cards=8)
    assert (len(net.links), net.switches) == (16, 1)
    assert net.links[8].name == "s0>0"
    assert set(hops(net)[~np.eye(8, dtype=bool)]) == {2}


def test_a_two_level_fat_tree_has_as_much_above_its_leaves_as_below() -> None:
    """16 cards on 4 leaves of 4, 4 spines: 16 + 16 wires; 2 hops on a leaf, 4 between leaves."""
    net = net_of(kind="fat_tree", cards=16, leaf_cards=4)
    assert (net.switches, len(net.links)) == (4 + 4, 2 * (16 + 16))
    assert hops(net)[0, 1] == 2
    assert hops(net)[0, 4] == 4
    assert net.routing.policy == "ecmp"


def test_an_oversubscribed_tree_has_fewer_spines() -> None:
    net = net_of(kind="fat_tree", cards=16, leaf_cards=4, oversubscription=[2])
    assert (net.switches, len(net.links)) == (4 + 2, 2 * (16 + 8))


def test_a_three_level_fat_tree_joins_pods_by_cores_of_their_own_number() -> None:
    """32 cards, leaves of 4, pods of 2: 8 leaves, 4 pods of 4 aggregation switches, 4 * 2 cores; 6 hops across."""
    net = net_of(kind="fat_tree", cards=32, leaf_cards=4, pod_leaves=2)
    assert net.switches == 8 + 16 + 8
    assert len(net.links) == 2 * (32 + 8 * 4 + 16 * 2)
    assert (hops(net)[0, 3], hops(net)[0, 4], hops(net)[0, 8]) == (2, 4, 6)
    thin = net_of(kind="fat_tree", cards=32, leaf_cards=4, pod_leaves=2, oversubscription=[2, 2])
    assert thin.switches == 8 + 4 * 2 + 2 * 1


def test_links_above_the_leaves_may_be_faster() -> None:
    net = net_of(kind="fat_tree", cards=8, leaf_cards=4, uplinks=[link(4 * 10**9)])
    assert {li.bandwidth_bytes_per_s for li in net.links if li.source >= 8 and li.target >= 8} == {4 * 10**9}
    assert {li.bandwidth_bytes_per_s for li in net.links if li.source < 8 or li.target < 8} == {10**9}


def test_planes_are_copies_side_by_side_and_transfers_are_striped_over_them() -> None:
    net = net_of(kind="switch", cards=4, planes=3)
    assert (net.switches, len(net.links), net.routing.stripes) == (3, 3 * 8, 3)
    routes = router(net).routes(np.array([0]), np.array([2]))
    assert [net.links[i].target for i in routes.links.tolist()] == [4, 2, 5, 2, 6, 2]


NODE = {"name": "node", "kind": "full_mesh", "of": 4, "link": link(10**10)}


def test_rails_join_cards_of_equal_place() -> None:
    """3 nodes of 4 cards in full meshes; rail r joins card r of every node by a switch of its own."""
    net = net_of(levels=[NODE, {"name": "rails", "kind": "switch", "of": 3, "joins": "rails", "link": link()}])
    assert (net.cards, net.switches, net.shape, net.kind) == (12, 4, (3, 4), "hierarchy")
    assert len(net.links) == 3 * 12 + 4 * 6
    assert [net.links[i].name for i in route(net, 1, 9)] == ["1>s1", "s1>9"]
    assert len(route(net, 1, 8)) == 3  # over the rail and then inside, or the other way round


def test_all_cards_may_join_the_planes_above_packages() -> None:
    """Two dies in a package, four packages on two planes: dies of a package talk directly, others over the planes."""
    net = net_of(
        levels=[
            {"name": "package", "kind": "full_mesh", "of": 2, "link": link(10**10)},
            {"name": "plane", "kind": "switch", "of": 4, "planes": 2, "link": link()},
        ]
    )
    assert (net.cards, net.switches, net.routing.stripes) == (8, 2, 2)
    assert len(net.links) == 4 * 2 + 2 * 16
    assert len(route(net, 0, 1)) == 1
    assert [net.links[i].name for i in route(net, 0, 3)] == ["0>s0", "s0>3"]


def test_switches_of_nodes_may_be_what_is_joined() -> None:
    """4 cards on a PCIe switch, three of these on an Ethernet switch: one link out of each node for all of it."""
    net = net_of(
        levels=[
            {"name": "node", "kind": "switch", "of": 4, "link": link()},
            {"name": "net", "kind": "switch", "of": 3, "joins": "switch", "link": link(10**8)},
        ]
    )
    assert (net.switches, len(net.links)) == (4, 3 * 8 + 6)
    assert [net.links[i].name for i in route(net, 0, 11)] == ["0>s0", "s0>s3", "s3>s2", "s2>11"]


def test_three_levels_compose() -> None:
    levels = [
        {"name": "package", "kind": "full_mesh", "of": 2, "link": link()},
        {"name": "node", "kind": "ring", "of": 4, "joins": "rails", "link": link()},
        {"name": "pod", "kind": "fat_tree", "of": 6, "leaf_cards": 8, "link": link()},
    ]
    net = net_of(levels=levels)
    assert (net.cards, net.shape) == (48, (6, 4, 2))
    assert hops(net).max() < 10


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "torus", "dims": [4, 4], "cards": 8}, "dims 4 x 4 hold 16 cards, not 8"),
        ({"kind": "torus", "dims": [2, 2, 2, 2]}, "give 1 to 3 sides"),
        ({"kind": "ring", "dims": [4, 2]}, "dims means nothing to kind ring; it takes nothing more"),
        ({"kind": "fat_tree", "cards": 16, "leaf_cards": 4, "oversubscription": [3]}, "3 does not divide leaf_cards=4"),
        ({"kind": "fat_tree", "cards": 16, "leaf_cards": 4, "oversubscription": [2, 2]}, "more ratios than the tree"),
        ({"kind": "full_mesh", "cards": 513}, "cards=513 does not suit kind full_mesh; it takes 1 to 512"),
        ({"kind": "ring", "cards": 4, "link": None}, "link: is missing"),
        ({"kind": "ring", "cards": 4, "levels": [NODE]}, "kind hierarchy has `levels`, and no other kind has"),
        ({"kind": "hierarchy", "cards": 4, "link": link()}, "kind hierarchy has `levels`"),
        ({"levels": [NODE], "planes": 2}, "planes stands at each of the levels"),
        ({"levels": [NODE], "cards": 5}, "cards=5, and the levels hold 4"),
        ({"levels": [NODE, NODE]}, "levels node, node: two have one name"),
        ({"levels": [NODE | {"joins": "switch"}]}, "joins the switch of each unit below it, and below it is nothing"),
        (
            {"levels": [NODE, NODE | {"name": "up", "joins": "switch"}]},
            "level up joins the switch of each unit below it, and below it is kind full_mesh",
        ),
        ({"levels": [NODE | {"of": 600}]}, "level node, 600 ends: cards=600 does not suit kind full_mesh"),
        ({"levels": [NODE | {"kind": "single"}]}, "kind single joins nothing"),
        ({"kind": "switch", "cards": 4, "routing": {"policy": "dimension_order"}}, "needs a ring, mesh or torus"),
        ({"kind": "ring", "cards": 4, "routing": {"policy": "dimension_order", "stripes": 2}}, "leave out metric and"),
        ({"kind": "ring", "cards": 4, "link": link(packet_bytes=64)}, "cut_through waits for nothing"),
    ],
)
def test_what_cannot_be_built_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        spec_of(**fields)
