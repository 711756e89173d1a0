"""Ranks stand on cards so that the chattiest axis has the fastest links, unless the user says otherwise."""

import pytest

from siltwin.interconnect.topology import Topology
from siltwin.isa.errors import ConfigError
from siltwin.runtime.layout import Layout
from siltwin.runtime.placement import place, straddling


def nodes_of_8(nodes: int) -> Topology:
    return Topology("hierarchy", 8 * nodes, (), shape=(nodes, 8))


def test_tp_neighbours_stand_side_by_side() -> None:
    assert place(Layout(tp=8, pp=2), nodes_of_8(2)) == tuple(range(16))


def test_a_tp_group_that_fits_into_a_node_does_not_straddle_two() -> None:
    assert place(Layout(tp=6, pp=2), nodes_of_8(2)) == (0, 1, 2, 3, 4, 5, 8, 9, 10, 11, 12, 13)


def test_small_groups_share_a_node() -> None:
    assert place(Layout(tp=3, pp=3), nodes_of_8(2)) == (0, 1, 2, 3, 4, 5, 8, 9, 10)


def test_a_tp_group_of_24_takes_three_whole_nodes_of_8() -> None:
    layout, cluster = Layout(tp=24), nodes_of_8(4)
    placed = place(layout, cluster)
    assert placed == tuple(range(24)) and straddling(layout, placed, cluster) is None


def test_groups_of_12_share_a_node_between_them_for_each_stands_in_two() -> None:
    assert place(Layout(tp=12, pp=2), nodes_of_8(4)) == tuple(range(24))


def test_without_room_ranks_are_packed_and_the_straddling_is_told() -> None:
    layout, cluster = Layout(tp=5, pp=3), nodes_of_8(2)
    placed = place(layout, cluster)
    assert placed == tuple(range(15))
    warning = straddling(layout, placed, cluster)
    assert warning is not None and "ranks 5-9 stand in 2 units of 8 cards where 1 would hold them" in warning


def test_packed_leaves_no_gap() -> None:
    assert place(Layout(tp=6, pp=2), nodes_of_8(2), "packed") == tuple(range(12))


def test_the_user_may_put_stages_side_by_side() -> None:
    assert place(Layout(tp=2, pp=4), nodes_of_8(1), "tp,pp") == (0, 4, 1, 5, 2, 6, 3, 7)


def test_replicas_stand_apart_unless_the_user_wants_them_side_by_side() -> None:
    assert place(Layout(tp=2, dp=2, pp=2), nodes_of_8(1)) == tuple(range(8))
    assert place(Layout(tp=2, dp=2), nodes_of_8(1), "tp,dp") == (0, 2, 1, 3)


def test_the_user_may_name_every_card() -> None:
    assert place(Layout(tp=2, pp=2), nodes_of_8(1), "7, 0,3,4") == (7, 0, 3, 4)


def test_rows_of_a_torus_are_units_too() -> None:
    torus = Topology("torus", 16, (), dims=(4, 4))
    assert place(Layout(tp=3, pp=2), torus) == (0, 1, 2, 4, 5, 6)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0,1,2", "names 3 cards; layout tp=2,pp=2,dp=1,cp=1,ep=1 has 4 ranks"),
        ("0,1,2,8", "there is no card 8; the cluster has 0 to 7"),
        ("0,1,1,2", "card 1 stands twice"),
        ("tp", "each once"),
        ("tp,xp", "axes: pp, dp, cp, tp"),
        ("", "is no placement"),
        ("tp,pp,tp", "write packed"),
    ],
)
def test_what_is_no_placement_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        place(Layout(tp=2, pp=2), nodes_of_8(1), text)
