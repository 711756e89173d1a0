"""Energy and heat of whole runs: conserved, the same however a run is emulated, and throttling when it should."""

from __future__ import annotations

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


# A card of hardly any heat capacity, in coolant at 20 degrees: it is as warm as the power of its last step makes it.
HOT = (
    ("power.thermal_resistance_k_per_w", "0.5"),
    ("power.thermal_capacity_j_per_k", "0"),
    ("power.ambient_c", "20"),
    ("power.limit_c", "65.0001"),
    ("clock_hz", "1GHz"),
    ("throttle_hz", "500MHz,250MHz"),
)


@pytest.mark.parametrize("options", [{}, {"steady": False}, {"fold": False}, {"engine": "simpy"}])
def test_a_card_that_gets_too_hot_steps_down_at_the_end_of_that_step(options: dict[str, Any]) -> None:
    # Idling, 90 W settle at 65 degrees: whatever a step draws beside that is too much, and it warms with every level
    # that is not yet reached; the third step, at the lowest, has nowhere to go.
    result = ran(overrides=HOT, **options)
    found = energy(result)
    assert [(change.step, change.cards, change.clock_hz) for change in found.changes][:1] == [(0, 2, 500_000_000)]
    assert found.changes[0].time_ps == result.report.steps[0].end_ps
    first = found.steps[0]
    watts = first.energy_j / 2 / (result.report.steps[0].end_ps / 1e12)
    assert first.hottest_c == pytest.approx(20 + 0.5 * watts)
    assert first.lowest_clock_hz == 500_000_000
    assert result.records[0].clocks == {} and result.records[1].clocks == {0: 500_000_000, 1: 500_000_000}
    told = [record.told for record in result.records]
    assert [sorted(spans) for spans in told] == [sorted(record.told) for record in ran(overrides=HOT).records]


def test_numbers_that_are_computed_take_no_other_energy() -> None:
    job: dict[str, Any] = {"model": "SmolLM2-135M", "input_len": 5, "output_len": 3}
    on, off = (energy(ran("tp=3", **{**job, "payload": payload})) for payload in (True, False))
    assert on == off
