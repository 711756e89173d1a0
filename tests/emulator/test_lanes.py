"""Costs in lanes are those of every rank by itself: rows, shares, amounts and exchanges, to the last integer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siltwin.emulator.calendar.activity import Demand
from siltwin.emulator.calendar.lane_shares import lane_shares
from siltwin.emulator.calendar.resources import Resource
from siltwin.emulator.calendar.shares import share_of
from siltwin.emulator.calendar.wide import divided, rounded_up
from siltwin.emulator.cluster import Cluster
from siltwin.emulator.compiled import machine as c
from siltwin.emulator.compiled.cluster import CompiledCluster
from siltwin.emulator.compiled.kept_lanes import KeptLanes
from siltwin.emulator.compiled.lane_ops import Batch, LaneOps
from siltwin.emulator.compiled.ops import Ops
from siltwin.emulator.costs import Costs
from siltwin.emulator.lane_costs import IN_LANES
from siltwin.emulator.op_columns import power_of, use_of
from siltwin.emulator.span import in_order
from siltwin.emulator.spec import CardSpec, load_card
from siltwin.emulator.ticket import Submission
from siltwin.emulator.timeline import Timeline
from siltwin.interconnect.cluster import make_cluster
from siltwin.isa.errors import ProgramError
from siltwin.isa.loads import RankExtents, Table
from siltwin.isa.program import Binding, Program
from siltwin.isa.text import assemble
from siltwin.isa.work import Unit

RANKS, EXPERTS, LAYERS, ROOM = 16, 5, 3, 4096
BUFFERS = """
x : bf16[tokens, 96]
ids : int32[tokens, 4]
slots : int32[tokens, 4]
weights : fp32[tokens, 4]
leaving : bf16[room, 96]
arrived : bf16[room, 96]
arriving : int32[80]
w : bf16[5, 256, 96] weight
codes : uint8[5, 256, 48] weight
scales : fp32[5, 256, 3] weight
wide : bf16[room, 256]
half : bf16[room, 128]
counts : int32[80]
rows : int32[5]
q : int8[room, 96]
q_scales : fp32[room, 1]
one : fp32[1, 1]
q_codes : int8[5, 256, 96] weight
code_scales : fp32[5, 256, 1] weight
"""
PER = "counts=%rows extent=local at=0"
MXFP4, INT8 = "form=mxfp4/nibbles/1x32/fp32", "form=int8/plain/1x0/fp32"
BODY = f"""
dma0 | permute dst=%leaving slots=%slots x=%x ids=%ids extent=all first=0 experts=80 part=0 parts=1
link | all_to_all dst=%arrived src=%leaving group=g send_counts=sent recv_counts=received
dma1 | regroup dst=%leaving x=%arrived arriving=%arriving local=local members=16 experts=5 back=no
tensor | grouped_matmul dst=%wide a=%leaving w=%w bias=- {PER}
tensor | packed_grouped_matmul dst=%wide a=%leaving codes=%codes scales=%scales {MXFP4} {PER} bias=- zeros=-
vector | grouped_gated dst=%half x=%wide {PER} experts=5 activation=silu
vector | grouped_situ_gated dst=%half x=%wide {PER} experts=5 beta=4.0 linear_beta=25.0
vector | scale_routed x=%leaving slots=%slots weights=%weights extent=all at=0 experts=80
vector | grouped_quantise dst=%q scales=%q_scales x=%leaving {INT8} amax=127.0 rule=nearest {PER} experts=5 phase=0
vector | grouped_quantise_static dst=%q x=%leaving scales=%one {INT8} {PER} experts=5
tensor | quantised_grouped_matmul dst=%wide a=%q a_scales=%q_scales codes=%q_codes scales=%code_scales {INT8} {PER} LAST
vector | combine dst=%x x=%leaving slots=%slots weights=%weights extent=all at=0 experts=80
""".replace("LAST", "bias=- index=- phase=0").replace("zeros=-", "zeros=- divisors=- index=- phase=0")
FUSED = f"tensor | fused_grouped_matmul dst=%half a=%leaving w=%w bias=- {PER} activation=silu"

UNITS = {"dma0": Unit.DMA, "dma1": Unit.DMA, "link": Unit.LINK, "tensor": Unit.TENSOR, "vector": Unit.VECTOR}
NAMES = ("all", "sent", "received", "local")


def layers(card: CardSpec, more: str = "") -> Program:
    """A program that calls one block for each of some layers, with extents of the layer's own."""
    kinds = [line.split(" weight")[0] for line in BUFFERS.strip().split("\n")]
    spaces = ["weight" if line.endswith("weight") else "activation" for line in BUFFERS.strip().split("\n")]
    lines = ["program p", *(f"queue {queue.name}" for queue in card.queues), "extent tokens", "extent room"]
    lines += [f"extent {name}.{layer}[]" for layer in range(LAYERS) for name in NAMES]
    lines += [f"group g {RANKS}", *(f"buffer {kind} {space}" for kind, space in zip(kinds, spaces, strict=True))]
    lines += ["block b", *(f"param {kind}" for kind in kinds), *(f"extent {name}[]" for name in NAMES)]
    lines += [on_this(card, line) for line in (BODY + more).strip().split("\n")] + ["end"]
    buffers = " ".join(kind.split(" :")[0] for kind in kinds)
    lines += [f"call b {buffers} | {' '.join(f'{name}.{layer}' for name in NAMES)}" for layer in range(LAYERS)]
    return assemble("\n".join(lines))


def on_this(card: CardSpec, line: str) -> str:
    """A line in a queue that the card has for its unit."""
    unit, _, text = line.partition(" | ")
    return f"{card.queue_for(UNITS[unit])} | {text}"


def loads(draw: np.random.Generator, kind: str) -> list[np.ndarray]:
    """Rows of every rank for every expert of all, by layer."""
    size = (RANKS, RANKS * EXPERTS)
    if kind == "none":
        return [np.zeros(size, np.int64)] * LAYERS
    if kind == "one expert":
        found = np.zeros(size, np.int64)
        found[:, 7] = draw.integers(0, ROOM // RANKS, RANKS)
        return [found] * LAYERS
    weight = 1 / np.arange(1, size[1] + 1) ** (1.0 if kind == "zipf" else 0.0)
    return [draw.multinomial(ROOM // RANKS // 2, draw.permutation(weight / weight.sum()), RANKS) for _ in range(LAYERS)]


def tables_of(each: list[np.ndarray]) -> dict[str, Table]:
    """The loads of all ranks as tables of extents."""
    ranks, tables = np.arange(RANKS), dict[str, Table]()
    for layer, rows in enumerate(each):
        moved = rows.reshape(RANKS, RANKS, EXPERTS).sum(axis=2)
        local = rows.sum(axis=0).reshape(RANKS, EXPERTS)
        for name, values in zip(NAMES, (rows, moved, moved.T.copy(), local), strict=True):
            tables[f"{name}.{layer}"] = Table(values, ranks)
    return tables


def bound(each: list[np.ndarray], tokens: int = 64, room: int = ROOM) -> list[Binding]:
    """What every rank binds."""
    return bound_to(tables_of(each), tokens, room)


def bound_to(tables: Mapping[str, Table], tokens: int, room: int = ROOM) -> list[Binding]:
    common = {"tokens": (tokens,), "room": (room,)}
    return [Binding(RankExtents(common, tables, rank), {"g": rank}) for rank in range(RANKS)]


def in_lanes_and_alone(card: CardSpec, bindings: list[Binding], more: str = "") -> None:
    """Both ways of costing all ranks find the same."""
    program = layers(card, more)
    cluster = CompiledCluster(card, make_cluster("single", 1, 10**10, 10**6).topology())
    timeline, calendar, first = Timeline(program), cluster.calendar, cluster.cards[0]
    found = KeptLanes(timeline, Costs(timeline, card), first, calendar.shares).ops(bindings)
    assert found is not None
    batch, ops, _ = found
    for number in batch.lanes.tolist():
        told = dict(batch.works(number, np.arange(len(bindings))))
        costs = [Costs(timeline, card).cost(number, Binding(dict(own.extents), own.group_index)) for own in bindings]
        assert not told or [told[rank] for rank in range(len(bindings))] == [cost.work for cost in costs]
    assert len([number for number in batch.lanes.tolist() if dict(batch.works(number, np.arange(1)))]) > 5
    numbers = {unit: number for number, unit in enumerate((*first.resources, "link"))}
    alone = Costs(timeline, card)
    for rank, binding in enumerate(bindings):
        plain = Binding(dict(binding.extents), binding.group_index)
        one = Ops(first.ops(timeline.questions, alone.answers(plain), ()), timeline.asked, calendar.shares)
        assert [list(row) for row in described(calendar, ops[rank])] == [list(row) for row in described(calendar, one)]
        assert (ops[rank].actions == one.actions).all()
        for made, expected in zip(ops[rank].use(numbers, 0), use_of(list(one), numbers, 0), strict=True):
            assert (made == expected).all()
        for made, expected in zip(ops[rank].power(), power_of(list(one)), strict=True):
            assert (made == expected).all()
        assert list(ops[rank]) == list(one)
        for number, op in enumerate(one.made):
            if op.message is not None:
                moved = batch.exchange(number, np.arange(RANKS))
                assert tuple(moved.sent[rank].tolist()) == op.message.part_bytes
                assert tuple(moved.received[rank].tolist()) == op.message.arriving_bytes


def described(calendar: Any, ops: Ops) -> Any:
    """Rows of operations with their shares written out."""
    rows, memory = ops.rows.tolist(), calendar.memory
    shares, uses, units = memory.rows(c.SHARES), memory.rows(c.USES), memory.rows(c.UNITS)
    for row in rows:
        if row[c.SHARE] != c.NONE:
            bound, first, count, unit, held = shares[row[c.SHARE]].tolist()
            row[c.SHARE] = (bound, uses[first : first + count].tolist(), units[unit : unit + held].tolist())
        yield row


@settings(max_examples=6, deadline=None)
@given(
    st.sampled_from(["reference-npu", "ascend-910c", "h100-sxm"]),
    st.sampled_from(["zipf", "multinomial", "one expert", "none"]),
    st.sampled_from([0, 1, 64, 3000]),
    st.integers(0, 2**32),
)
def test_every_rank_costs_in_lanes_what_it_costs_alone(card: str, kind: str, tokens: int, seed: int) -> None:
    in_lanes_and_alone(load_card(card), bound(loads(np.random.default_rng(seed), kind), tokens))


def test_what_works_not_in_lanes_is_costed_rank_by_rank_beside_them() -> None:
    in_lanes_and_alone(load_card("ascend-910c"), bound(loads(np.random.default_rng(2), "zipf")), FUSED)


def test_all_instructions_that_claim_to_work_in_lanes_are_tried() -> None:
    card = load_card("reference-npu")
    assert {type(issue.instruction) for issue in layers(card).blocks[0].body} == set(IN_LANES)


def test_equal_ranks_share_one_object_and_others_have_their_own() -> None:
    card = load_card("reference-npu")
    timeline = Timeline(layers(card))
    cluster = CompiledCluster(card, make_cluster("single", 1, 10**10, 10**6).topology())
    bindings = bound(loads(np.random.default_rng(1), "zipf"))
    again = [*bindings, Binding(bindings[3].extents, {"g": 3})]
    found = KeptLanes(timeline, Costs(timeline, card), cluster.cards[0], cluster.calendar.shares).ops(again)
    assert found is not None and found[1][3] is found[1][-1] and found[1][3] is not found[1][4]
    assert all(isinstance(ops, LaneOps) for ops in found[1])


def test_ranks_whose_costs_come_out_equal_share_one_object_though_their_counts_differ() -> None:
    # every rank sends the same to every member; which expert of a rank gets what is another matter for each
    card = load_card("reference-npu")
    timeline = Timeline(layers(card))
    cluster = CompiledCluster(card, make_cluster("single", 1, 10**10, 10**6).topology())
    own = np.array([[1, 2, 3, 4, 5], [5, 4, 3, 2, 1]])[np.arange(RANKS * RANKS) // RANKS % 2].reshape(RANKS, RANKS, -1)
    each = [own.transpose(1, 0, 2).reshape(RANKS, RANKS * EXPERTS)] * LAYERS
    found = KeptLanes(timeline, Costs(timeline, card), cluster.cards[0], cluster.calendar.shares).ops(bound(each))
    assert found is not None and len({id(ops) for ops in found[1]}) == 1
    each[1] = each[1].copy()
    each[1][3, 7] += 1  # one row more from rank 3 to rank 1
    found = KeptLanes(timeline, Costs(timeline, card), cluster.cards[0], cluster.calendar.shares).ops(bound(each))
    assert found is not None and len({id(ops) for ops in found[1]}) == 3


def test_lanes_are_kept_while_all_that_they_read_is_the_same() -> None:
    card = load_card("reference-npu")
    timeline = Timeline(layers(card))
    cluster = CompiledCluster(card, make_cluster("single", 1, 10**10, 10**6).topology())
    first, shares = cluster.cards[0], cluster.calendar.shares
    lanes = KeptLanes(timeline, Costs(timeline, card), first, shares)
    even, uneven = [np.full((RANKS, RANKS * EXPERTS), 2)] * LAYERS, loads(np.random.default_rng(1), "zipf")

    def asked(tables: Mapping[str, Table], tokens: int) -> tuple[Batch, bool]:
        """The batch of a submission and whether it is kept; what it asks is what is asked of every rank alone."""
        bindings = bound_to(tables, tokens)
        found = lanes.ops(bindings)
        assert found is not None
        for rank in (0, 3):
            costs = Costs(timeline, card).answers(Binding(dict(bindings[rank].extents), {"g": rank}))
            one = Ops(first.ops(timeline.questions, costs, ()), timeline.asked, shares)
            assert list(found[1][rank]) == list(one)
            assert (found[1][rank].rows[:, [c.FIXED, c.ALONE]] == one.rows[:, [c.FIXED, c.ALONE]]).all()
        return found[0], found[2]

    tables, others, skewed = (tables_of(each) for each in (even, [3 * rows for rows in even], uneven))
    kept, is_kept = asked(tables, 64)
    assert is_kept and asked(tables, 64) == (kept, True)
    batches = [kept, *(asked(*other)[0] for other in ((tables, 65), (others, 65), (tables, 65), (tables, 64)))]
    assert len(set(map(id, batches))) == 5  # the latest alone is kept
    assert not asked(skewed, 64)[1] and not asked(skewed, 64)[1]


def test_an_all_to_all_of_more_rows_than_there_are_is_named_as_it_is_alone() -> None:
    card = load_card("reference-npu")
    timeline, costs = Timeline(layers(card)), Costs(Timeline(layers(card)), card)
    cluster = CompiledCluster(card, make_cluster("single", 1, 10**10, 10**6).topology())
    bindings = bound(loads(np.random.default_rng(1), "zipf"))
    for binding in bindings:
        assert isinstance(binding.extents, RankExtents)
        binding.extents.tables["sent.1"].values[5] = ROOM  # to each member
    found = KeptLanes(timeline, costs, cluster.cards[0], cluster.calendar.shares).ops(bindings)
    assert found is not None
    number = next(n for n, question in enumerate(timeline.questions) if question.site.extents.get("sent") == "sent.1")
    assert found[0].exchange(number + 1, np.arange(5)).sent.shape == (5, RANKS)
    with pytest.raises(ProgramError, match=rf"all_to_all: sent counts {ROOM * RANKS} rows, and %leaving has {ROOM}"):
        found[0].exchange(number + 1, np.arange(RANKS))


def test_few_ranks_are_costed_one_by_one() -> None:
    card = load_card("reference-npu")
    timeline = Timeline(layers(card))
    cluster = CompiledCluster(card, make_cluster("single", 1, 10**10, 10**6).topology())
    few = bound(loads(np.random.default_rng(1), "zipf"))[:3]
    assert KeptLanes(timeline, Costs(timeline, card), cluster.cards[0], cluster.calendar.shares).ops(few) is None


def test_a_rank_with_more_rows_than_room_is_named_as_it_is_alone() -> None:
    card = load_card("reference-npu")
    timeline = Timeline(layers(card))
    cluster = CompiledCluster(card, make_cluster("single", 1, 10**10, 10**6).topology())
    bindings = bound(loads(np.random.default_rng(1), "zipf"), room=100)
    errors = []
    for ask in (
        lambda: KeptLanes(timeline, Costs(timeline, card), cluster.cards[0], cluster.calendar.shares).ops(bindings),
        lambda: [Costs(timeline, card).answers(binding) for binding in bindings],
    ):
        with pytest.raises(ProgramError, match="permute: all counts 128 rows, and there are 100") as raised:
            ask()
        errors.append(str(raised.value))
    assert errors[0] == errors[1]


def test_uneven_ranks_take_as_long_in_either_calendar() -> None:
    card = load_card("ascend-910c")
    program, topology = layers(card), make_cluster("ring", RANKS, 10**11, 10**6).topology()
    bindings = bound(loads(np.random.default_rng(5), "zipf"))
    groups = {"g": tuple(range(RANKS))}
    spans = []
    for kind in (Cluster, CompiledCluster):
        cluster = kind(card, topology)
        for _ in range(2):  # rows that a first step left are used again
            ticket = cluster.submit([Submission(rank, program, own, groups) for rank, own in enumerate(bindings)])
            cluster.run_until(ticket)
        spans.append((in_order(ticket.spans), [cluster.usage(rank) for rank in range(RANKS)]))
    assert spans[0] == spans[1] and len(spans[0][0]) == RANKS * LAYERS * len(IN_LANES)


numbers = st.integers(0, 2**50)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(numbers, st.integers(1, 10**12), st.integers(1, 2**53)), min_size=1, max_size=20))
def test_quotients_of_products_beyond_64_bits_are_exact(lanes: list[tuple[int, int, int]]) -> None:
    a, b, q = (np.array(column, np.int64) for column in zip(*lanes, strict=True))
    if max(x * y // z for x, y, z in lanes) >= 2**61:
        return
    whole, rest = divided(a, b, q)
    assert list(zip(whole.tolist(), rest.tolist(), strict=True)) == [divmod(x * y, z) for x, y, z in lanes]
    assert rounded_up(a, b, q).tolist() == [-(-x * y // z) for x, y, z in lanes]


def test_a_quotient_of_more_than_62_bits_is_refused() -> None:
    with pytest.raises(OverflowError, match="62 bits"):
        divided(np.array([2**50]), 10**12, 3)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.sampled_from(["unit", "alone", "hbm", "host", "link"]), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(1, 10**13), st.lists(st.integers(0, 10**9), min_size=3, max_size=3)), max_size=20),
    st.data(),
)
def test_shares_in_lanes_are_those_of_each_demand(kinds: list[str], lanes: Any, data: Any) -> None:
    speeds = data.draw(st.lists(st.sampled_from([10**9, 10**9 + 7, 3 * 10**12]), min_size=3, max_size=3))
    resources = [
        Resource(n, f"r{n}", speeds[n], "unit" if kind == "alone" else kind, kind == "alone")
        for n, kind in enumerate(kinds)
    ]
    # as long as every amount takes alone, at least
    asked = [
        (max([alone, *(-(-a * 10**12 // s) for a, s in zip(many, speeds, strict=True))]), many) for alone, many in lanes
    ]
    alone_ps, amounts = np.array([a for a, _ in asked], np.int64), np.array([m for _, m in asked], np.int64)
    found = lane_shares(alone_ps, resources, amounts.reshape(-1, 3)[:, : len(kinds)])
    assert found is not None
    for lane, (alone, many) in enumerate(asked):
        pairs = tuple((n, amount) for n, amount in enumerate(many[: len(kinds)]) if amount)
        share = share_of(Demand(0, alone, pairs), resources)
        assert found.bounds[lane] == share.bound
        used = {use.resource.index: (use.coefficient, use.load) for use in share.uses}
        for n in range(len(kinds)):
            assert (found.coefficients[lane, n], found.loads[lane, n]) == used.get(n, (0, 0))
