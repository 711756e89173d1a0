"""Energy and heat by hand: what instructions and messages take, and how a card warms and cools."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from siltwin.emulator.card_parts import Power
from siltwin.emulator.energy import Drawn, joules_of, operations_nj, unstated
from siltwin.emulator.spec import card_names, load_card, override
from siltwin.emulator.thermal import Thermal, at_clock
from siltwin.emulator.units.demand import demand
from siltwin.isa.dtype import BF16
from siltwin.isa.work import AttentionShape, FusedShape, MatmulShape, Unit, Work

POWER = {
    "power.idle_w": "100",
    "power.energy_j_per_op.bf16": "1e-12",
    "power.energy_j_per_vector_op": "4e-12",
    "power.voltage_exponent": "2",
    "power.energy_j_per_hbm_byte": "50e-12",
    "power.energy_j_per_link_byte": "10e-12",
}
MATMUL = "tensor | matmul dst=%y a=%x w=%w bias=-"
REDUCE = "link | all_reduce x=%c group=all"
MATMUL_NJ = 2 * 64 * 64 * 2048 // 1000  # 16,777,216 operations of a picojoule, in whole nanojoules
MATMUL_BYTES, C_BYTES = 532_480, 131_072


def test_a_matmul_takes_its_operations_and_its_bytes(rig: Any) -> None:
    one = rig(overrides=POWER)
    one.run(MATMUL, calls=3)
    drawn = one.cluster.ledger.drawn()
    assert (drawn.operations_nj.tolist(), drawn.hbm_bytes.tolist()) == ([3 * MATMUL_NJ], [3 * MATMUL_BYTES])
    joules = joules_of(one.spec, 10**12, drawn)  # of one second
    assert (joules.idle, joules.links[0]) == (100.0, 0.0)
    assert joules.operations[0] == pytest.approx(3 * 16.777e-6, rel=1e-6)
    assert joules.hbm[0] == pytest.approx(3 * 532_480 * 50e-12)


def test_what_a_card_sends_is_its_own_energy(rig: Any) -> None:
    # A ring all-reduce over two cards: each sends half of c twice; its HBM bytes are those that its usage tells.
    one = rig(2, overrides=POWER)
    one.run(REDUCE)
    drawn = one.cluster.ledger.drawn()
    assert drawn.link_bytes.tolist() == [C_BYTES, C_BYTES]
    assert drawn.hbm_bytes.tolist() == [one.cluster.usage(rank)["hbm"].num_bytes for rank in (0, 1)]


def test_operations_take_less_at_a_lower_clock_by_the_cards_exponent() -> None:
    card = override(load_card("reference-npu"), POWER)
    product = Work(Unit.TENSOR, ops=10**9, dtype=BF16)
    gate = Work(Unit.VECTOR, ops=10**6, dtype=BF16)
    assert operations_nj(product, 1.0, card) == 10**6  # a millijoule
    assert operations_nj(product, 0.5, card) == 250_000
    assert operations_nj(Work(Unit.TENSOR, shape=FusedShape((product, gate))), 0.5, card) == 250_000 + 1000
    lanes = Work(Unit.TENSOR, ops=np.array([10**9, 0]), dtype=BF16)  # type: ignore[arg-type]
    assert operations_nj(lanes, np.array([0.5, 1.0]), card).tolist() == [250_000, 0]


def test_a_card_at_a_throttle_step_asks_and_takes_what_that_clock_says() -> None:
    card = override(load_card("reference-npu"), POWER)
    half = at_clock(card, card.clock_hz // 2)
    assert (half.clock_hz, half.evidence) == (card.clock_hz // 2, card.evidence)
    product = Work(Unit.TENSOR, ops=10**9, dtype=BF16)
    assert operations_nj(product, 1.0, half) == 250_000


SIZE, TOKENS = 8192, 4096
PRODUCT = Work(Unit.TENSOR, 2 * SIZE**3, 4 * SIZE**2, 2 * SIZE**2, BF16, MatmulShape(SIZE, SIZE, SIZE))
ATTENTION = Work(
    Unit.TENSOR, 4 * 32 * 128 * (TOKENS * (TOKENS + 1) // 2), 2 * 3 * TOKENS * 4096, 2 * TOKENS * 4096, BF16,
    AttentionShape((TOKENS,), (TOKENS,), 32, 32, 128, 128),
)  # fmt: skip
FUSED = Work(Unit.TENSOR, PRODUCT.ops, PRODUCT.read_bytes, PRODUCT.write_bytes, BF16, FusedShape((PRODUCT,)))


@pytest.mark.parametrize(("work", "tdp_w", "share"), [(PRODUCT, 700, 1), (PRODUCT, 700, 1.3), (ATTENTION, 300, 1)])
def test_what_the_tdp_holds_draws_just_that(work: Work, tdp_w: int, share: float) -> None:
    card = override(load_card("h100-sxm"), {"tuning.matmul.power": str(share), "power.tdp_w": str(tdp_w)})
    asked = demand(work, card)
    assert asked.clock_fraction < 0.95
    drawn = Drawn(operations_nj(work, asked.clock_fraction, card), dict(asked.amounts)["hbm"], 0)
    assert joules_of(card, asked.alone_ps, drawn).total / (asked.alone_ps / 1e12) == pytest.approx(tdp_w, rel=1e-6)


def test_what_is_fused_sustains_what_its_parts_do() -> None:
    card = load_card("h100-sxm")
    assert demand(FUSED, card).clock_fraction == pytest.approx(demand(PRODUCT, card).clock_fraction, abs=0.01)


@pytest.mark.parametrize("name", [name for name in card_names() if load_card(name).power != Power()])
def test_a_shipped_card_that_states_power_states_all_of_it_and_carries_it_away(name: str) -> None:
    card = load_card(name)
    assert unstated(card, 8) == ()
    thermal = Thermal.of(card)
    assert thermal is not None and card.power.tdp_w is not None
    assert thermal.limit_c - 15 < thermal.settled_c(card.power.tdp_w) <= thermal.limit_c


def test_what_a_card_leaves_out_is_named() -> None:
    card = load_card("reference-npu")
    assert unstated(card, 8) == ()
    bare = card.model_copy(update={"power": card.power.model_copy(update={"idle_w": None, "energy_j_per_op": {}})})
    assert unstated(bare, 1)[:2] == ("power.idle_w", "power.energy_j_per_op.bf16")


THERMAL = Thermal(resistance_k_per_w=0.1, capacity_j_per_k=50.0, ambient_c=30.0, limit_c=80.0)  # 5 seconds


def test_a_card_nears_the_temperature_at_which_heat_leaves_as_it_comes() -> None:
    # 600 W settle 60 K above 30 degrees; after one time constant 1/e of the way is left.
    warm = THERMAL.after(np.array([40.0]), np.array([600.0]), 5.0)
    assert warm[0] == pytest.approx(90 - 50 / math.e)
    halves = THERMAL.after(THERMAL.after(np.array([40.0]), np.array([600.0]), 2.5), np.array([600.0]), 2.5)
    assert halves[0] == pytest.approx(warm[0])
    assert THERMAL._replace(capacity_j_per_k=0.0).after(np.array([40.0]), np.array([600.0]), 1e-9)[0] == 90.0


@pytest.mark.parametrize(
    ("level", "before", "now", "then"),
    [(0, 79, 80, 0), (0, 79, 81, 1), (1, 81, 82, 2), (2, 82, 83, 2), (2, 83, 81, 2), (1, 80, 78, 1), (1, 78, 76.9, 0)],
)
def test_a_hot_card_goes_down_while_it_warms_and_up_once_well_below(
    level: int, before: float, now: float, then: int
) -> None:
    assert THERMAL.stepped(np.array([level]), np.array([before]), np.array([now]), 2).tolist() == [then]


def test_a_program_that_begins_at_half_the_clock_takes_twice_its_cycles(rig: Any) -> None:
    # 1,621 cycles of 1,000 ps after 500,000 ps of dispatch and latency, which have no clock; and back again.
    one = rig(overrides=POWER)
    lasted = []
    for clock_hz in (10**9, 5 * 10**8, 10**9):
        one.cluster.set_clock(0, clock_hz)
        (span,) = one.run(MATMUL)
        lasted.append(span.end_ps - span.start_ps)
    assert lasted == [500_000 + 1_621_000, 500_000 + 2 * 1_621_000, 500_000 + 1_621_000]
    assert one.cluster.ledger.drawn().operations_nj.tolist() == [2 * MATMUL_NJ + round(MATMUL_NJ / 4)]
