"""The clock under a power limit, by hand, and what a repeated product makes of it."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siltwin.emulator.spec import CardSpec, load_card, override
from siltwin.emulator.units.demand import demand
from siltwin.emulator.units.sustained import clock_fraction
from siltwin.isa.dtype import BF16
from siltwin.isa.work import MatmulShape, Unit, Work

SECOND_PS = 1e12


def card_of(exponent: float) -> CardSpec:
    """300 W beside the 100 it draws idle; 1 pJ an operation and 10 pJ a byte."""
    return override(
        load_card("h100-sxm"),
        {
            "power.tdp_w": "400",
            "power.idle_w": "100",
            "power.energy_j_per_op.bf16": "1e-12",
            "power.energy_j_per_hbm_byte": "10e-12",
            "power.voltage_exponent": str(exponent),
        },
    )


def test_the_clock_is_what_the_power_allows() -> None:
    # 400 T operations and 10 T bytes a second would draw 400 + 100 W beside 100: at 0.6 of the clock they draw 300.
    assert clock_fraction(card_of(0), BF16, 400 * 10**12, 10**13, SECOND_PS, 1.0) == pytest.approx(0.6)
    # Where energy falls as the clock: 400 f^2 + 100 f = 300 at f = 0.75.
    assert clock_fraction(card_of(1), BF16, 400 * 10**12, 10**13, SECOND_PS, 1.0) == pytest.approx(0.75)
    assert clock_fraction(card_of(1), BF16, 400 * 10**12, 10**13, SECOND_PS, 0.5) == 1.0, "200 + 100 W are allowed"
    assert clock_fraction(load_card("tpu-v5p"), BF16, 10**18, 0, SECOND_PS, 1.0) == 1.0, "no energy is stated"


@given(st.floats(0, 3), st.integers(1, 10**16), st.integers(0, 10**14))
def test_it_never_draws_more_and_never_leaves_power_unused(exponent: float, ops: int, num_bytes: int) -> None:
    f = clock_fraction(card_of(exponent), BF16, ops, num_bytes, SECOND_PS, 1.0)
    watts = f * (1e-12 * ops * f**exponent + 10e-12 * num_bytes)
    assert 0 < f <= 1
    assert watts <= 300 * (1 + 1e-6) and (f == 1 or watts == pytest.approx(300))


def test_an_h100_holds_large_products_to_about_what_is_measured_and_a_larger_limit_is_faster() -> None:
    work = Work(Unit.TENSOR, 2 * 8192**3, 4 * 8192**2, 2 * 8192**2, BF16, MatmulShape(8192, 8192, 8192))
    asked = [demand(work, override(load_card("h100-sxm"), {"power.tdp_w": str(watts)})) for watts in (500, 700, 1500)]
    # 764 TFLOP/s settled on a card of 700 W: 1.44 ms.
    assert asked[1].alone_ps == pytest.approx(1.44e9, rel=0.05)
    assert all(more.alone_ps < less.alone_ps for less, more in pairwise(asked))
    assert asked[0].clock_fraction < asked[1].clock_fraction < asked[2].clock_fraction == 1.0
