"""Cluster files: what is shipped loads with its evidence, and every fault is named with its file and field."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from siltwin.interconnect.cluster import (
    ClusterSpec,
    cluster_names,
    load_cluster,
    make_cluster,
    resized,
    usual_node,
)
from siltwin.interconnect.evidence import Quantity, weakest
from siltwin.interconnect.link import LinkSpec
from siltwin.isa.errors import ConfigError

GOOD: dict[str, Any] = {
    "name": "mine",
    "kind": "ring",
    "cards": 4,
    "link": {
        "bandwidth_bytes_per_s": {"value": "50e9", "evidence": "measured", "source": "our bench"},
        "latency_ps": {"value": 500_000, "evidence": "assumed", "source": "a guess"},
    },
}
SLOW = {"value": 10**9, "evidence": "assumed", "source": "what if"}


def changed(**changes: Any) -> dict[str, Any]:
    """GOOD with fields changed; `link__latency_ps__value` reaches inside, `...` deletes."""
    spec: dict[str, Any] = yaml.safe_load(yaml.safe_dump(GOOD))
    for dotted, value in changes.items():
        *path, last = dotted.split("__")
        here = spec
        for part in path:
            here = here[part]
        if value is ...:
            del here[last]
        else:
            here[last] = value
    return spec


def load_text(tmp_path: Path, text: str) -> ClusterSpec:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    return load_cluster(file)


def load(tmp_path: Path, **changes: Any) -> ClusterSpec:
    return load_text(tmp_path, yaml.safe_dump(changed(**changes)))


@pytest.mark.parametrize("name", cluster_names())
def test_every_shipped_cluster_loads_and_says_where_its_numbers_come_from(name: str) -> None:
    spec = load_cluster(name)
    assert spec.name == name
    assert spec.topology().cards == spec.cards


def test_the_shipped_clusters_have_their_published_rates() -> None:
    """Port rates a direction: HCCS 196 GB/s over 7 links, NVLink 3 and 4, UB 196 GB/s a die."""
    names = ("full-mesh-8", "a100-8", "h100-8", "ub-16", "ring-8")
    rates = {name: load_cluster(name).evidence_of("link.bandwidth_bytes_per_s").value for name in names}
    assert rates["full-mesh-8"] * 7 == 196 * 10**9
    assert (rates["a100-8"], rates["h100-8"], rates["ub-16"]) == (300 * 10**9, 450 * 10**9, 196 * 10**9)
    assert rates["ring-8"] == 50 * 10**9


def test_a_file_of_ones_own_loads_by_its_path(tmp_path: Path) -> None:
    spec = load(tmp_path)
    assert spec == load_cluster(str(tmp_path / "mine.yaml"))
    assert {link.bandwidth_bytes_per_s for link in spec.topology().links} == {50 * 10**9}
    assert spec.evidence_of("link.bandwidth_bytes_per_s").source == "our bench"
    assert spec.weakest_evidence() == "assumed"


def test_a_link_can_differ_from_the_others(tmp_path: Path) -> None:
    spec = load(tmp_path, links=[{"source": 1, "target": 2, "bandwidth_bytes_per_s": SLOW}])
    rates = {(link.source, link.target): link.bandwidth_bytes_per_s for link in spec.topology().links}
    assert rates.pop((1, 2)) == 10**9
    assert set(rates.values()) == {50 * 10**9}
    assert {link.latency_ps for link in spec.topology().links} == {500_000}


def test_an_unknown_name_lists_the_shipped_clusters() -> None:
    with pytest.raises(ConfigError, match=r"no cluster is called 'ring8'; did you mean ring-8\? \(shipped: .*ub-16"):
        load_cluster("ring8")


WRONG_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"colour": "red"}, r"colour: is not a field here \(fields: .*name, .*links"),
    ({"link__latncy_ps": 1}, r"link\.latncy_ps: is not a field here; did you mean latency_ps\?"),
    ({"links": [{"source": 0, "target": 1, "latency": SLOW}]}, r"links\.0\.latency: .* did you mean latency_ps\?"),
    ({"link__latency_ps__unit": "ps"}, r"link\.latency_ps\.unit: is not a field here \(fields: value"),
    ({"cards": ...}, "cards: is missing"),
    ({"cards": 0}, r"cards: cards=0 does not suit kind ring; it takes 1 to 65536 \(got 0\)"),
    ({"cards": -3}, "cards: cards=-3 does not suit"),
    ({"cards": 10**12}, "cards: cards=1000000000000 does not suit kind ring"),
    ({"cards": "four"}, r"cards: .*integer \(got 'four'\)"),
    ({"cards": True}, "cards: .*integer"),
    ({"cards": 2.5}, "cards: .*integer"),
    ({"kind": "rung"}, r"kind: kind 'rung' is not a topology; did you mean ring\?"),
    ({"kind": "single"}, "cards: cards=4 does not suit kind single; it takes 1 to 1"),
    ({"name": ""}, "name: "),
    ({"link": 5}, "link: .*(dictionary|instance)"),
    ({"link__bandwidth_bytes_per_s": 5}, r"link\.bandwidth_bytes_per_s: every number carries its evidence"),
    ({"link__bandwidth_bytes_per_s__value": float("nan")}, r"link\.bandwidth_bytes_per_s\.value: .*finite"),
    ({"link__bandwidth_bytes_per_s__value": float("inf")}, r"link\.bandwidth_bytes_per_s\.value: .*finite"),
    ({"link__bandwidth_bytes_per_s__value": "1e999"}, r"link\.bandwidth_bytes_per_s\.value: .*finite"),
    ({"link__bandwidth_bytes_per_s__value": -1}, r"link\.bandwidth_bytes_per_s\.value: .*\(got -1\)"),
    ({"link__bandwidth_bytes_per_s__value": 0}, r"link\.bandwidth_bytes_per_s: must be from 1 to"),
    ({"link__bandwidth_bytes_per_s__value": True}, r"link\.bandwidth_bytes_per_s\.value: must be a whole number"),
    ({"link__bandwidth_bytes_per_s__value": [1]}, r"link\.bandwidth_bytes_per_s\.value: must be a whole number"),
    ({"link__latency_ps__value": "soon"}, r"link\.latency_ps\.value: must be a whole number \(got 'soon'\)"),
    ({"link__latency_ps__value": 0.5}, r"link\.latency_ps\.value: must be a finite whole number \(got 0.5\)"),
    ({"link__latency_ps__value": 10**13}, r"link\.latency_ps: must be from 0 to 1000000000000 picoseconds"),
    ({"link__latency_ps__evidence": "rumour"}, r"link\.latency_ps\.evidence: .*'assumed' \(got 'rumour'\)"),
    (
        {"link__latency_ps__evidence": "calibrated"},
        r"link\.latency_ps: evidence 'calibrated' needs its relative `error`",
    ),
    ({"link__latency_ps__source": ""}, r"link\.latency_ps\.source: "),
    ({"links": [{"source": 0, "target": 2, "latency_ps": SLOW}]}, r"links: entry 0: ring of 4 has no link from 0 to 2"),
    ({"links": [{"source": 0, "target": 0, "latency_ps": SLOW}]}, r"links: entry 0: ring of 4 has no link from 0 to 0"),
    ({"links": [{"source": 0, "target": 9, "latency_ps": SLOW}]}, r"links: entry 0: ring of 4 has no link from 0 to 9"),
    (
        {"links": [{"source": 0, "target": 1, "latency_ps": SLOW}] * 2},
        r"links: entry 1: the link from 0 to 1 stands twice",
    ),
    ({"links": [{"source": 0, "target": 1}]}, r"links\.0: .*changes nothing"),
    ({"links": [{"source": -1, "target": 1, "latency_ps": SLOW}]}, r"links\.0\.source: .*\(got -1\)"),
]


@pytest.mark.parametrize(("change", "message"), WRONG_FIELDS)
def test_a_wrong_field_is_named_with_its_file(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    dumper = type("NoAliases", (yaml.SafeDumper,), {"ignore_aliases": lambda self, data: True})
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.dump(changed(**change), Dumper=dumper))
    with pytest.raises(ConfigError, match=rf"(?m)^.*mine\.yaml: {message}"):
        load_cluster(file)


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        load(tmp_path, colour="red", cards=..., link__latency_ps__value=-1)
    assert len(str(error.value).splitlines()) == 3


WRONG_TEXTS = {
    "a list": ("- ring\n- 8\n", "must be a mapping of fields, not list"),
    "nothing": ("", "must be a mapping of fields, not NoneType"),
    "a key twice": ("cards: 4\ncards: 8\n", "key 'cards' stands twice.*line 2"),
    "an object": ("name: !!python/object/apply:os.system ['true']\n", "is not plain YAML: could not determine"),
    "a bomb": ("a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n", "aliases are not allowed"),
    "a merge": ("link: &link {x: 1}\nother:\n  <<: *link\n", "aliases are not allowed"),
    "deep nesting": ("a: " + "[" * 5000, "nested too deeply|is not plain YAML"),
    "half a file": ("link: {bandwidth", "is not plain YAML"),
    "a key that is a list": ("? [1, 2]\n: 3\n", "a key must be a plain word"),
    "a lying tag": ("cards: !!bool maybe\n", "is not plain YAML"),
    "a lying time": ("cards: !!timestamp soon\n", "is not plain YAML"),
    "a number as key": ("1: 2\n", "1: "),
    "endless digits": ("cards: " + "9" * 5000, "is not plain YAML"),
    "control characters": ("name: \x00\n", "is not plain YAML"),
    "a date as number": ("cards: 2020-13-45\n", "is not plain YAML|cards"),
}


@pytest.mark.parametrize("what", WRONG_TEXTS)
def test_a_file_that_is_no_spec_is_refused(tmp_path: Path, what: str) -> None:
    text, message = WRONG_TEXTS[what]
    with pytest.raises(ConfigError, match=rf"(?s)mine\.yaml: .*({message})"):
        load_text(tmp_path, text)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.yaml: cannot be read: No such file"):
        load_cluster(tmp_path / "gone.yaml")
    (tmp_path / "folder.yaml").mkdir()
    with pytest.raises(ConfigError, match=r"folder\.yaml: cannot be read"):
        load_cluster(tmp_path / "folder.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"name: \xff\xfe\n")
    with pytest.raises(ConfigError, match=r"latin\.yaml: is not UTF-8"):
        load_cluster(tmp_path / "latin.yaml")
    (tmp_path / "big.yaml").write_text("# " + "x" * (1 << 20))
    with pytest.raises(ConfigError, match=r"big\.yaml: 1048578 bytes"):
        load_cluster(tmp_path / "big.yaml")


WORDS = st.text("[]{}:,-&*!|>'\"#%@ \n\tab01.eE", max_size=60)


@settings(max_examples=200, deadline=None)
@given(text=WORDS)
def test_whatever_the_file_holds_it_is_a_spec_or_a_config_error(tmp_path_factory: Any, text: str) -> None:
    file = tmp_path_factory.getbasetemp() / "random.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"random\.yaml"):
        load_cluster(file)


def test_a_cluster_made_in_code_counts_as_assumed_unless_it_brings_evidence() -> None:
    measured = Quantity(value=10**9, evidence="measured", source="our bench")
    assert make_cluster("ring", 4, 10**9, 0).evidence_of("link.bandwidth_bytes_per_s").evidence == "assumed"
    assert make_cluster("ring", 4, measured, measured).weakest_evidence() == "measured"
    with pytest.raises(ConfigError, match="cluster ring-0: cards: cards=0 does not suit"):
        make_cluster("ring", 0, 10**9, 0)


def test_fewer_cards_keep_their_evidence_and_more_lose_it() -> None:
    number = Quantity(value=10**9, evidence="datasheet", source="page 3")
    spec = make_cluster("full_mesh", 8, number, number)
    assert resized(spec, 8) is spec
    smaller, bigger = resized(spec, 6), resized(spec, 16)
    assert (len(smaller.topology().links), smaller.weakest_evidence()) == (30, "datasheet")
    assert (len(bigger.topology().links), bigger.weakest_evidence()) == (240, "assumed")
    assert bigger.link.latency_ps.source.endswith("was: page 3")
    assert smaller.notes == ("resized from full_mesh-8, 8 cards",)


def test_resizing_keeps_the_slow_link_and_tells_of_the_one_it_drops(tmp_path: Path) -> None:
    slow = [{"source": s, "target": t, "latency_ps": dict(SLOW)} for s, t in ((1, 2), (3, 0))]
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump(changed(links=slow)))
    smaller = resized(load_cluster(file), 3)
    assert [(link.source, link.target) for link in smaller.links] == [(1, 2)]
    assert smaller.notes[-1] == "resized from mine, 4 cards; what it says of links 3>0 is dropped"
    assert resized(load_cluster(file), 9).links[0].latency_ps.evidence == "assumed"


def test_a_single_card_does_not_grow() -> None:
    with pytest.raises(ConfigError, match="cards=2 does not suit kind single"):
        resized(make_cluster("single", 1, 1, 0), 2)


def test_the_usual_node_is_truncated_or_extended_and_one_card_needs_no_link() -> None:
    number = Quantity(value=28 * 10**9, evidence="datasheet", source="page 3")
    link = LinkSpec(bandwidth_bytes_per_s=number, latency_ps=number)
    assert usual_node("full_mesh", 6, link, node_cards=8).topology().cards == 6
    assert usual_node("full_mesh", 12, link, node_cards=8).weakest_evidence() == "assumed"
    alone = usual_node("full_mesh", 1, link, node_cards=8)
    assert (alone.kind, alone.topology().links) == ("single", ())


def test_a_field_without_evidence_has_none_to_show() -> None:
    spec = load_cluster("ring-8")
    with pytest.raises(ConfigError, match="ring-8 has no field link.colour"):
        spec.evidence_of("link.colour")
    with pytest.raises(ConfigError, match="cards of ring-8 is no number with evidence"):
        spec.evidence_of("cards")


def test_measured_is_the_strongest_evidence_and_assumed_the_weakest() -> None:
    assert weakest(["measured", "calibrated"]) == "calibrated"
    assert weakest(["calibrated", "datasheet", "measured"]) == "datasheet"
    assert weakest(["assumed", "datasheet"]) == "assumed"
