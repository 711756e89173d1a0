"""Layouts: which rank stands where, which meshes are legal, and what an illegal one is told."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siltwin.isa.errors import ConfigError
from siltwin.models.config import read_config
from siltwin.models.graph import build_graph
from siltwin.runtime.layout import Layout, check_layout, kv_heads_of, legal_tp, parse_layout


def graph(heads: int = 9, kv_heads: int = 3, layers: int = 5, width: int = 36):
    return build_graph(
        read_config(
            {
                "model_type": "llama",
                "vocab_size": 64,
                "hidden_size": heads * 4,
                "intermediate_size": width,
                "num_hidden_layers": layers,
                "num_attention_heads": heads,
                "num_key_value_heads": kv_heads,
                "max_position_embeddings": 64,
                "rms_norm_eps": 1e-5,
                "rope_theta": 10000.0,
                "hidden_act": "silu",
                "tie_word_embeddings": True,
            }
        )
    )


def test_tensor_parallel_neighbours_have_adjacent_ranks() -> None:
    layout = Layout(tp=3, pp=2)
    assert layout.cards == 6
    assert [layout.groups(4)[axis] for axis in ("tp", "pp")] == [(3, 4, 5), (1, 4)]
    assert [layout.stage_of(rank) for rank in range(6)] == [0, 0, 0, 1, 1, 1]


def test_ranks_count_through_tp_first_then_cp_dp_and_pp() -> None:
    layout = Layout(tp=2, pp=2, dp=3, cp=2, ep=3)
    assert (layout.cards, layout.stage_cards, layout.holders, layout.etp, layout.edp) == (24, 12, 6, 1, 4)
    groups = layout.groups(17)  # stage 1, and there the sixth: replica 1, share 0, tp index 1
    assert groups["tp"] == (16, 17)
    assert groups["cp"] == (17, 19)
    assert groups["dp"] == (13, 17, 21)
    assert groups["pp"] == (5, 17)
    assert groups["ep"] == (15, 16, 17)
    assert groups["etp"] == (17,)
    assert (layout.stage_of(17), layout.holder_of(17), layout.replica_of(17)) == (1, 2, 1)
    assert list(layout.holders_of(4)) == [2, 3]  # request 4 is of replica 1
    assert layout.ranks_of(2) == (4, 5, 16, 17)


def test_every_group_of_a_rank_names_it_and_all_members_name_the_same_group() -> None:
    layout = Layout(tp=4, dp=3, ep=3, etp=2, pp=2)
    for rank in range(layout.cards):
        for axis, ranks in layout.groups(rank).items():
            assert rank in ranks and len(set(ranks)) == getattr(layout, axis) == len(ranks)
            assert all(layout.groups(other)[axis] == ranks for other in ranks)


def test_experts_are_cut_and_dealt_out_within_a_stage() -> None:
    layout = Layout(tp=4, dp=2, ep=2, etp=2)
    shares = [layout.experts_of(rank, 7) for rank in range(8)]
    assert [(share.first, share.count, share.slice_) for share in shares[:4]] == [
        (0, 4, 0), (0, 4, 1), (4, 3, 0), (4, 3, 1)
    ]  # fmt: skip
    assert shares[4:] == shares[:4] and not layout.experts_travel
    spanning = Layout(tp=2, dp=4, ep=2, etp=4)
    assert (spanning.cuts, spanning.exchange, spanning.experts_travel, spanning.expert_parts) == (2, 4, True, 1)
    assert [spanning.experts_of(rank, 6).slice_ for rank in range(8)] == [0, 1, 2, 3] * 2
    assert [spanning.experts_of(rank, 6).first for rank in range(8)] == [0] * 4 + [3] * 4
    assert spanning.groups(5)["exchange"] == (1, 3, 5, 7), "one of each ep member and of each pair of cuts"
    quarters = [Layout(tp=4, ep=1, etp=1).experts_of(rank, 7) for rank in range(4)]
    assert [(share.count, share.part, share.parts) for share in quarters] == [(7, part, 4) for part in range(4)]


def test_stages_split_layers_evenly_the_first_holding_one_more() -> None:
    assert Layout(pp=2).stage_layers(5) == [range(0, 3), range(3, 5)]


def test_tp_2_is_refused_for_9_heads_with_the_legal_degrees() -> None:
    with pytest.raises(ConfigError, match=r"tp=2 does not fit .*9 attention heads.*choose tp from 1, 3, 9"):
        check_layout(Layout(tp=2), graph(), None)


def test_kv_heads_are_replicated_where_tp_exceeds_them() -> None:
    assert [kv_heads_of(2, 8, index) for index in range(8)] == [(0, 1)] * 4 + [(1, 1)] * 4
    assert [kv_heads_of(8, 2, index) for index in range(2)] == [(0, 4), (4, 4)]


@given(st.integers(1, 4), st.integers(1, 6), st.sampled_from([12, 24, 60]))
def test_every_legal_degree_gives_each_query_head_its_own_kv_head(kv: int, group: int, width: int) -> None:
    heads = kv * group
    for tp in legal_tp(graph(heads, kv, width=width)):
        assert heads % tp == 0 and width % tp == 0
        own = heads // tp
        for index in range(tp):
            first, count = kv_heads_of(kv, tp, index)
            for head in range(index * own, (index + 1) * own):
                local = (head - index * own) * count // own  # the rule of the attention instruction
                assert first + local == head * kv // heads


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tp", "'tp' is not axis=degree"),
        ("tp=0", "tp='0' must be a whole number from 1"),
        ("tp=two", "tp='two' must be a whole number"),
        ("tp=1.5", "must be a whole number"),
        ("tp=2,tp=2", "tp is given twice"),
        ("xp=2", "'xp=2' is not axis=degree; axes: tp, pp, dp, cp, ep"),
        ("tp=99999999", "from 1 to 65536"),
        ("tp=" + "9" * 5000, "tp='9+...' must be a whole number"),
        ("", "names no axis; write it as tp=2,pp=2, or leave it out"),
        (" ,,", "names no axis"),
    ],
)
def test_a_layout_that_cannot_be_read_says_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_layout(text)


def test_axes_that_are_not_named_are_one() -> None:
    assert parse_layout(None) == parse_layout("dp=1") == Layout()
    assert parse_layout(" tp = 3 , pp=2 ") == Layout(tp=3, pp=2)


def test_dp_follows_from_the_cards() -> None:
    assert parse_layout("tp=2,pp=2,cards=12") == parse_layout("dp=3,tp=2,pp=2,cards=12") == Layout(tp=2, pp=2, dp=3)
    assert parse_layout("tp=4,ep=2,etp=2,edp=1").edp == 1
    for text, message in (
        ("tp=2,pp=2,cards=6", "choose a multiple of 4"),
        ("dp=2,cards=3", "choose cards=2"),
        ("tp=4,edp=2", "with ep=1 and etp=4 that is edp=1"),
    ):
        with pytest.raises(ConfigError, match=message):
            parse_layout(text)


def test_stages_may_be_of_given_sizes() -> None:
    layout = parse_layout("tp=3,pp=1+4")
    assert (layout.pp, layout.stage_layers(5)) == (2, [range(0, 1), range(1, 5)])
    assert parse_layout(str(layout)) == layout
    check_layout(layout, graph(), None)
    with pytest.raises(ConfigError, match=r"pp=1\+3 deals out 4 layers and .* has 5; give 2 sizes that add up to 5"):
        check_layout(parse_layout("pp=1+3"), graph(), None)
    with pytest.raises(ConfigError, match="pp='0' must be a whole number"):
        parse_layout("pp=5+0")


def test_many_million_heads_are_not_counted_through() -> None:
    model = replace(graph(heads=2**28, kv_heads=1, layers=1, width=3 * 2**20), vocab_size=2**20)
    assert legal_tp(model) == [1, *(2**power for power in range(1, 17))]


def test_no_rank_is_left_without_a_row_of_the_vocabulary() -> None:
    small = replace(graph(), vocab_size=8)
    assert legal_tp(small) == [1, 3]
    assert legal_tp(replace(small, vocab_size=9)) == [1, 3, 9]
    with pytest.raises(ConfigError, match="at most the vocabulary of 8; choose tp from 1, 3$"):
        check_layout(Layout(tp=9), small, None)


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(ConfigError, match="choose pp from 1 to 5"):
        check_layout(Layout(pp=6), graph(), None)


def test_a_mesh_larger_than_the_cluster_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs 6 cards and the cluster has 4"):
        check_layout(Layout(tp=3, pp=2), graph(), 4)
