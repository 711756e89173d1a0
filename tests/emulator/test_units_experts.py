"""Grouped products on the tensor unit: one expert is a plain product, and cutting its rows up never helps."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siltwin.emulator.spec import card_names, load_card
from siltwin.emulator.units.demand import demand
from siltwin.emulator.units.rates import capacities
from siltwin.emulator.units.tensor import matmul_plan
from siltwin.isa.dtype import BF16
from siltwin.isa.work import GroupedShape, MatmulShape, StateShape, Unit, Work

LAWS = settings(max_examples=100, deadline=None)
PS_PER_S = 10**12
cards = st.sampled_from(card_names()).map(load_card)
rows = st.lists(st.one_of(st.integers(0, 40), st.integers(0, 900)), min_size=1, max_size=24).filter(any)
sides = st.sampled_from([16, 100, 512, 768, 1536])


def grouped(rows: list[int], n: int, k: int, read_bytes: int | None = None) -> Work:
    """A grouped product that reads its rows and the matrices of the experts that have some."""
    total, used = sum(rows), sum(count > 0 for count in rows)
    read = 2 * (total * k + used * n * k) if read_bytes is None else read_bytes
    return Work(Unit.TENSOR, 2 * total * n * k, read, 2 * total * n, BF16, GroupedShape(tuple(rows), n, k))


@LAWS
@given(cards, st.integers(1, 3000), sides, sides)
def test_one_expert_takes_as_long_as_a_plain_product(card, m: int, n: int, k: int) -> None:
    work = grouped([0, m, 0], n, k)
    plain = Work(Unit.TENSOR, work.ops, work.read_bytes, work.write_bytes, BF16, MatmulShape(m, n, k))
    assert demand(work, card) == demand(plain, card)


@LAWS
@given(cards, rows, sides, sides, st.randoms())
def test_the_order_of_the_experts_changes_nothing(card, rows: list[int], n: int, k: int, dice) -> None:
    shuffled = rows.copy()
    dice.shuffle(shuffled)
    assert demand(grouped(rows, n, k), card) == demand(grouped(shuffled, n, k), card)


@LAWS
@given(cards, rows, sides, sides)
def test_rows_of_many_experts_are_never_faster_than_of_one(card, rows: list[int], n: int, k: int) -> None:
    work = grouped(rows, n, k)
    one = grouped([sum(rows)], n, k, work.read_bytes)
    assert demand(work, card).alone_ps >= demand(one, card).alone_ps


@LAWS
@given(cards, rows, st.integers(0, 23), st.integers(1, 200), sides)
def test_more_rows_never_take_less_time(card, rows: list[int], at: int, more: int, side: int) -> None:
    grown = rows.copy()
    grown[at % len(rows)] += more
    assert demand(grouped(grown, side, side), card).alone_ps >= demand(grouped(rows, side, side), card).alone_ps


@LAWS
@given(cards, rows, sides, sides)
def test_time_covers_the_bytes_and_the_operations(card, rows: list[int], n: int, k: int) -> None:
    work = grouped(rows, n, k)
    found = demand(work, card)
    capacity = capacities(card)
    assert found.alone_ps * card.peak_ops_per_s(BF16) >= work.ops * PS_PER_S - card.peak_ops_per_s(BF16)
    for kind, amount in found.amounts:
        assert found.alone_ps * capacity[kind] >= amount * PS_PER_S


def test_an_expert_without_rows_costs_nothing() -> None:
    card = load_card("reference-npu")
    assert demand(grouped([0, 0], 64, 64), card).amounts == ()
    assert demand(grouped([5, 0, 0], 64, 64), card) == demand(grouped([5], 64, 64), card)


@pytest.mark.parametrize("card", ["ascend-910b2", "h100-sxm"])
def test_one_row_over_the_tile_opens_another_tile(card: str) -> None:
    """128 rows an expert fill whole tiles of any size up to 128; 129 rows need a tile more for every expert."""
    spec = load_card(card)
    full, over = (matmul_plan(grouped([m] * 64, 1024, 1024), spec) for m in (128, 129))
    assert over.waves * over.tile_rows * over.tile_columns > full.waves * full.tile_rows * full.tile_columns
    assert over.time_ps > full.time_ps


def test_a_deal_that_leaves_tiles_half_empty_takes_longer() -> None:
    """256 rows on 8 experts: 32 each fill tiles of 32, while 25 and 39 waste some of every tile."""
    card = load_card("ascend-910b2")
    even = demand(grouped([256] * 64, 512, 2048), card)
    uneven = demand(grouped([255, 257] * 32, 512, 2048), card)
    assert uneven.alone_ps >= even.alone_ps
    assert dict(uneven.amounts)["tensor"] > dict(even.amounts)["tensor"]


@pytest.mark.parametrize("name", ["ascend-910c", "h100-sxm", "mi300x"])
def test_a_step_of_recurrent_states_is_held_by_reading_and_writing_them(name: str) -> None:
    states, values, keys = 3072, 128, 128  # 256 sequences of Kimi K3's linear attention, on one of 8 cards
    state_bytes = 4 * states * values * keys
    step = Work(
        Unit.TENSOR, dtype=BF16, ops=2 * states * values * 3 * keys, read_bytes=state_bytes, write_bytes=state_bytes,
        shape=StateShape((1,) * states, values, 3 * keys),
    )  # fmt: skip
    card = load_card(name)
    asked, least_ps = demand(step, card), 2 * state_bytes * PS_PER_S // card.hbm.attainable_bytes_per_s
    assert asked.bound == "hbm" and least_ps <= asked.alone_ps <= 1.2 * least_ps
