"""`siltwin calibrate`: the card it writes, what it says of it, the points it suggests, and its errors."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result

from siltwin.emulator.calibration_file import beside, read_rows
from siltwin.emulator.spec import load_card
from siltwin.runtime.calibration.splits import training_rows
from siltwin.runtime.calibration.tables import read_measured, read_table

Cli = Callable[..., Result]
SHAPES = [(m, n, k) for n in (512, 1024, 2048, 4096) for k in (1024, 2048, 4096) for m in (1, 32, 512)]
GEMM = "gemm_dtype,m,n,k,latency_ms\n" + "".join(f"bf16,{m},{n},{k},{0.02 + m * n * k / 2e11}\n" for m, n, k in SHAPES)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "h100_sxm").mkdir()
    (tmp_path / "h100_sxm" / "gemm.csv").write_text(GEMM)
    return tmp_path


def calibrated(siltwin: Cli, data: Path, *options: str) -> Path:
    output = data / "mine.yaml"
    result = siltwin("calibrate", "--card", "h100", "--data", str(data), *options, "-o", str(output))
    assert result.exit_code == 0, result.output
    return output


@pytest.mark.parametrize("fit", ["points", "physics"])
def test_no_calibration_sees_the_rows_that_its_errors_are_of(siltwin: Cli, data: Path, fit: str) -> None:
    output = calibrated(siltwin, data, "--fit", fit, "--points", "12", "--seed", "3")
    card = load_card(output)
    assert card.calibration is not None
    (table,) = read_measured(data)
    held_out = table.row_hashes[~training_rows(table, seed=3)]
    seen = read_rows(output, card.calibration)
    told = card.calibration.kinds["matmul"]
    assert not np.isin(held_out, seen).any() and np.isin(seen, table.row_hashes).all()
    assert told.errors.rows == len(held_out) > 0
    assert len(seen) >= told.rows == (12 if fit == "points" else len(table) - len(held_out))


def test_rows_that_were_taken_off_the_list_of_those_seen_are_missed(siltwin: Cli, data: Path) -> None:
    output = calibrated(siltwin, data)
    calibration = load_card(output).calibration
    assert calibration is not None
    file = beside(output, calibration)
    file.write_text(json.dumps(json.loads(file.read_text()) | {"rows": []}))
    result = siltwin("fidelity", "--card", str(output), "--data", str(data))
    assert result.exit_code == 2 and "its rows are not those" in result.output


def test_a_calibrated_card_says_which_constants_were_fitted_and_how_well(siltwin: Cli, data: Path) -> None:
    card = load_card(calibrated(siltwin, data))
    assert card.calibration is not None and card.calibration.kinds.keys() == {"matmul"}
    told = card.calibration.kinds["matmul"]
    assert card.evidence["tuning.matmul"].evidence == "calibrated"
    assert card.evidence["tuning.matmul"].error == told.usual.mean > 0
    assert card.evidence_of("tuning").evidence == "assumed"
    assert told.ranges["m"] == (1, 512) and told.fit == "physics"


def test_a_calibrated_card_is_shown_with_its_errors_a_line_a_kind(siltwin: Cli, data: Path) -> None:
    result = siltwin("cards", str(calibrated(siltwin, data)))
    told = load_card(data / "mine.yaml").calibration
    assert result.exit_code == 0 and told is not None
    text = " ".join(result.output.split())
    assert (
        f"matmul: physics fit of {told.kinds['matmul'].rows} rows; errs {told.kinds['matmul'].usual.mean:.1%}" in text
    )


def test_all_but_the_constants_is_as_the_data_sheet_has_it(siltwin: Cli, data: Path) -> None:
    card, sheet = load_card(calibrated(siltwin, data)), load_card("h100")
    differ = {name for name in type(card).model_fields if getattr(card, name) != getattr(sheet, name)}
    assert differ <= {"tuning", "calibration", "evidence"}


def test_a_card_that_was_not_measured_takes_the_constants_of_another(siltwin: Cli, data: Path) -> None:
    fitted, output = calibrated(siltwin, data), data / "other.yaml"
    result = siltwin("calibrate", "--card", "a100", "--from", str(fitted), "-o", str(output))
    assert result.exit_code == 0, result.output
    card = load_card(output)
    assert card.tuning == load_card(fitted).tuning and card.clock_hz == load_card("a100").clock_hz
    assert "h100-sxm" in card.evidence["tuning.matmul"].source and card.calibration is None


def test_few_points_are_used_and_more_are_asked_for(siltwin: Cli, data: Path) -> None:
    lines = GEMM.splitlines()
    (data / "h100_sxm" / "gemm.csv").write_text("\n".join(lines[:10]) + "\n")
    result = siltwin("calibrate", "--card", "h100", "--data", str(data), "-o", str(data / "few.yaml"))
    assert result.exit_code == 0 and "points are few; measure" in " ".join(result.output.split())


def test_suggested_points_are_tables_that_want_only_their_times(siltwin: Cli, tmp_path: Path) -> None:
    result = siltwin("calibrate", "--card", "h100", "--suggest", "30", "-o", str(tmp_path))
    assert result.exit_code == 0, result.output
    for path in sorted((tmp_path / "h100_sxm").iterdir()):
        header, *rows = path.read_text().splitlines()
        assert len(set(rows)) == 30 and all(row.endswith(",") for row in rows)
        path.write_text("\n".join([header, *(f"{row}0.5" for row in rows)]))
    read = [table for path in (tmp_path / "h100_sxm").iterdir() for table in read_table(path)]
    assert {table.op for table in read} == {"gemm", "prefill", "decode", "all_reduce"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--data", "DATA", "-o", "card.json"), "must end in .yaml"),
        (("-o", "card.yaml"), "nothing to calibrate with"),
        (("--data", "DATA", "--card", "a100", "-o", "card.yaml"), "no table is of a100-sxm: there are those of h100"),
        (("--data", "nowhere", "-o", "card.yaml"), "no such folder"),
    ],
)
def test_what_cannot_be_calibrated_is_said_in_a_line(
    siltwin: Cli, data: Path, options: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(data)
    result = siltwin("calibrate", "--card", "h100", *(str(data) if word == "DATA" else word for word in options))
    assert result.exit_code == 2 and said in result.output and "Traceback" not in result.output
