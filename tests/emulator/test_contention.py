"""Contention by hand: incast, disjoint groups, overlap, shared HBM, groups with a weight or priority of their own."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from siltwin.emulator.calendar.activity import flow_ps
from siltwin.emulator.cluster import Cluster
from siltwin.emulator.deadlock import DeadlockError
from siltwin.emulator.exchange import Sharing
from siltwin.emulator.spec import load_card
from siltwin.emulator.ticket import Submission, Ticket
from siltwin.interconnect.choices import Choice
from siltwin.interconnect.cluster import make_cluster
from siltwin.interconnect.collectives.registry import ALGORITHMS, COLLECTIVES, Options
from siltwin.interconnect.topology import Topology
from siltwin.isa.errors import ProgramError
from siltwin.isa.program import Binding
from siltwin.isa.text import assemble

# As in test_timings: 131,072 bytes of %c, of which a link carries one in 100 ps; dispatch, then a latency a link.
C_BYTES, C_PS, DISPATCH_PS, LATENCY_PS = 131_072, 13_107_200, 100_000, 1_000_000
EAGER = {"link.eager_bytes": "1MiB"}
BUFFERS = {"c": "bf16[64, 1024]", "d": "bf16[64, 1024]", "part": "bf16[16, 1024]", "x": "bf16[rows, 64]"}
Groups = Mapping[str, tuple[int, ...]]


def submission(
    rank: int, body: str, groups: Groups, sharing: Mapping[str, Sharing] | None = None, **extents: tuple[int, ...]
) -> Submission:
    """A card's program; of `groups` it declares those that it is a member of."""
    mine = {name: ranks for name, ranks in groups.items() if rank in ranks}
    lines = ["program p", "queue dma0", "queue link", "extent rows", "extent to[]", "extent fro[]"]
    lines += [f"group {name} {len(ranks)}" for name, ranks in mine.items()]
    lines += [f"buffer {name} : {kind} activation" for name, kind in BUFFERS.items()]
    lines += ["block b", *(f"param {name} : {kind}" for name, kind in BUFFERS.items()), body, "end"]
    program = assemble("\n".join([*lines, " ".join(["call b", *BUFFERS])]))
    binding = Binding({"rows": (1,), **extents}, {name: ranks.index(rank) for name, ranks in mine.items()})
    return Submission(rank, program, binding, mine, {n: s for n, s in (sharing or {}).items() if n in mine})


def run(
    cluster: Cluster, bodies: Sequence[str], groups: Groups, sharing: Mapping[str, Sharing] | None = None
) -> Ticket:
    ticket = cluster.submit([submission(rank, body, groups, sharing) for rank, body in enumerate(bodies)])
    cluster.run_until(ticket)
    return ticket


def ends(ticket: Ticket, mnemonic: str) -> dict[int, int]:
    """When each card ended its last instruction of this name."""
    return {span.card: span.end_ps for span in ticket.spans if span.mnemonic == mnemonic}


ALL5 = {"all": (0, 1, 2, 3, 4)}


def test_four_senders_to_one_port_get_a_quarter_each(rig: Any) -> None:
    send = "link | send x=%c group=all peer=4"
    recv = "\n".join(f"link | recv x=%c group=all peer={peer}" for peer in range(4))
    five = rig(5, "switch", overrides=EAGER).cluster
    ticket = run(five, [send] * 4 + [recv], ALL5)
    end_ps = DISPATCH_PS + 2 * LATENCY_PS + 4 * C_PS
    assert ends(ticket, "send") == dict.fromkeys(range(4), end_ps)
    assert {span.bound for span in ticket.spans if span.mnemonic == "send"} == {"link"}
    assert five.ledger.links()[-1].num_bytes == 4 * C_BYTES  # the port of card 4


def test_who_has_less_to_send_leaves_its_quarter_to_the_others(rig: Any) -> None:
    """A quarter of the bytes at a quarter of the port take C; the others have three quarters left, at a third each."""
    bodies = [f"link | send x=%{name} group=all peer=4" for name in ("c", "c", "c", "part")]
    recv = "\n".join(
        f"link | recv x=%{name} group=all peer={peer}" for peer, name in enumerate(["c", "c", "c", "part"])
    )
    ticket = run(rig(5, "switch", overrides=EAGER).cluster, [*bodies, recv], ALL5)
    flowing_ps = DISPATCH_PS + 2 * LATENCY_PS
    found = ends(ticket, "send")
    assert found[3] == flowing_ps + C_PS
    # A third of 4 * 10^10 in whole numbers is a little less than a third, which costs a picosecond.
    assert {found[rank] - flowing_ps - C_PS * 13 // 4 for rank in range(3)} <= {0, 1}


@pytest.mark.parametrize("kind", ["ring", "full_mesh", "switch"])
def test_groups_on_disjoint_links_do_not_touch_each_other(rig: Any, kind: str) -> None:
    groups = {"a": (0, 1), "b": (2, 3)}
    alone = run(rig(4, kind).cluster, ["link | all_reduce x=%c group=a"] * 2, groups)
    more = "\n".join(["link | all_reduce x=%c group=b"] * 3)
    both = run(rig(4, kind).cluster, ["link | all_reduce x=%c group=a"] * 2 + [more] * 2, groups)
    hops = 2 if kind == "switch" else 1
    assert ends(alone, "all_reduce") == dict.fromkeys((0, 1), DISPATCH_PS + 2 * hops * LATENCY_PS + C_PS)
    assert [span for span in both.spans if span.card < 2] == alone.spans
    assert ends(both, "all_reduce")[2] == 3 * alone.end_ps


def test_compute_and_communication_overlap_when_the_program_lets_them(rig: Any) -> None:
    copy, reduce = "dma0 | copy dst=%d src=%c", "link | all_reduce x=%c group=all"
    apart = [run(rig(2).cluster, [body] * 2, {"all": (0, 1)}).end_ps for body in (copy, reduce)]
    together = run(rig(2).cluster, [f"{copy}\n{reduce}"] * 2, {"all": (0, 1)})
    assert together.end_ps == max(apart)
    chained = run(rig(2).cluster, [f"{copy}\n{reduce} | wait dma0+1"] * 2, {"all": (0, 1)})
    assert chained.end_ps == sum(apart)


def test_a_transfer_and_a_copy_that_share_hbm_both_slow_down(rig: Any) -> None:
    """HBM gives a byte in 100 ps, as the link does. The copy moves 2 C of it, from 500,000 ps on; the transfer C, from
    1,100,000 ps on: then each has half, until the transfer ends."""
    two = rig(2, overrides={"hbm.bandwidth_bytes_per_s": "10GB/s"}).cluster
    ticket = run(
        two,
        ["dma0 | copy dst=%d src=%c\nlink | send x=%c group=all peer=1", "link | recv x=%c group=all peer=0"],
        {"all": (0, 1)},
    )
    send_ps = DISPATCH_PS + LATENCY_PS + 2 * C_PS
    assert ends(ticket, "send") == {0: send_ps}
    done_ps = 1_100_000 - 500_000 + C_PS
    assert ends(ticket, "copy") == {0: send_ps + 2 * C_PS - done_ps}
    assert {span.mnemonic: span.bound for span in ticket.spans if span.card == 0} == {"copy": "hbm", "send": "hbm"}


def test_a_transfer_slows_down_whoever_uses_the_memory_at_its_far_end(rig: Any) -> None:
    two = rig(2, overrides={"hbm.bandwidth_bytes_per_s": "10GB/s"}).cluster
    bodies = ["link | send x=%c group=all peer=1", "dma0 | copy dst=%d src=%c\nlink | recv x=%c group=all peer=0"]
    ticket = run(two, bodies, {"all": (0, 1)})
    assert ends(ticket, "send") == {0: DISPATCH_PS + LATENCY_PS + 2 * C_PS}


def test_collectives_use_the_memory_of_their_members_and_what_adds(rig: Any) -> None:
    """Over two, half of the bytes: read to be sent, read and written where they are added, read and written again."""
    two = rig(2).cluster
    run(two, ["link | all_reduce x=%c group=all"] * 2, {"all": (0, 1)})
    usage = two.usage(0)
    assert usage["hbm"].num_bytes == 5 * C_BYTES // 2
    # 32,768 elements; the vector units of 4 cores add `lanes` of two bytes a cycle each.
    assert usage["vector"].cycles == 32_768 // (4 * two.spec.vector.lanes_of(2))
    assert usage["link"].num_bytes == C_BYTES


def test_an_uneven_all_to_all_loads_each_port_and_memory_with_its_own_rows(rig: Any) -> None:
    """Rows of 128 bytes; card 0 sends 5 and 6 elsewhere, card 1 sends 1 to 0, card 2 sends 2 to 1; own rows stay."""
    counts = [[9, 5, 6], [1, 0, 0], [0, 2, 3]]
    three = rig(3, "switch").cluster
    text = "link | all_to_all dst=%d[0:64] src=%x group=all send_counts=to recv_counts=fro"
    ticket = three.submit(
        [
            submission(
                r, text, {"all": (0, 1, 2)}, rows=(20,), to=tuple(counts[r]), fro=tuple(row[r] for row in counts)
            )
            for r in range(3)
        ]
    )
    three.run_until(ticket)
    ports = [usage.num_bytes for usage in three.ledger.links()]
    assert ports == [128 * n for n in (11, 1, 2, 1, 7, 6)]  # from cards 0, 1, 2 into the switch, and out to them
    assert [three.usage(r)["hbm"].num_bytes for r in range(3)] == [128 * n for n in (12, 8, 8)]
    assert ticket.end_ps == DISPATCH_PS + 2 * LATENCY_PS + 128 * 11 * 100
    (exchanged,) = ticket.exchanged
    assert tuple(exchanged.message.part_bytes) == tuple(128 * n for row in counts for n in row)


def test_members_of_an_all_to_all_that_count_differently_are_named(rig: Any) -> None:
    text = "link | all_to_all dst=%d[0:64] src=%x group=all send_counts=to recv_counts=fro"
    counts = {0: ((1, 2), (1, 3)), 1: ((4, 1), (2, 1))}
    two = rig(2).cluster
    ticket = two.submit(
        [submission(r, text, {"all": (0, 1)}, rows=(9,), to=to, fro=fro) for r, (to, fro) in counts.items()]
    )
    expected = r"members differ: card 1, .* sends 512 bytes to rank 0; card 0, .* expects 384 from there"
    with pytest.raises(ProgramError, match=expected):
        two.run_until(ticket)


# weights and priorities of groups: in a ring of four, 0 > 2 and 1 > 3 share the link 1 > 2, and back likewise


CROSSED = {"a": (0, 2), "b": (1, 3)}
CROSSING = [f"link | all_reduce x=%c group={'ab'[rank % 2]}" for rank in range(4)]
FLOWS_PS = DISPATCH_PS + 2 * 2 * LATENCY_PS  # two steps of two hops, half of C in each


def test_two_groups_on_one_link_share_it_evenly(rig: Any) -> None:
    ticket = run(rig(4).cluster, CROSSING, CROSSED)
    assert ends(ticket, "all_reduce") == dict.fromkeys(range(4), FLOWS_PS + 2 * C_PS)


def test_a_group_of_weight_three_gets_three_quarters_of_what_it_shares_with_one_of_weight_one(rig: Any) -> None:
    found = ends(run(rig(4).cluster, CROSSING, CROSSED, {"a": Sharing(weight=3)}), "all_reduce")
    first_ps = -(-C_PS * 4 // 3)  # C at three quarters; the other has then a third of C behind it
    assert found[0] == found[2] == FLOWS_PS + first_ps
    assert found[1] == found[3] and found[1] - FLOWS_PS - 2 * C_PS in (0, 1)


def test_a_group_of_higher_priority_starves_the_other_until_it_is_done(rig: Any) -> None:
    found = ends(run(rig(4).cluster, CROSSING, CROSSED, {"b": Sharing(priority=1)}), "all_reduce")
    assert found == {1: FLOWS_PS + C_PS, 3: FLOWS_PS + C_PS, 0: FLOWS_PS + 2 * C_PS, 2: FLOWS_PS + 2 * C_PS}


def test_a_groups_sharing_stands_in_place_of_its_submissions(rig: Any) -> None:
    four = rig(4).cluster
    tickets = []
    for ranks, weight, sharing in (((0, 2), 9, {"a": Sharing(weight=1)}), ((1, 3), 1, {})):
        made = [submission(rank, CROSSING[rank], CROSSED, sharing) for rank in ranks]
        tickets.append(four.submit(made, weight=weight))
    for ticket in tickets:
        four.run_until(ticket)
    assert [ticket.end_ps for ticket in tickets] == [FLOWS_PS + 2 * C_PS] * 2


def test_a_sharing_that_does_not_fit_is_refused(rig: Any) -> None:
    bodies = ["link | barrier group=all"] * 2
    for sharing, message in (
        ({"b": Sharing()}, "a sharing is given for b, which is no group of it; its groups: all"),
        ({"all": Sharing(weight=0)}, "group all has weight 0 and priority 0; a weight is an int of 1 or more"),
        ({"all": Sharing(priority=1 << 31)}, "a priority one of 32 bits"),
    ):
        made = [submission(rank, body, {"all": (0, 1)}) for rank, body in enumerate(bodies)]
        wrong = Submission(made[1].rank, made[1].program, made[1].binding, made[1].groups, sharing)
        with pytest.raises(ProgramError, match=message):
            rig(2).cluster.submit([made[0], wrong])
    two = rig(2).cluster
    made = [submission(r, b, {"all": (0, 1)}, {"all": Sharing(weight=1 + r)}) for r, b in enumerate(bodies)]
    with pytest.raises(ProgramError, match="give a group the same sharing on every member"):
        two.run_until(two.submit(made))


# groups of any ranks


def test_subgroups_whose_ranks_go_different_ways_complete(rig: Any) -> None:
    """0 and 1 meet three times, 2 and 3 once, then across, then all: each pair when both have come."""
    groups = {"low": (0, 1), "high": (2, 3), "even": (0, 2), "odd": (1, 3), "all": (0, 1, 2, 3)}

    def body(*names: str) -> str:
        return "\n".join(f"link | all_reduce x=%c group={name}" for name in names)

    low, high = ["low"] * 3, ["high"]
    bodies = [
        body(*low, "even", "all"),
        body(*low, "odd", "all"),
        body(*high, "even", "all"),
        body(*high, "odd", "all"),
    ]
    ticket = run(rig(4, "full_mesh").cluster, bodies, groups)
    pair_ps = DISPATCH_PS + 2 * LATENCY_PS + C_PS
    all_ps = DISPATCH_PS + 6 * LATENCY_PS + 6 * C_PS // 4
    assert ticket.end_ps == 4 * pair_ps + all_ps
    late = [span.late for span in ticket.spans if span.card == 2]
    assert late == [-1, 0, -1]


def test_a_group_of_24_on_nodes_of_8_goes_at_the_pace_of_the_wires_between_nodes() -> None:
    """Three nodes of 8 in a ring of 24 cards: of its links three join nodes, and those are ten times slower."""
    spec, size = load_card("reference-npu"), 24
    cluster = Cluster(spec, make_cluster("ring", size, 10**10, LATENCY_PS).topology())
    for last in (7, 15, 23):
        cluster.set_link_capacity(last, (last + 1) % size, 10**9)
    ticket = run(cluster, ["link | all_reduce x=%c group=tp"] * size, {"tp": tuple(range(size))})
    least_ps = flow_ps(2 * 23 * C_BYTES // 24, 10**9) + 46 * LATENCY_PS
    assert least_ps <= ticket.end_ps <= least_ps + 46 * 1_000 + spec.dispatch.link_ps + 10**6
    beyond = {"tp": tuple(range(17, 25))}
    with pytest.raises(ProgramError, match="cards are 0 to 23"):
        cluster.submit([submission(rank, "link | barrier group=tp", beyond) for rank in range(17, 24)])


def test_a_link_too_slow_to_end_in_53_days_is_named_until_it_is_mended(rig: Any) -> None:
    two = rig(2, overrides=EAGER).cluster
    bodies = ["link | send x=%c group=all peer=1", "link | recv x=%c group=all peer=0"]
    two.set_link_capacity(0, 1, 1)
    ticket = two.submit([submission(rank, body, {"all": (0, 1)}) for rank, body in enumerate(bodies)])
    two.advance_to(2 * 10**12)
    two.set_link_capacity(0, 1, 10**10)
    two.run_until(ticket)
    # 131,072 bytes at a byte a second take 36 hours; nearly all of them are left when the link is mended.
    assert 2 * 10**12 + C_PS * 99 // 100 < ticket.end_ps <= 2 * 10**12 + C_PS
    two.set_link_capacity(0, 1, 1)
    large = {"rows": (10**9,)}
    bodies = [body.replace("%c", "%x") for body in bodies]
    ticket = two.submit([submission(rank, body, {"all": (0, 1)}, **large) for rank, body in enumerate(bodies)])
    with pytest.raises(DeadlockError, match="link 0 .* gives 1 a second, too little to end in 53 days"):
        two.run_until(ticket)


# algorithms: one activity of the group takes as long as its steps


TEXTS = {
    "all_reduce": "all_reduce x=%c group=g",
    "reduce_scatter": "reduce_scatter dst=%x src=%c[0:64] group=g",
    "all_gather": "all_gather dst=%c[0:64] src=%x group=g axis=rows",
    "all_to_all": "all_to_all dst=%d[0:64] src=%x group=g send_counts=to recv_counts=fro",
    "broadcast": "broadcast x=%c group=g root=1",
    "reduce": "reduce x=%c group=g root=1",
    "scatter": "link_scatter dst=%x src=%c[0:64] group=g root=1 axis=rows",
    "gather": "link_gather dst=%c[0:64] src=%x group=g root=1 axis=rows",
    "barrier": "barrier group=g",
}


def test_every_collective_between_more_than_two_has_an_instruction() -> None:
    assert TEXTS.keys() == {name for name, collective in COLLECTIVES.items() if collective.size is None}


def topology_of(size: int, algorithm: tuple[str, str]) -> Topology:
    uses_switch = ALGORITHMS[algorithm].uses_switch
    spec = make_cluster("switch" if uses_switch else "full_mesh", size, 10**10, LATENCY_PS)
    return (spec.model_copy(update={"switch_reduces": True}) if uses_switch else spec).topology()


@pytest.mark.parametrize("size", [8, 16, 32])
@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS), ids="-".join)
def test_a_group_is_within_a_picosecond_a_step_of_its_steps(rig: Any, size: int, algorithm: tuple[str, str]) -> None:
    collective, name = algorithm
    if collective not in TEXTS:
        return
    shaped = "shape" in ALGORITHMS[algorithm].takes
    choice = Choice(name, Options(shape=(size // 4, 4)) if shaped else Options())
    root = 1 if COLLECTIVES[collective].rooted else 0
    steps = choice.plan(collective, size, root).num_steps
    rng = np.random.default_rng(size)
    counts = rng.integers(0, 3, (size, size))
    counts[:, 0] = 0  # so that 64 rows are enough
    counts = counts if size < 32 else counts // 2
    rows = 64 if collective == "all_to_all" else 64 // size
    found = []
    for detail in ("group", "step"):
        spec = rig(1, overrides={"hbm.bandwidth_bytes_per_s": "35GB/s"}).spec
        cluster = Cluster(spec, topology_of(size, algorithm), detail=detail, choose=lambda *_: choice)
        ranks = tuple(range(size))
        made = [
            submission(
                r,
                f"link | {TEXTS[collective]}",
                {"g": ranks},
                rows=(rows,),
                to=tuple(counts[r].tolist()),
                fro=tuple(counts[:, r].tolist()),
            )
            for r in ranks
        ]
        ticket = cluster.submit(made)
        cluster.run_until(ticket)
        found.append(ticket.end_ps)
    assert abs(found[0] - found[1]) <= steps
    assert found[0] > DISPATCH_PS


# scale


def run_all(cluster: Cluster, made: list[Submission]) -> Ticket:
    ticket = cluster.submit(made)
    cluster.run_until(ticket)
    return ticket


@pytest.mark.long
def test_a_gibibyte_is_all_reduced_over_1024_cards_in_its_closed_time() -> None:
    size, parts = 1024, 1 << 20
    cluster = Cluster(load_card("reference-npu"), make_cluster("ring", size, 50 * 10**9, LATENCY_PS).topology())
    text = f"program p\nqueue link\ngroup g {size}\nbuffer x : bf16[512, {parts}] activation\nblock b\n"
    program = assemble(text + f"param x : bf16[512, {parts}]\nlink | all_reduce x=%x group=g\nend\ncall b x\n")
    ranks = tuple(range(size))
    ticket = run_all(cluster, [Submission(r, program, Binding({}, {"g": r}), {"g": ranks}) for r in ranks])
    wire_ps = flow_ps(2 * 1023 * parts, 50 * 10**9) + 2 * 1023 * LATENCY_PS
    assert wire_ps <= ticket.end_ps <= wire_ps + 10**8  # and what dispatch takes


@pytest.mark.long
@pytest.mark.parametrize("kind", ["switch", "fat_tree"])
def test_rows_are_exchanged_unevenly_between_512_cards_over_their_busiest_port(kind: str) -> None:
    size = 512
    cluster = Cluster(load_card("reference-npu"), make_cluster(kind, size, 50 * 10**9, LATENCY_PS).topology())
    counts = np.random.default_rng(3).integers(0, 2000, (size, size))
    text = f"program p\nqueue link\nextent to[]\nextent fro[]\ngroup g {size}\n"
    text += "".join(f"buffer {name} : bf16[1000000, 512] activation\n" for name in "xy")
    text += "block b\nparam x : bf16[1000000, 512]\nparam y : bf16[1000000, 512]\n"
    program = assemble(f"{text}link | {TEXTS['all_to_all'].replace('%d[0:64]', '%y')}\nend\ncall b x y\n")
    ranks, made = tuple(range(size)), []
    for r in ranks:
        extents = {"to": tuple(counts[r].tolist()), "fro": tuple(counts[:, r].tolist())}
        made.append(Submission(r, program, Binding(extents, {"g": r}), {"g": ranks}))
    ticket = run_all(cluster, made)
    others = counts - np.diag(np.diag(counts))
    busiest = int(max(others.sum(0).max(), others.sum(1).max())) * 1024
    assert len(ticket.exchanged) == 1
    assert ticket.end_ps > flow_ps(busiest, 50 * 10**9) + 2 * LATENCY_PS
