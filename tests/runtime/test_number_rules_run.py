"""A card's number rules in whole runs: other rules, other logits, and the same time and bytes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from checkpoints import save

from siltwin.runtime.job import Job
from siltwin.runtime.run import RunResult, run_job


def run(path: Path, *settings: tuple[str, str], **options: Any) -> RunResult:
    given: dict[str, Any] = {"prompt_ids": (tuple(range(1, 12)),), "max_new_tokens": 2, "ignore_eos": True}
    given |= {"dtype": "bfloat16", "logits": True, "layout": "tp=2", "card": "reference-npu"}
    return run_job(Job(str(path), overrides=settings, **(given | options)))


def test_rules_change_logits_by_their_own_rounding_and_nothing_else(tmp_path: Path) -> None:
    path = save(tmp_path, "qwen3", 0)
    plain, exact = run(path), run(path, dtype="float32", kv_dtype="float32")
    for settings, least, most in (
        ((("numbers.rounding", "toward_zero"),), 1.0, 8.0),
        ((("numbers.accumulator", "bf16"),), 1.0, 40.0),
        ((("numbers.subnormals", "flushed"),), 0.0, 2.0),
    ):
        other = run(path, *settings)
        assert plain.logits is not None and other.logits is not None and exact.logits is not None
        errors = [np.abs(one.logits["logits_0"] - exact.logits["logits_0"]).mean() for one in (plain, other)]
        assert least * errors[0] <= errors[1] <= most * errors[0], settings
        assert other.spans == plain.spans and other.memory == plain.memory
        assert not any("changes no figure" in warning for warning in other.report.warnings)


def test_a_cache_in_fp8_saturates_or_not_as_the_card_says(tmp_path: Path) -> None:
    path = save(tmp_path, "llama", 0)
    options: dict[str, Any] = {"kv_dtype": "fp8", "dtype": "float32"}
    kept = run(path, **options)
    assert kept.logits is not None and np.isfinite(kept.logits["logits_0"]).all()
    for saturation in ("saturate", "infinity"):  # nothing in this model passes 448
        other = run(path, ("numbers.saturation", saturation), **options)
        assert other.logits is not None
        np.testing.assert_array_equal(other.logits["logits_0"], kept.logits["logits_0"])
