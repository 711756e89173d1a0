"""Runs whose steps come again: a model of windows that are full decodes as it would if every step were run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from siltwin.emulator.compiled.steady import Steady
from siltwin.runtime.job import Job
from siltwin.runtime.run import RunResult, run_job

WINDOWS = {
    "model_type": "mistral",
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "sliding_window": 32,
    "tie_word_embeddings": False,
}


def decoded(folder: Path, **options: object) -> RunResult:
    path = folder / "config.json"
    path.write_text(json.dumps(WINDOWS))
    sizes = {"batch": 2, "cached_len": 64, "input_len": 0, "output_len": 12}
    return run_job(Job(str(path), layout="tp=2,pp=2", payload=False, **sizes, **options))  # type: ignore[arg-type]


@pytest.mark.parametrize("fold", [True, False])
def test_full_windows_decode_alike_and_are_run_but_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fold: bool
) -> None:
    taken: list[bool] = []
    take = Steady.take

    def noted(self: Steady, *given: object) -> bool:
        taken.append(take(self, *given))  # type: ignore[arg-type]
        return taken[-1]

    monkeypatch.setattr(Steady, "take", noted)
    steady = decoded(tmp_path, fold=fold)
    assert taken.count(False) <= 3 and len(taken) == 12
    full = decoded(tmp_path, fold=fold, steady=False)
    assert len(taken) == 12
    assert steady.spans == full.spans
    assert steady.memory == full.memory
    assert steady.report.model_dump(exclude={"host"}) == full.report.model_dump(exclude={"host"})
