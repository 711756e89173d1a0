"""Energy and heat of whole runs: conserved, the same however a run is emulated, and throttling when it should."""

from __future__ import annotations

import math
from typing import Any

import pytest

from siltwin.runtime.job import Job
from siltwin.runtime.report_energy import EnergyReport
from siltwin.runtime.run import RunResult, run_job

SIZES: dict[str, Any] = {"batch": 4, "input_len": 24, "output_len": 4, "payload": False, "scale": True}


def ran(layout: str = "tp=2", **options: Any) -> RunResult:
    return run_job(Job(**{"model": "Mixtral-8x22B", "card": "reference-npu", "layout": layout, **SIZES, **options}))


def energy(result: RunResult) -> EnergyReport:
    assert result.report.energy is not None
    return result.report.energy


def test_steps_parts_causes_and_cards_all_sum_to_the_whole() -> None:
    result = ran("tp=2,dp=2,ep=4")
    found, totals = energy(result), result.report.totals
    whole = pytest.approx(found.total_j, rel=1e-12)
    assert found.idle_j == pytest.approx(4 * 90 * totals.elapsed_ps / 1e12)
    assert sum(step.energy_j for step in found.steps) == whole
    assert sum(part.energy_j for part in found.parts) + found.idle_j == whole
    assert found.idle_j + found.operations_j + found.hbm_j + found.links_j == whole
    assert sum(found.cards_j) == whole
    assert {"collectives tp", "routed experts", "router", "attention window"} & {part.part for part in found.parts}
    assert found.curve is not None and result.power_curve is not None
    seconds = found.curve.bin_ps / 1e12
    assert sum(found.curve.watts) * seconds == pytest.approx(
        found.cards_j[found.curve.card] + 90 * (len(found.curve.watts) * seconds - totals.elapsed_ps / 1e12), rel=1e-5
    )
    assert max(found.curve.watts) <= found.peak_w
    output = sum(request.output_tokens for request in result.report.requests)
    assert found.output_tokens_per_j == pytest.approx(output / found.total_j)


def test_hbm_bytes_of_all_units_are_what_their_energy_is_for() -> None:
    result = ran()
    usage = [card.units["hbm"] for card in result.report.cards]
    moved = energy(result).hbm_j / 60e-12
    fraction = sum(use.utilisation for use in usage) * result.report.totals.elapsed_ps / 1e12
    assert moved == pytest.approx(fraction * 2e12 * 0.9, rel=1e-6)  # of 2 TB/s nine tenths are attainable


def test_a_card_that_leaves_out_what_energy_needs_is_told_so_and_nothing_is_made_up() -> None:
    found = energy(ran(overrides=(("tensor.rate.fp8_e5m2", "2"),)))
    assert found == EnergyReport(unstated=("power.energy_j_per_op.fp8_e5m2",))


# A card of hardly any heat capacity, which warms in a step by most of what that step's power can: R C is 100 us.
HOT = (
    ("power.thermal_resistance_k_per_w", "0.5"),
    ("power.thermal_capacity_j_per_k", "2e-4"),
    ("power.ambient_c", "20"),
    ("power.limit_c", "65.4"),
    ("clock_hz", "1GHz"),
    ("throttle_hz", "500MHz,250MHz"),
)


@pytest.mark.parametrize("options", [{}, {"steady": False}, {"fold": False}, {"engine": "simpy"}])
def test_a_card_that_gets_too_hot_steps_down_at_the_end_of_that_step(options: dict[str, Any]) -> None:
    # Idling, 90 W settle at 65 degrees. A step warms the card by its mean power: T' = T + (20 + P / 2 - T) (1 - 1/e^t)
    # over its t times 100 us. Above 65.4 degrees and still warming, the clock goes down for the steps that follow.
    result = ran(overrides=HOT, **options)
    found, temperature, clocks = energy(result), 65.0, [1000, 500, 250]
    level, last_ps = 0, 0
    for step, heat, record in zip(result.report.steps, found.steps, result.records, strict=True):
        assert record.clocks == ({rank: clocks[level] * 10**6 for rank in (0, 1)} if level else {})
        lasted_s = (step.end_ps - last_ps) / 1e12
        settled = 20 + 0.5 * heat.energy_j / 2 / lasted_s
        warmed = temperature + (settled - temperature) * (1 - math.exp(-lasted_s / 1e-4))
        level += warmed > 65.4 and warmed >= temperature and level < 2
        assert (heat.hottest_c, heat.lowest_clock_hz) == (pytest.approx(warmed, rel=1e-9), clocks[level] * 10**6)
        temperature, last_ps = warmed, step.end_ps
    assert [change.clock_hz for change in found.changes] == [500_000_000, 250_000_000][: len(found.changes)]
    assert level and all(change.cards == 2 for change in found.changes)
    told = [sorted(record.told) for record in result.records]
    assert told == [sorted(record.told) for record in ran(overrides=HOT).records]
    # The same step at a lower clock takes longer, by its cycles and by nothing else.
    unlimited = ran(overrides=(*HOT[:3], ("power.limit_c", "1000"), *HOT[4:]))
    hot, cool = ([step.end_ps - step.start_ps for step in one.report.steps] for one in (result, unlimited))
    assert hot[0] == cool[0] and all(slow > fast for slow, fast in zip(hot[1:], cool[1:], strict=True))


def test_numbers_that_are_computed_take_no_other_energy() -> None:
    job: dict[str, Any] = {"model": "SmolLM2-135M", "input_len": 5, "output_len": 3}
    on, off = (energy(ran("tp=3", **{**job, "payload": payload})) for payload in (True, False))
    assert on == off
