"""Which rows of measured tables are compared, on which card: held-out rows only, and fits that travel."""

from pathlib import Path

import numpy as np
import pytest

from siltwin.emulator.evidence import Evidence
from siltwin.emulator.spec import CardSpec, load_card
from siltwin.isa.errors import ConfigError
from siltwin.runtime.calibration.tables import MeasuredTable, read_table
from siltwin.runtime.calibration.usable import tables_of
from siltwin.runtime.fidelity.cards import stand_in
from siltwin.runtime.fidelity.compare import compare_tables

ROWS = "gemm_dtype,m,n,k,latency_ms\nbfloat16,1,4096,4096,0.02\nbfloat16,2,4096,4096,0.02\nfp8,1,4096,4096,0.01\n"


@pytest.fixture
def gemms(tmp_path: Path) -> MeasuredTable:
    (tmp_path / "h100_sxm").mkdir()
    path = tmp_path / "h100_sxm" / "gemm.csv"
    path.write_text(ROWS)
    return read_table(path)[0]


def fitted(name: str) -> CardSpec:
    card = load_card(name)
    evidence = {**card.evidence, "tuning.matmul": Evidence(evidence="calibrated", source="30 points", error=0.1)}
    return CardSpec.model_validate({**card.model_dump(exclude={"evidence"}), "evidence": evidence})


def test_rows_that_a_fit_saw_are_left_out_and_counted(gemms: MeasuredTable) -> None:
    report = compare_tables([gemms], seen=gemms.row_hashes[1:])
    assert [(found.subset, found.score.n) for found in report.comparisons] == [("gemm_all", 1), ("gemm_1k_16k", 1)]
    assert "h100_sxm/gemm.csv: 1 of 2 rows left out: the card was fitted on them" in report.notes


def test_rows_that_were_dropped_are_said(tmp_path: Path) -> None:
    (tmp_path / "h100_sxm").mkdir()
    path = tmp_path / "h100_sxm" / "gemm.csv"
    path.write_text(ROWS + ROWS.splitlines()[1] + "\n")
    (table,) = read_table(path)
    said = "gemm.csv: 1 identical rows dropped (the first: line 5)"
    assert f"h100_sxm/{said}" in compare_tables([table]).notes
    assert said in tables_of(load_card("h100"), [table], "vllm")[1]


def test_a_table_of_which_a_fit_saw_every_row_is_refused_with_what_to_do(gemms: MeasuredTable) -> None:
    with pytest.raises(ConfigError, match=r"every row of h100_sxm/gemm.csv \(2 rows of gemm\).*--training-rows"):
        compare_tables([gemms], seen=gemms.row_hashes[:2])


def test_a_fit_travels_to_a_device_that_has_its_own_data_sheet() -> None:
    asked = fitted("h100-sxm")
    own = stand_in("h100-sxm", asked)
    assert own is not None and own.card is asked and own.rests_on == "matmul by 30 points"
    other = stand_in("h200-sxm", asked)
    assert other is not None and other.card.name == "h200-sxm"
    assert other.card.hbm == load_card("h200-sxm").hbm and other.card.tuning == asked.tuning
    assert other.rests_on == "its data sheet, with what was fitted on h100-sxm: matmul by 30 points"
    assert stand_in("unheard-of", asked) is None


def test_predictions_are_those_of_the_card_that_stands_for_the_device(gemms: MeasuredTable) -> None:
    slow = CardSpec.model_validate({**load_card("h100").model_dump(), "clock_hz": 500_000_000})
    usual, slowed = (compare_tables([gemms], card).comparisons[0] for card in (load_card("h100"), slow))
    assert np.array_equal(usual.measured_ps, slowed.measured_ps)
    assert np.all(slowed.predicted_ps > usual.predicted_ps)
