"""Folding: cards in equal conditions are simulated once, and every span is what it is when each runs for itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from random_programs import TIGHT
from test_compiled import told, used

from siltwin.emulator.compiled.cluster import CompiledCluster
from siltwin.emulator.span import Span
from siltwin.emulator.ticket import Submission
from siltwin.interconnect.cluster import make_cluster
from siltwin.isa.program import Binding, Group, Program

LINES = (
    "tensor | matmul dst=%y a=%x w=%w bias=-",
    "vector | add dst=%t a=%t b=%t",
    "dma0 | copy dst=%d src=%c",
    "host | host_load dst=%c src=%h",
    "link | all_reduce x=%c group=rows | wait tensor+0",
    "link | all_reduce x=%e group=columns",
    "link | all_reduce x=%d group=all | wait vector+0",
)
KINDS = ("ring", "full_mesh", "switch")
TURNS = (("send x=%c", (1, 2)), ("recv x=%c", (0, 1)))


def grid(rank: int, width: int, cards: int) -> dict[str, tuple[int, ...]]:
    """The groups of a rank in a grid of rows of `width` cards."""
    row = rank // width
    return {
        "rows": tuple(range(row * width, (row + 1) * width)),
        "columns": tuple(range(rank % width, cards, width)),
        "all": tuple(range(cards)),
    }


class Machine:
    """Compiled clusters of one shape, and what is submitted to them."""

    def __init__(self, rig: Any, cards: int, width: int, kind: str, overrides: Mapping[str, str] = TIGHT) -> None:
        self.rig, self.cards, self.width, self.spec = rig, cards, width, rig(2, overrides=overrides).spec
        self.topology = make_cluster(kind, cards, 10**10, 10**6).topology()
        self.groups = [grid(rank, width, cards) for rank in range(cards)]

    def cluster(self, *, fold: bool) -> CompiledCluster:
        return CompiledCluster(self.spec, self.topology, fold=fold)

    def program(self, lines: Sequence[str], calls: int = 2) -> Program:
        groups = tuple(Group(name, len(ranks)) for name, ranks in self.groups[0].items())
        waiting = [(line.replace("rows", "all").replace("columns", "all"), line) for line in lines]
        made = self.rig(2, overrides=TIGHT).program("\n".join(one for one, _ in waiting), calls)
        (block,) = made.blocks
        body = tuple(
            replace(issue, instruction=replace(issue.instruction, group=line.split("group=")[1].split()[0]))
            if "group=" in line
            else issue
            for issue, (_, line) in zip(block.body, waiting, strict=True)
        )
        return replace(made, groups=groups, blocks=(replace(block, body=body),))

    def submissions(self, programs: Sequence[Program], tokens: Sequence[int]) -> list[Submission]:
        extents = {size: {"tokens": (size,)} for size in tokens}
        return [
            Submission(
                rank,
                programs[rank],
                Binding(extents[tokens[rank]], {name: ranks.index(rank) for name, ranks in groups.items()}),
                groups,
            )
            for rank, groups in enumerate(self.groups)
        ]


def outcome(cluster: CompiledCluster, tickets: Sequence[Any]) -> Any:
    """All that a cluster says of tickets."""
    return [told(cluster, ticket) for ticket in tickets], used(cluster)


def spans_of(ticket: Any, rank: int) -> list[Span]:
    return [span for span in ticket.spans if span.card == rank]


SHAPES = st.sampled_from([(4, 2), (6, 3), (8, 4), (8, 2), (9, 3)])


@settings(max_examples=120, deadline=None)
@given(data=st.data(), shape=SHAPES, kind=st.sampled_from(KINDS))
def test_what_is_folded_runs_as_if_every_card_ran_for_itself(
    rig: Any, data: st.DataObject, shape: tuple[int, int], kind: str
) -> None:
    """Some cards run another program, some have more tokens; submissions overlap, and a capacity changes under way."""
    machine = Machine(rig, *shape, kind)
    together = data.draw(st.lists(st.sampled_from(LINES), min_size=1, max_size=6))
    alone = [line for line in together if "group=" in line]
    programs = [machine.program(together), machine.program(alone or LINES[:1])]
    links = [line for line in together if "group=" in line]
    odd = data.draw(st.sets(st.integers(0, shape[0] - 1), max_size=2)) if links == alone else set()
    longer = data.draw(st.sets(st.integers(0, shape[0] - 1), max_size=2))
    tokens = [48 if rank in longer else 16 for rank in range(shape[0])]
    parts = machine.submissions([programs[rank in odd] for rank in range(shape[0])], tokens)
    even = machine.submissions([programs[0]] * shape[0], [16] * shape[0])
    change = data.draw(st.sampled_from(["", "hbm", "tensor", "link"]))
    turns = [parts, even] if data.draw(st.booleans()) else [even, parts]
    stop = data.draw(st.integers(0, 4_000_000))
    told_by = []
    for fold in (True, False):
        cluster, tickets = machine.cluster(fold=fold), []
        for submissions in turns:
            tickets.append(cluster.submit(submissions))
            cluster.advance_to(cluster.now_ps + stop)
            if change in ("hbm", "tensor"):
                cluster.set_capacity(1, change, 10**9 + stop)
            elif change:
                cluster.set_link_capacity(cluster.topology.links[0].source, cluster.topology.links[0].target, 10**9)
        told_by.append(outcome(cluster, tickets))
    assert told_by[0] == told_by[1]


def test_one_card_stands_for_all_that_do_the_same(rig: Any) -> None:
    machine = Machine(rig, 8, 4, "switch")
    cluster = machine.cluster(fold=True)
    ticket = cluster.submit(machine.submissions([machine.program(LINES)] * 8, [16] * 8))
    assert list(ticket.runs) == [0]
    cluster.run_until(ticket)
    assert ticket.columns[0].ranks == tuple(range(8))
    assert {span.card for span in ticket.spans} == set(range(8))


def test_one_longer_sequence_is_told_apart_with_those_who_meet_its_card(rig: Any) -> None:
    """Card 5 of a 4 x 4 grid has more to do: its row waits for it, then every column for its card of that row."""
    machine, longer = Machine(rig, 16, 4, "switch"), [64 if rank == 5 else 16 for rank in range(16)]
    cluster = machine.cluster(fold=True)
    unmoved = cluster.submit(machine.submissions([machine.program(LINES[4:6])] * 16, longer))
    assert list(unmoved.runs) == [0]  # exchanges of fixed sizes do not depend on tokens
    cluster.run_until(unmoved)
    lines = [LINES[1], LINES[4].replace("tensor+0", "vector+1"), LINES[5]]
    ticket = cluster.submit(machine.submissions([machine.program(lines, 1)] * 16, longer))
    cluster.run_until(ticket)
    assert sorted(ticket.runs) == [0, 1, 4, 5]  # others, its column, its row, itself
    links = {rank: [span for span in spans_of(ticket, rank) if span.queue == "link"] for rank in range(16)}
    assert [links[rank][0].late for rank in range(16)] == [5 if 4 <= rank < 8 else -1 for rank in range(16)]
    assert [links[rank][1].late for rank in range(16)] == [4 + rank % 4 for rank in range(16)]


def test_a_slow_link_is_told_apart(rig: Any) -> None:
    machine = Machine(rig, 4, 2, "full_mesh")
    cluster = machine.cluster(fold=True)
    cluster.set_link_capacity(0, 1, 10**9)
    ticket = cluster.submit(machine.submissions([machine.program([LINES[4]])] * 4, [16] * 4))
    cluster.run_until(ticket)
    ends = [spans_of(ticket, rank)[-1].end_ps for rank in range(4)]
    assert ends[0] == ends[1] > ends[2] == ends[3]
    fast = machine.cluster(fold=True)
    again = fast.submit(machine.submissions([machine.program([LINES[4]])] * 4, [16] * 4))
    fast.run_until(again)
    assert [spans_of(again, rank) for rank in (2, 3)] == [spans_of(ticket, rank) for rank in (2, 3)]


def test_a_deadlock_names_every_card(rig: Any) -> None:
    machine = Machine(rig, 4, 2, "switch")
    lines = ["link | all_reduce x=%e group=rows", "link | all_reduce x=%e group=columns"]
    programs = [machine.program(lines, 1), machine.program(lines[::-1], 1)]
    cluster = machine.cluster(fold=True)
    ticket = cluster.submit(machine.submissions([programs[r % 3 == 0] for r in range(4)], [16] * 4))
    found, wanted = told(cluster, ticket), machine.cluster(fold=False)
    assert found == told(wanted, wanted.submit(machine.submissions([programs[r % 3 == 0] for r in range(4)], [16] * 4)))
    assert len(found["waiters"]) == 4


def test_messages_that_a_card_sends_one_after_the_other_are_told_apart(rig: Any) -> None:
    """Cards 1 and 2 do the same, but card 0 sends to 1 before it sends to 2."""
    one = rig(3, "full_mesh", overrides=TIGHT)
    sends = "link | send x=%c group=all peer=1\nlink | send x=%c group=all peer=2"
    receive = "link | recv x=%c group=all peer=0"
    programs = [one.program(sends), *[one.program(receive)] * 2]
    cluster = CompiledCluster(one.spec, one.cluster.topology)
    ticket = cluster.submit([one.submission(rank, program) for rank, program in enumerate(programs)])
    cluster.run_until(ticket)
    ends = [spans_of(ticket, rank)[-1].end_ps for rank in range(3)]
    assert ends[1] < ends[2] == ends[0]


def test_what_is_known_of_other_turns_is_not_taken_for_these(rig: Any) -> None:
    """Cards 0 and 1 send to 2 and 3 crosswise, and these receive crosswise, or else both from card 0 first."""
    one = rig(4, "full_mesh", overrides=TIGHT)
    texts = ["\n".join(f"link | {line} group=all peer={peer}" for peer in peers) for line, peers in TURNS]
    programs = [rig(3, overrides=TIGHT).program(text) for text in texts]

    def submissions(*last: int) -> list[Submission]:
        """Each card in a group of itself and those it meets, in the order in which it meets them."""
        groups = [(0, 2, 3), (1, 3, 2), (0, 1, 2), last]
        return [
            Submission(rank, programs[rank // 2], Binding({"tokens": (16,)}, {"all": own.index(rank)}), {"all": own})
            for rank, own in enumerate(groups)
        ]

    told_by = []
    for fold in (True, False):
        cluster = CompiledCluster(one.spec, one.cluster.topology, fold=fold)
        tickets = []
        for last in ((1, 0, 3), (0, 1, 3), (1, 0, 3)):
            tickets.append(cluster.submit(submissions(*last)))
            told(cluster, tickets[-1])
        if fold:
            assert [sorted(ticket.runs) for ticket in tickets] == [[0, 2], [0, 1, 2, 3], [0, 2]]
        told_by.append(outcome(cluster, tickets))
    assert told_by[0] == told_by[1]
