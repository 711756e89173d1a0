"""Fits find what made the times, and splits keep groups whole."""

from pathlib import Path

import numpy as np
import pytest

from siltwin.runtime.calibration.fit import nearest
from siltwin.runtime.calibration.splits import folds, groups_of, sampled, training_rows
from siltwin.runtime.calibration.tables import MeasuredTable, read_measured


def gemms(root: Path) -> MeasuredTable:
    rows = [(m, n, k) for n in range(64, 1024, 64) for k in (256, 1024) for m in (1, 8, 64)]
    lines = "\n".join(f"bf16,{m},{n},{k},{0.01 + m * n * k * 1e-9}" for m, n, k in rows)
    (root / "gemm.csv").write_text(f"gemm_dtype,m,n,k,latency_ms\n{lines}\n")
    return read_measured(root)[0]


def test_a_fit_finds_the_constants_that_made_the_times_in_spite_of_wild_rows() -> None:
    # log time = 3 a + size b; one row in ten is four times too slow.
    size = np.linspace(0, 2, 100)
    true = np.array([0.3, 0.8])
    measured = 3 * true[0] + size * true[1] + np.where(np.arange(100) % 10 == 0, np.log(4), 0)
    found = nearest(lambda p: 3 * p[0] + size * p[1] - measured, np.ones(100), np.array([0.5, 0.5]), prior=0.01)
    assert found == pytest.approx(true, abs=0.02)


def test_constants_that_no_row_tells_of_stay_where_they_were_and_none_leaves_its_bounds() -> None:
    measured = np.full(20, 9.0)
    found = nearest(lambda p: 3 * p[0] + 0 * p[1] - measured, np.ones(20), np.array([0.5, 0.4]), prior=1.0)
    assert found[0] == pytest.approx(1.0, abs=0.01) and found[0] <= 1 and found[1] == pytest.approx(0.4)


def test_few_rows_move_a_constant_less_than_many() -> None:
    def moved(rows: int) -> float:
        return float(nearest(lambda p: np.full(rows, p[0] - 0.9), np.ones(rows), np.array([0.5]), prior=3.0)[0])

    assert 0.5 < moved(1) < moved(10) < moved(1000) == pytest.approx(0.9, abs=0.01)


def test_no_group_stands_on_both_sides_of_a_split(tmp_path: Path) -> None:
    table = gemms(tmp_path)
    seen = training_rows(table, seed=1)
    groups = np.array(groups_of(table))
    assert not set(groups[seen]) & set(groups[~seen]) and seen.any() and not seen.all()
    assert not np.array_equal(seen, training_rows(table, seed=2))
    for group in set(groups):
        assert len(set(folds(table, 1, 4)[groups == group])) == 1


def test_a_sample_depends_on_the_rows_and_the_seed_alone(tmp_path: Path) -> None:
    table = gemms(tmp_path)
    backwards = table.take(np.arange(len(table))[::-1])
    kept = set(sampled(table, 20, 0).row_hashes.tolist())
    assert kept == set(sampled(backwards, 20, 0).row_hashes.tolist()) and len(kept) == 20
    assert kept != set(sampled(table, 20, 1).row_hashes.tolist())
