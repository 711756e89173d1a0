"""A run on a calibrated card says where it went beyond what was measured, and where learning is off."""

from pathlib import Path

import numpy as np
import pytest

from siltwin.emulator.calibrated import Calibration, Errors, KindCalibration
from siltwin.emulator.calibration_file import document_of
from siltwin.emulator.evidence import Evidence
from siltwin.emulator.spec import load_card
from siltwin.emulator.trees import PHYSICS, Trees
from siltwin.runtime.calibration.card_file import card_yaml
from siltwin.runtime.calibration.parameters import with_fields
from siltwin.runtime.job import Job
from siltwin.runtime.run import run_job

MEASURED = {"m": (1, 4096), "n": (16, 65536), "k": (16, 16384)}


def card_file(tmp_path: Path, learned: str = "", **narrowed: tuple[float, float]) -> str:
    card, errors = load_card("h100"), Errors(rows=1, mean=0.1, median=0.1, p90=0.1)
    told = KindCalibration(
        fit="physics", library="", rows=1, errors=errors, usual=errors, ranges={**MEASURED, **narrowed}, learned=learned
    )
    calibration = Calibration(seed=0, sources={}, kinds={"matmul": told}, beside="c.json")
    marks = {**card.evidence, "calibration": Evidence(evidence="calibrated", source="a test")}
    path = tmp_path / "card.yaml"
    path.write_text(card_yaml(with_fields(card, calibration=calibration, evidence=marks)))
    return str(path)


@pytest.mark.parametrize(
    ("narrowed", "outside"), [({}, False), ({"m": (2, 4096)}, True), ({"m": (1, 15)}, True), ({"n": (16, 1535)}, True)]
)
def test_a_run_beyond_the_measured_sizes_is_extrapolated(
    tmp_path: Path, narrowed: dict[str, tuple[float, float]], outside: bool
) -> None:
    # SmolLM2-135M: a prompt of 16 tokens, then one token a step; the MLP is 1,536 wide
    job = Job("SmolLM2-135M", card=card_file(tmp_path, **narrowed), batch=1, input_len=16, output_len=2, payload=False)
    report = run_job(job).report
    time, memory = report.evidence[:2]
    assert (time.figure, time.extrapolated, memory.extrapolated) == ("time", outside, False)
    (name, (low, high)) = next(iter(narrowed.items()), ("m", (1, 1)))
    said = [line for line in report.warnings if f"outside what was calibrated: matmul at {name}" in line]
    assert len(said) == outside and all(f"the {low:,} to {high:,} that were measured" in line for line in said)


def test_learning_counts_on_the_card_that_was_measured_and_is_said_to_be_off_on_another(tmp_path: Path) -> None:
    leaf, none = np.array([-1]), np.array([-1])
    one_leaf = Trees(("bf16",), 0.99, 0.0, (PHYSICS,), np.ones(1), np.full(1, 1e15), np.zeros(1, np.int64), leaf,
                     np.full(1, 9.0), none, none)  # fmt: skip
    card = card_file(tmp_path, learned=one_leaf.digest)
    (tmp_path / "c.json").write_bytes(document_of(np.zeros(1, np.uint64), {"matmul": one_leaf}))
    asked = {"batch": 1, "input_len": 16, "output_len": 1, "payload": False}
    plain = run_job(Job("SmolLM2-135M", card="h100", **asked)).report
    learned = run_job(Job("SmolLM2-135M", card=card, **asked)).report
    changed = run_job(Job("SmolLM2-135M", card=card, overrides=(("hbm.latency_ps", "600ns"),), **asked)).report
    # every product takes 1.4 times as long: what a leaf of 9 asks for is far beyond the limit
    assert 1.1 < learned.totals.elapsed_ps / plain.totals.elapsed_ps < 1.4
    assert changed.totals.elapsed_ps == plain.totals.elapsed_ps
    assert "what was learned of matmul beyond the fitted constants is off" in " ".join(changed.warnings)
    assert not any("learned" in line for line in (*learned.warnings, *plain.warnings))
