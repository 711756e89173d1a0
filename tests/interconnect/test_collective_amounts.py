"""Bytes on every link equal the closed counts, and times alone are those worked out by hand."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siltwin.interconnect.cluster import make_cluster
from siltwin.interconnect.collectives.amounts import GroupAmounts, group_amounts, plan_cost
from siltwin.interconnect.collectives.expand import expand
from siltwin.interconnect.collectives.registry import ALGORITHMS, COLLECTIVES, Options
from siltwin.interconnect.link import Link
from siltwin.interconnect.topology import Topology
from siltwin.isa.errors import ConfigError, ProgramError

US = 10**6  # picoseconds


def amounts(
    collective: str, part_bytes: Sequence[int], ranks: Sequence[int], net: Topology, root: int = 0
) -> GroupAmounts:
    return group_amounts(expand(collective, len(ranks), root=root), part_bytes, ranks, net)


def net_of(kind: str, cards: int, bandwidth: int = 10**9, latency_ps: int = US) -> Topology:
    return make_cluster(kind, cards, bandwidth, latency_ps).topology()


@pytest.mark.parametrize("kind", ["ring", "full_mesh"])
def test_an_even_ring_all_reduce_takes_2_n_1_times_chunk_and_latency(kind: str) -> None:
    """4 cards, 4 MB at 1 GB/s, 1 us a link: 2 * 3 * (1 ms + 1 us) = 6.006 ms, to the picosecond."""
    work = amounts("all_reduce", [10**6] * 4, range(4), net_of(kind, 4))
    assert (work.flow_ps, work.latency_ps, work.alone_ps) == (6_000 * US, 6 * US, 6_006 * US)
    assert work.steps == 6


def test_the_other_collectives_take_what_their_formulas_say() -> None:
    """4 cards, parts of 1 MB at 1 GB/s: (n-1)(1 ms + 1 us) = 3.003 ms; a chain moves the whole 4 MB thrice."""
    net = net_of("ring", 4)
    assert amounts("reduce_scatter", [10**6] * 4, range(4), net).alone_ps == 3_003 * US
    assert amounts("all_gather", [10**6] * 4, range(4), net).alone_ps == 3_003 * US
    assert amounts("broadcast", [4 * 10**6], range(4), net).alone_ps == 12_003 * US
    assert amounts("barrier", [], range(4), net).alone_ps == 3 * US
    assert amounts("send_recv", [4 * 10**6], (2, 1), net).alone_ps == 4_001 * US
    assert amounts("send_recv_reduce", [4 * 10**6], (2, 1), net).alone_ps == 4_001 * US


def test_the_time_alone_is_the_ceiling_of_the_exact_sum_not_a_sum_of_ceilings() -> None:
    """1 byte at 3 bytes/s is 333,333,333,333.3 ps; two such steps are 666,666,666,666.7, so ...667 and not ...668."""
    work = amounts("all_reduce", [1, 1], (0, 1), net_of("ring", 2, bandwidth=3, latency_ps=0))
    assert work.alone_ps == 666_666_666_667
    three = amounts("all_gather", [1] * 4, range(4), net_of("ring", 4, bandwidth=3, latency_ps=0))
    assert three.alone_ps == 10**12  # three thirds: exact, nothing to round


def test_a_step_lasts_as_long_as_its_largest_part() -> None:
    """All-gather of parts 5, 0, 1 kB over 3 cards: each step moves all three parts, so 2 * (5 us + 1 us)."""
    work = amounts("all_gather", [5_000, 0, 1_000], range(3), net_of("ring", 3))
    assert (work.flow_ps, work.latency_ps) == (10 * US, 2 * US)
    assert work.link_bytes == {0: 5_000 + 1_000, 1: 0 + 5_000, 2: 1_000 + 0}  # each sends all but the next one's part


def test_one_slow_link_holds_every_step() -> None:
    """Link 1>2 at half the rate: 1 MB takes 2 ms there, in all 6 steps of the all-reduce of 4 cards."""
    net = net_of("ring", 4)
    slow = tuple(replace(link, bandwidth_bytes_per_s=5 * 10**8) if link.name == "1>2" else link for link in net.links)
    assert amounts("all_reduce", [10**6] * 4, range(4), replace(net, links=slow)).alone_ps == 12_006 * US


def test_different_links_may_hold_different_steps() -> None:
    """Parts of 7 and 3 bytes, 3 bytes/s ahead and 7 back. Scatter: 3/3 s ahead, 7/7 s back; gather: 7/3 s and 3/7 s."""
    net = Topology("pair", 2, (Link(0, 1, 3, 0, "0>1"), Link(1, 0, 7, 0, "1>0")))
    work = amounts("all_reduce", [7, 3], (0, 1), net)
    assert work.flow_ps == 10**12 + 2_333_333_333_334


def test_flows_that_meet_on_a_link_of_a_multi_hop_route_add_up_there() -> None:
    """Group 0, 2, 1 on a ring of 4: 0>2 goes over 0>1>2, 2>1 over one link back, 1>0 over one back."""
    net = net_of("ring", 4)
    work = amounts("all_gather", [10**6] * 3, (0, 2, 1), net)
    names = {net.links[link_id].name: size for link_id, size in work.link_bytes.items()}
    assert names == {"0>1": 2 * 10**6, "1>2": 2 * 10**6, "2>1": 2 * 10**6, "1>0": 2 * 10**6}
    assert work.latency_ps == 2 * 2 * US  # the longest route has two links
    crossed = amounts("all_gather", [10**6] * 4, (0, 2, 1, 3), net)
    # 0>2 and 1>3 both cross 1>2 (0>1>2, 1>2>3); 2>1 goes back, 3>0 ahead: 2 MB on 1>2 in each of the 3 steps.
    assert crossed.flow_ps == 3 * 2_000 * US


SIZES = st.integers(2, 9)


def parts_for(size: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, 1 << 40), min_size=size, max_size=size)


@given(SIZES.flatmap(parts_for), st.sampled_from(["ring", "full_mesh"]))
def test_link_bytes_of_the_ring_equal_the_closed_count(parts: list[int], kind: str) -> None:
    """From member m to m+1: a reduce-scatter sends all parts but m's, an all-gather all but that of m+1."""
    size, total = len(parts), sum(parts)
    net = net_of(kind, size)
    scatter = [total - parts[m] for m in range(size)]
    gather = [total - parts[(m + 1) % size] for m in range(size)]
    for collective, counts in (
        ("reduce_scatter", scatter),
        ("all_gather", gather),
        ("all_reduce", [s + g for s, g in zip(scatter, gather, strict=True)]),
    ):
        work = amounts(collective, parts, range(size), net)
        on_links = {(net.links[i].source, net.links[i].target): size for i, size in work.link_bytes.items()}
        assert on_links == {(m, (m + 1) % size): counts[m] for m in range(size) if counts[m]}
        assert list(work.sent_bytes) == counts
        largest = 2 * max(parts) if collective == "all_reduce" else max(parts)
        assert work.flow_ps == (size - 1) * largest * 1000


@given(st.sampled_from(sorted(ALGORITHMS)), SIZES, st.data())
def test_what_is_sent_is_received_and_reductions_are_part_of_it(
    key: tuple[str, str], size: int, data: st.DataObject
) -> None:
    if key[1].startswith("hierarchical"):
        options = Options(shape=(2, size))
        size *= 2
    else:
        options = Options()
    plan = expand(key[0], COLLECTIVES[key[0]].size or size, key[1], options=options)
    cost = plan_cost(plan, data.draw(parts_for(plan.given)))
    if not plan.uses_switch:  # which sends n copies of what it got n parts of
        assert sum(cost.sent_bytes) == sum(cost.received_bytes)
    assert all(own <= got for own, got in zip(cost.reduced_bytes, cost.received_bytes, strict=True))
    assert cost.read_bytes == tuple(s + r for s, r in zip(cost.sent_bytes, cost.reduced_bytes, strict=True))
    assert cost.write_bytes == cost.received_bytes
    assert len(cost.step_bytes) == len(plan.steps)


def test_an_all_reduce_reduces_the_first_half_of_what_it_receives() -> None:
    """3 members, parts of 10: each receives 4 parts, adds 2, so memory reads 4 + 2 and writes 4 parts."""
    cost = plan_cost(expand("all_reduce", 3), [10, 10, 10])
    assert cost.sent_bytes == cost.received_bytes == (40, 40, 40)
    assert cost.reduced_bytes == (20, 20, 20)
    assert (cost.read_bytes, cost.write_bytes) == ((60, 60, 60), (40, 40, 40))
    assert cost.step_bytes == (10, 10, 10, 10)


@given(SIZES.flatmap(parts_for), st.data())
def test_relabelling_cards_and_ranks_together_changes_no_time_and_only_renames_bytes(
    parts: list[int], data: st.DataObject
) -> None:
    size = len(parts)
    relabel = data.draw(st.permutations(range(size)))
    speeds = data.draw(st.lists(st.integers(1, 10**12), min_size=2 * size, max_size=2 * size))
    plain = net_of("ring", size)
    net = replace(
        plain, links=tuple(replace(li, bandwidth_bytes_per_s=s) for li, s in zip(plain.links, speeds, strict=False))
    )
    renamed = replace(
        net, links=tuple(replace(li, source=relabel[li.source], target=relabel[li.target]) for li in net.links)
    )
    before = amounts("all_reduce", parts, range(size), net)
    assert amounts("all_reduce", parts, relabel, renamed) == before


@given(st.integers(2, 9), st.integers(0, 1 << 40))
def test_a_ring_walked_backwards_takes_as_long_over_the_other_direction_of_each_wire(size: int, part: int) -> None:
    net = net_of("ring", size)
    ahead = amounts("all_reduce", [part] * size, range(size), net)
    back = amounts("all_reduce", [part] * size, range(size)[::-1], net)
    assert ahead.alone_ps == back.alone_ps
    if size > 2:
        assert not ahead.link_bytes.keys() & back.link_bytes.keys()


@given(st.permutations(range(8)), st.integers(1, 1 << 40))
def test_a_permuted_placement_on_a_ring_is_never_faster_than_the_natural_one(order: list[int], part: int) -> None:
    net = net_of("ring", 8)
    natural = amounts("all_reduce", [part] * 8, range(8), net)
    permuted = amounts("all_reduce", [part] * 8, order, net)
    assert permuted.alone_ps >= natural.alone_ps
    assert sum(permuted.link_bytes.values()) >= sum(natural.link_bytes.values())


@given(SIZES.flatmap(parts_for), st.integers(0, 1 << 30), st.data())
def test_more_bytes_or_a_slower_link_never_make_it_faster(parts: list[int], more: int, data: st.DataObject) -> None:
    size = len(parts)
    net = net_of("full_mesh", size)
    at = data.draw(st.integers(0, size - 1))
    before = amounts("all_reduce", parts, range(size), net).alone_ps
    bigger = [part + more * (index == at) for index, part in enumerate(parts)]
    assert amounts("all_reduce", bigger, range(size), net).alone_ps >= before
    link = data.draw(st.integers(0, len(net.links) - 1))
    speed = data.draw(st.integers(1, 10**9))
    slower = tuple(replace(li, bandwidth_bytes_per_s=speed) if i == link else li for i, li in enumerate(net.links))
    assert amounts("all_reduce", parts, range(size), replace(net, links=slower)).alone_ps >= before


@given(SIZES.flatmap(parts_for), st.integers(1, 10**10), st.sampled_from(["all_reduce", "all_gather"]))
def test_the_steps_one_by_one_take_as_long_to_a_picosecond_a_step(parts: list[int], rate: int, collective: str) -> None:
    net = net_of("ring", len(parts), bandwidth=rate, latency_ps=7)
    plan = expand(collective, len(parts))
    ranks = range(len(parts))
    whole = group_amounts(plan, parts, ranks, net)
    single = [group_amounts(plan.step(index), parts, ranks, net) for index in range(plan.num_steps)]
    assert 0 <= sum(step.alone_ps for step in single) - whole.alone_ps < len(single)
    for link_id, size in whole.link_bytes.items():
        assert sum(step.link_bytes.get(link_id, 0) for step in single) == size


@given(SIZES.flatmap(parts_for), st.integers(1, 10**12))
def test_no_link_is_asked_for_more_than_its_rate_while_the_group_runs_alone(parts: list[int], rate: int) -> None:
    work = amounts("all_reduce", parts, range(len(parts)), net_of("ring", len(parts), bandwidth=rate))
    assert all(size * 10**12 <= rate * work.flow_ps for size in work.link_bytes.values())


def test_two_groups_of_one_mesh_share_no_link() -> None:
    net = net_of("full_mesh", 8)
    left = amounts("all_reduce", [8] * 4, (0, 1, 2, 3), net)
    right = amounts("all_reduce", [8] * 4, (4, 5, 6, 7), net)
    assert not left.link_bytes.keys() & right.link_bytes.keys()
    assert len(left.link_bytes) == 4  # one link a member: the other wires of the mesh stay idle


def test_a_group_of_one_and_nothing_to_move_cost_what_they_should() -> None:
    net = net_of("ring", 4)
    alone = amounts("all_reduce", [10**9], (2,), net)
    assert (alone.alone_ps, alone.steps, alone.link_bytes, alone.sent_bytes) == (0, 0, {}, (0,))
    empty = amounts("all_reduce", [0] * 4, range(4), net)
    assert (empty.flow_ps, empty.latency_ps, empty.link_bytes) == (0, 6 * US, {})


def test_a_broadcast_starts_at_its_root() -> None:
    net = net_of("ring", 4)
    work = amounts("broadcast", [10], range(4), net, root=2)
    assert {net.links[i].name for i in work.link_bytes} == {"2>3", "3>0", "0>1"}
    assert work.sent_bytes == (10, 0, 10, 10)


@pytest.mark.parametrize(("megabytes", "cards"), [(256, 32), (512, 32), (256, 64)])
def test_twice_the_bytes_take_twice_the_time_and_twice_the_cards_more_latency(megabytes: int, cards: int) -> None:
    """2(n-1)(S/n/b + L) at 50 GB/s and 0.5 us, S in MiB; the chunks divide."""
    chunk = megabytes * 2**20 // cards
    work = amounts("all_reduce", [chunk] * cards, range(cards), net_of("ring", cards, 50 * 10**9, 500_000))
    steps = 2 * (cards - 1)
    assert work.alone_ps == steps * (chunk * 20 + 500_000)  # a byte takes 20 ps


# ASTRA-sim's analytical network (MIT licence), congestion-aware, dataset_splits=1, ring algorithm, 50 GiB/s and 500 ns
# a link, 1 ns at each endpoint: (topology, cards, collective, size, nanoseconds). Size is the whole buffer of an
# all-reduce and each rank's input of the others.
ASTRASIM = [
    ("ring", 4, "all_gather", 32_768, 3_334),
    ("ring", 4, "all_gather", 33_554_432, 1_876_504),
    ("ring", 8, "all_reduce", 1_024, 7_043),
    ("ring", 8, "all_reduce", 1_048_576, 41_189),
    ("ring", 8, "all_reduce", 1_073_741_824, 35_009_829),
    ("ring", 8, "reduce_scatter", 1_048_576, 20_595),
    ("ring", 16, "reduce_scatter", 33_554_432, 593_536),
    ("ring", 64, "all_reduce", 32_768, 64_261),
    ("full_mesh", 4, "all_reduce", 33_554_432, 940_579),
    ("full_mesh", 8, "all_reduce", 1_048_576, 41_189),
    ("full_mesh", 16, "all_gather", 1_048_576, 300_481),
    ("full_mesh", 32, "reduce_scatter", 1_073_741_824, 19_393_601),
]


@pytest.mark.parametrize(("kind", "cards", "collective", "size", "published_ns"), ASTRASIM)
def test_ring_collectives_agree_with_an_independent_simulator_within_one_percent(
    kind: str, cards: int, collective: str, size: int, published_ns: int
) -> None:
    part = size if collective == "all_gather" else size // cards
    net = net_of(kind, cards, bandwidth=50 * 2**30, latency_ps=500_000)
    ours_ns = amounts(collective, [part] * cards, range(cards), net).alone_ps / 1000
    assert abs(ours_ns / published_ns - 1) < 0.01


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        ((0, 1, 1), r"ring all_reduce of 3: rank 1 stands twice in \(0, 1, 1\)"),
        ((0, 1), r"ranks \(0, 1\) are 2; the group has 3 members"),
        ((0, 1, 4), "rank 4 is no card; the ring has 0 to 3"),
        ((-1, 1, 2), "rank -1 is no card"),
    ],
)
def test_a_group_that_does_not_stand_on_the_cards_is_refused(ranks: tuple[int, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        group_amounts(expand("all_reduce", 3), [1, 1, 1], ranks, net_of("ring", 4))


def test_a_group_without_a_way_between_its_members_names_the_cut() -> None:
    net = Topology("two islands", 4, tuple(Link(s, t, 1, 0, f"{s}>{t}") for s, t in ((0, 1), (1, 0), (2, 3), (3, 2))))
    with pytest.raises(ConfigError, match="no link leads from cards 0-1 to cards 2-3"):
        amounts("all_reduce", [1] * 4, range(4), net)


def test_sizes_that_do_not_suit_the_plan_are_refused() -> None:
    with pytest.raises(ProgramError, match="ring all_reduce of 3: 2 part sizes; it has 3 parts"):
        plan_cost(expand("all_reduce", 3), [1, 2])
    with pytest.raises(ProgramError, match=r"part sizes \(1, -2, 3\) must not be negative"):
        group_amounts(expand("all_reduce", 3), [1, -2, 3], (0, 1, 2), net_of("ring", 3))
