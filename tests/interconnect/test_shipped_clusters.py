"""Shipped clusters have the geometry and rates of what they stand for, and the examples of the documentation load."""

import re
from pathlib import Path

import pytest

import siltwin
from siltwin.interconnect.cluster import cluster_names, load_cluster, resized
from siltwin.interconnect.collectives.registry import COLLECTIVES, algorithms_for
from siltwin.interconnect.kinds import KINDS
from siltwin.interconnect.measures import bisections, cut_bytes_per_s, diameter
from siltwin.interconnect.routing import route
from siltwin.isa.errors import ConfigError

DOCUMENT = (Path(siltwin.__file__).parent / "docs" / "clusters.md").read_text()
EXAMPLES = [text for text in re.findall(r"```yaml\n(.*?)```", DOCUMENT, re.S) if text.startswith("name:")]
GB = 10**9


@pytest.mark.parametrize("text", EXAMPLES, ids=lambda text: text.split("\n")[0].removeprefix("name: "))
def test_an_example_of_the_documentation_loads_and_all_its_cards_reach_each_other(tmp_path: Path, text: str) -> None:
    file = tmp_path / "example.yaml"
    file.write_text(text)
    topology = load_cluster(file).topology()
    assert (diameter(topology).hops > 0) == (topology.cards > 1)


def test_the_documentation_has_an_example_of_every_kind_and_way_to_join() -> None:
    text = "\n".join(EXAMPLES)
    assert set(re.findall(r"kind: (\w+)", text)) == set(KINDS)
    assert set(re.findall(r"joins: (\w+)", text)) == {"rails", "switch"}  # and cards, where it is not said


def test_the_documentation_names_the_algorithms_of_every_collective() -> None:
    rows = dict(re.findall(r"^\| ([a-z_, ]+) \| (.+) \|$", DOCUMENT.split("the usual one first |")[1], re.M))
    named = {name: row for names, row in rows.items() for name in names.split(", ")}
    for collective in COLLECTIVES:
        listed = re.sub(r" \(\w+\)", "", named[collective]).split(", ")
        assert listed[0] == algorithms_for(collective)[0]
        assert set(listed) == set(algorithms_for(collective)), collective


# cards, switches, longest way, bytes a second through the middle
GEOMETRY = {
    "cloudmatrix-384": (768, 48 * 7 + 7 * 16, 4, 384 * 196 * GB),
    "supernodes-2x256": (1024, 2 * (32 * 7 + 7 * 16) + 32 + 32, 4, 512 * 25 * GB),
    "h100-8": (8, 1, 2, 4 * 450 * GB),
    "h100-4x8": (32, 4 + 8, 4, 16 * 50 * GB),
    "h800-4x8": (32, 4 + 8, 4, 16 * 50 * GB),
    "torus-4x4x4": (64, 0, 6, 2 * 16 * 45 * GB),
    "ethernet-64": (64, 16 + 4 + 2, 6, 4 * GB * 25 // 2),
    "fat-tree-512": (512, 32 + 16, 4, 256 * 50 * GB),
    "full-mesh-8": (8, 0, 1, 16 * 28 * GB),
    "ring-8": (8, 0, 4, 2 * 50 * GB),
}


@pytest.mark.parametrize("name", GEOMETRY)
def test_a_shipped_cluster_has_the_geometry_of_what_it_stands_for(name: str) -> None:
    topology = load_cluster(name).topology()
    cut = bisections(topology)[0].bandwidth_bytes_per_s
    assert (topology.cards, topology.switches, diameter(topology).hops, cut) == GEOMETRY[name]


@pytest.mark.parametrize("name", cluster_names())
def test_every_number_says_where_it_comes_from(name: str) -> None:
    spec = load_cluster(name)
    parts = [spec.link] if spec.link else list(spec.levels)
    sources = [number.source for part in parts if part for number in part.quantities()]
    assert sources and all(len(source) > 20 for source in sources)


def test_dies_of_a_package_talk_directly_and_others_over_all_seven_planes() -> None:
    """392 GB/s leave a package of two dies; a node's switch sends up as much as its sixteen dies send to it."""
    net = load_cluster("cloudmatrix-384").topology()
    assert [net.links[i].bandwidth_bytes_per_s for i in route(net, 0, 1)] == [270 * GB]
    assert (len(route(net, 0, 2)), len(route(net, 0, 767))) == (2, 4)
    assert cut_bytes_per_s(net, [0, 1], list(range(2, 768))) == 392 * GB
    ups = [link for link in net.links if link.source == 768 and link.level == 2]
    assert sum(link.bandwidth_bytes_per_s for link in ups) == 448 * GB


def test_supernodes_meet_over_roce_only_and_stay_on_their_planes_within() -> None:
    net = load_cluster("supernodes-2x256").topology()
    assert {net.links[i].level for i in route(net, 0, 511)} == {1, 2}
    assert [net.links[i].level for i in route(net, 0, 1023)] == [3] * 4


def test_rails_of_nodes_are_met_over_nvlink_first() -> None:
    net = load_cluster("h100-4x8").topology()
    assert [net.links[i].level for i in route(net, 0, 8)] == [1, 1]
    assert sorted(net.links[i].level for i in route(net, 0, 9)) == [0, 0, 1, 1]


def test_a_hierarchy_is_resized_by_whole_outermost_units() -> None:
    spec = load_cluster("h100-4x8")
    assert resized(spec, 16).topology().shape == (2, 8)
    bigger = resized(spec, 64)
    assert (bigger.topology().shape, bigger.weakest_evidence()) == ((8, 8), "assumed")
    assert bigger.levels[1].link.bandwidth_bytes_per_s.evidence == "assumed"
    with pytest.raises(ConfigError, match="it has units of 8 cards"):
        resized(spec, 12)


def test_a_cluster_without_a_protocol_says_so() -> None:
    with pytest.raises(ConfigError, match="ring-8 has no protocol 'fast'; it has none"):
        load_cluster("ring-8").protocol("fast")
