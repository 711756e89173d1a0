"""What a cluster's wires amount to, by hand: cuts, diameters, links by kind, drawings."""

import sys
import types
import xml.dom.minidom
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from siltwin.interconnect.cluster import load_cluster, make_cluster
from siltwin.interconnect.measures import Cut, Diameter, LinkKind, bisections, cut_bytes_per_s, diameter, link_kinds
from siltwin.isa.errors import ConfigError
from siltwin.runtime.fabric.bench import Ask, run_bench
from siltwin.runtime.fabric.draw import draw, svg
from siltwin.runtime.fabric.plot import plot_bench, plot_cluster
from siltwin.runtime.fabric.show import cluster_detail
from siltwin.runtime.fabric.text_drawing import text_drawing

B = 10**10


def link(bandwidth: int = B, latency: int = 10**6) -> str:
    said = "evidence: assumed, source: a test"
    return f"{{bandwidth_bytes_per_s: {{value: {bandwidth}, {said}}}, latency_ps: {{value: {latency}, {said}}}}}"


def file(folder: Path, text: str) -> str:
    path = folder / "cluster.yaml"
    path.write_text(text)
    return str(path)


def flat(folder: Path, kind: str, cards: int, more: str = "") -> str:
    return file(folder, f"name: {kind}\nkind: {kind}\ncards: {cards}\nlink: {link()}\n{more}")


@pytest.mark.parametrize(
    ("kind", "cards", "wires"),
    [
        ("ring", 8, 2),  # the ring is cut in two places
        ("mesh", 8, 1),  # a line in one
        ("full_mesh", 8, 16),  # each of four to each of four
        ("switch", 8, 4),  # four ports
        ("ring", 2, 1),
    ],
)
def test_the_bisection_counts_the_wires_that_part_the_halves(tmp_path: Path, kind: str, cards: int, wires: int) -> None:
    first = bisections(load_cluster(flat(tmp_path, kind, cards)).topology())[0]
    assert first == Cut(f"cards 0-{cards // 2 - 1} | the rest", wires * B)


def test_a_torus_is_cut_along_every_even_dimension_and_the_narrowest_stands_first(tmp_path: Path) -> None:
    # 8 x 4: halving the 8 cuts 4 columns twice, halving the 4 cuts 8 rows twice.
    topology = load_cluster(flat(tmp_path, "torus", 32, "dims: [8, 4]\n")).topology()
    assert bisections(topology) == (Cut("cards 0-15 | the rest", 8 * B), Cut("dimension 1 halved", 16 * B))


def test_an_oversubscribed_fat_tree_is_cut_above_its_leaves(tmp_path: Path) -> None:
    # Four leaves of 4 cards with 4 / 2 links up each: two leaves send over four links.
    text = flat(tmp_path, "fat_tree", 16, "leaf_cards: 4\noversubscription: [2]\n")
    assert bisections(load_cluster(text).topology())[0].bandwidth_bytes_per_s == 4 * B


def test_a_cut_may_part_any_cards_and_a_link_that_is_down_counts_nothing(tmp_path: Path) -> None:
    topology = load_cluster(flat(tmp_path, "ring", 4, "links: [{source: 0, target: 1, down: true}]\n")).topology()
    assert cut_bytes_per_s(topology, [0], [1, 2, 3]) == B
    assert cut_bytes_per_s(topology, [0, 2], [1, 3]) == 3 * B


def test_halves_are_as_far_apart_as_the_narrower_direction_says(tmp_path: Path) -> None:
    # A ring of 4 whose way 2 > 1 is down: two wires lead from cards 0 and 1 to the others, and one leads back.
    topology = load_cluster(flat(tmp_path, "ring", 4, "links: [{source: 2, target: 1, down: true}]\n")).topology()
    assert cut_bytes_per_s(topology, [0, 1], [2, 3]) == 2 * B
    assert bisections(topology) == (Cut("cards 0-1 | the rest", B),)


def test_cards_on_neither_side_hand_on_what_they_get() -> None:
    topology = make_cluster("ring", 6, B, 1).topology()
    assert cut_bytes_per_s(topology, [0], [3]) == 2 * B


def test_odd_cards_have_no_halves() -> None:
    assert bisections(make_cluster("ring", 5, B, 1).topology()) == ()
    assert bisections(make_cluster("single", 1, B, 1).topology()) == ()


@pytest.mark.parametrize(
    ("kind", "cards", "hops"), [("ring", 8, 4), ("ring", 7, 3), ("mesh", 8, 7), ("full_mesh", 8, 1), ("switch", 8, 2)]
)
def test_the_diameter_is_that_of_the_worst_route(kind: str, cards: int, hops: int) -> None:
    found = diameter(make_cluster(kind, cards, B, 10**6).topology())
    assert found == Diameter(hops, hops * 10**6, "all pairs of cards")


def test_one_card_has_no_way_to_go() -> None:
    assert diameter(make_cluster("single", 1, B, 1).topology()) == Diameter(0, 0, "all pairs of cards")


def test_a_link_that_is_down_lengthens_the_diameter(tmp_path: Path) -> None:
    topology = load_cluster(flat(tmp_path, "ring", 8, "links: [{source: 0, target: 1, down: true}]\n")).topology()
    assert diameter(topology).hops == 7


def test_cards_that_are_cut_off_are_named(tmp_path: Path) -> None:
    down = "links: [{source: 0, target: 1, down: true}, {source: 2, target: 1, down: true}]\n"
    with pytest.raises(ConfigError, match="no route from card 0 to card 1"):
        cluster_detail(flat(tmp_path, "ring", 3, down))


TWO_LEVELS = f"""name: two-levels
levels:
  - {{name: node, kind: switch, of: 4, link: {link(9 * B, 10)}}}
  - {{name: plane, kind: switch, of: 2, joins: rails, link: {link(B, 700)}}}
"""


def test_links_are_counted_by_level_ends_and_speed(tmp_path: Path) -> None:
    # Two nodes of four cards on a switch; four rails of two cards on a switch each; both directions.
    assert link_kinds(load_cluster(file(tmp_path, TWO_LEVELS))) == (
        LinkKind("node", "card-switch", 16, 9 * B, 10, 0),
        LinkKind("plane", "card-switch", 16, B, 700, 0),
    )


def test_a_hierarchy_is_drawn_from_the_outermost_level(tmp_path: Path) -> None:
    lines = text_drawing(load_cluster(file(tmp_path, TWO_LEVELS)))
    assert lines[0] == "two-levels: 8 cards"
    assert lines[1].startswith("+- plane: 2 nodes joined by switch, card by card")
    assert lines[3].strip().startswith("+- 2 x node: 4 cards joined by switch")


def test_grids_and_switches_are_drawn_as_they_stand(tmp_path: Path) -> None:
    assert text_drawing(load_cluster(flat(tmp_path, "mesh", 6, "dims: [2, 3]\n")))[:3] == [
        "   0 - 1 - 2",
        "   |   |   |",
        "   3 - 4 - 5",
    ]
    assert text_drawing(load_cluster(flat(tmp_path, "switch", 4)))[0] == "   switch 0: cards 0-3"


def test_details_hold_every_number_with_its_evidence(tmp_path: Path) -> None:
    detail = cluster_detail(file(tmp_path, TWO_LEVELS))
    assert [(number.path, number.value) for number in detail.numbers] == [
        ("levels.0.link.bandwidth_bytes_per_s", 9 * B),
        ("levels.0.link.latency_ps", 10),
        ("levels.1.link.bandwidth_bytes_per_s", B),
        ("levels.1.link.latency_ps", 700),
    ]
    assert detail.routes[0].nodes == ("card 0", "switch 0", "card 1")


@pytest.mark.parametrize("kind", ["ring", "mesh", "torus", "full_mesh", "switch", "fat_tree"])
def test_every_kind_is_drawn_as_svg_with_all_cards_and_wires(tmp_path: Path, kind: str) -> None:
    drawing = draw(load_cluster(flat(tmp_path, kind, 16)))
    parsed = xml.dom.minidom.parseString(svg(drawing))
    assert len(parsed.getElementsByTagName("circle")) == 16
    assert len(set(drawing.points)) == len(drawing.points)  # no node hides another
    assert len([path for path in parsed.getElementsByTagName("path") if path.getAttribute("fill")]) == len(
        drawing.wires
    )


class Recorder:
    """Stands in for matplotlib's Figure, whatever is asked of it, and writes what it is told to save."""

    saved: list[str] = []

    def __init__(self, **given: object) -> None:
        pass

    def subplots(self, rows: int = 1, columns: int = 1, **given: object) -> object:
        return MagicMock() if rows == 1 else [MagicMock() for _ in range(rows)]

    def legend(self, **given: object) -> None:
        pass

    def savefig(self, path: str, **given: object) -> None:
        self.saved.append(path)


def test_pictures_are_asked_of_matplotlib_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = types.ModuleType("matplotlib.figure")
    stand_in.Figure = Recorder  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "matplotlib", types.ModuleType("matplotlib"))
    monkeypatch.setitem(sys.modules, "matplotlib.figure", stand_in)
    name = flat(tmp_path, "switch", 4)
    report = run_bench(Ask(name, sizes="1KiB:16MiB", factor=16))
    plot_bench(report, "curves.png")
    plot_cluster(draw(load_cluster(name)), "cluster.png")
    assert Recorder.saved == ["curves.png", "cluster.png"]


@pytest.mark.parametrize("kind", ["ring", "switch", "single"])
def test_pictures_are_drawn_where_matplotlib_is_installed(tmp_path: Path, kind: str) -> None:
    image = pytest.importorskip("matplotlib.image")
    down = "links: [{source: 1, target: 0, down: true}]\n" if kind == "ring" else ""
    one = "name: one\nkind: single\ncards: 1\n"
    name = file(tmp_path, one) if kind == "single" else flat(tmp_path, kind, 4, down)
    plot_cluster(draw(load_cluster(name)), str(tmp_path / "cluster.png"))
    plot_bench(run_bench(Ask(name, sizes="1KiB:16MiB", factor=16)), str(tmp_path / "curves.png"))
    for picture in ("cluster.png", "curves.png"):
        pixels = image.imread(tmp_path / picture)[..., :3]
        assert len({tuple(pixel) for pixel in pixels.reshape(-1, 3).round(1).tolist()}) > 4  # lines, not a blank page
