"""Scores of predictions, the subsets they are told for, and rows parted by size."""

import json

import numpy as np
import pytest

from siltwin.runtime.fidelity.report import Comparison, FidelityReport
from siltwin.runtime.fidelity.scores import score
from siltwin.runtime.fidelity.sizes import SIZES
from siltwin.runtime.fidelity.subsets import SUBSETS

MEASURED = np.array([100.0, 100.0, 200.0, 400.0])
PREDICTED = np.array([110.0, 98.0, 100.0, 400.0])
ONES = np.ones(4)


def masks(name: str, columns: dict[str, list]) -> list[bool]:
    found = next(subset for subset in SUBSETS if subset.name == name)
    return found.keeps({key: np.array(values) for key, values in columns.items()}).tolist()


def test_errors_are_fractions_of_what_was_measured() -> None:
    found = score(PREDICTED, MEASURED, ONES)
    assert found.n == 4
    assert found.mean_ape == pytest.approx((0.10 + 0.02 + 0.50 + 0) / 4)
    assert found.median_ape == pytest.approx(0.02) and found.p90_ape == pytest.approx(0.50)
    assert found.within_5pct == pytest.approx(2 / 4)
    assert found.time_weighted_ape == pytest.approx((10 + 2 + 100 + 0) / 800)
    assert found.bias == pytest.approx((0.10 - 0.02 - 0.50) / 4)


def test_a_key_measured_twice_counts_as_much_as_one_measured_once() -> None:
    twice = score(np.array([120.0, 120, 100]), np.array([100.0, 100, 100]), np.array([0.5, 0.5, 1]))
    assert twice.n == 3
    assert twice.mean_ape == pytest.approx((0.2 + 0) / 2)
    assert twice.within_5pct == pytest.approx(1 / 2)


def test_gemm_subsets_are_bf16_and_the_second_has_both_sizes_in_its_range() -> None:
    columns = {
        "gemm_dtype": ["bf16", "bf16", "bf16", "fp8"],
        "n": [1024, 512, 16384, 2048],
        "k": [16384, 2048, 65536, 2048],
    }
    assert masks("gemm_all", columns) == [True, True, True, False]
    assert masks("gemm_1k_16k", columns) == [True, False, False, False]


ATTENTION = {
    "attn_dtype": ["bf16"] * 6,
    "kv_cache_dtype": ["bf16", "fp8", *["bf16"] * 4],
    "window_size": [0, 0, 128, 0, 0, 0],
    "head_dim": [128, 128, 128, 64, 128, 128],
    "num_heads": [32, 32, 32, 32, 32, 8],
    "num_key_value_heads": [4, 4, 4, 4, 2, 8],
}


def test_attention_subsets_leave_out_fp8_windows_other_heads_and_wide_groups() -> None:
    assert masks("prefill_hd128", {**ATTENTION, "isl": [512] * 6}) == [True, False, False, False, False, True]
    assert masks("prefill_hd128", {**ATTENTION, "isl": [511] * 6}) == [False] * 6


def test_decode_counts_when_its_cache_is_large_and_its_batch_is_not() -> None:
    # 8 kv heads x 128 x 2 bytes x 2 are 4,096 bytes a token: 3,907 tokens are 16.003 MB, 3,906 are 15.999.
    columns = {name: values[-1:] * 4 for name, values in ATTENTION.items()}
    columns |= {"batch_size": [1, 1, 256, 257], "step": [3907, 3906, 3907, 3907]}
    assert masks("decode_hd128", columns) == [True, False, True, False]


def test_every_row_stands_on_exactly_one_rung_of_its_size() -> None:
    rungs = list(SIZES["gemm"].rungs({"m": np.array([1, 16, 17, 1024, 1025])}))
    assert [name for name, _ in rungs] == ["to 16", "17-128", "129-1,024", "over 1,024"]
    assert [mask.tolist().count(True) for _, mask in rungs] == [2, 1, 1, 1]


def test_the_json_is_a_list_of_scores_with_exactly_the_agreed_keys() -> None:
    found = Comparison("h100-sxm", "gemm", "gemm_all", "", "a fit", {"m": ONES}, PREDICTED, MEASURED, ONES, None)
    keys = ["card", "op", "subset", "n", "mean_ape", "median_ape", "p90_ape", "within_5pct", "time_weighted_ape"]
    entries = json.loads(FidelityReport((found,), ()).to_json())
    assert [list(entry) for entry in entries] == [keys]
    assert entries[0]["card"] == "h100-sxm" and entries[0]["time_weighted_ape"] == pytest.approx(0.14)
