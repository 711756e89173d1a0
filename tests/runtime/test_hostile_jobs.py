"""Models whose numbers overflow or that no card could hold are told as such, not run as if nothing were wrong."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from siltwin.isa.dtype import FP32
from siltwin.isa.errors import ConfigError
from siltwin.models.checkpoint import open_checkpoint
from siltwin.runtime.catalogue import model_report
from siltwin.runtime.job import Job
from siltwin.runtime.limits import find_limits
from siltwin.runtime.run import run_job

TINY: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 32,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e4,
}


def write(directory: Path, **changes: Any) -> str:
    (directory / "config.json").write_text(json.dumps({**TINY, **changes}))
    return str(directory / "config.json")


def loud(directory: Path, factor: float) -> str:
    """A checkpoint whose feed-forward weights are `factor` times those of a random one."""
    random = open_checkpoint(write(directory))
    weights = {name: random.load(name, FP32) for name in random.names()}
    for name in weights:
        weights[name] = weights[name] * np.float32(factor if ".mlp." in name else 1)
    save_file(weights, directory / "model.safetensors")
    return str(directory)


@pytest.mark.parametrize(("factor", "lost"), [(1.0, False), (1e25, True)])
def test_logits_that_are_no_numbers_are_told(tmp_path: Path, factor: float, lost: bool) -> None:
    # gate x up x down: (1e25)**3 is beyond float32's 3.4e38
    job = Job(loud(tmp_path, factor), dtype="fp32", prompt_ids=((1, 2, 3),), max_new_tokens=2, ignore_eos=True)
    told = [warning for warning in run_job(job).report.warnings if "NaN or infinity" in warning]
    assert len(told) == lost
    assert not lost or told[0].startswith("logits of 2 steps, the first of them step 0, hold NaN or infinity")


@pytest.mark.parametrize("ask", [run_job, find_limits])
def test_a_model_beyond_all_memory_is_a_damaged_config(tmp_path: Path, ask: Callable[[Job], object]) -> None:
    model = write(tmp_path, hidden_size=2**31 - 8, head_dim=8, vocab_size=2**31 - 1)
    embedding_bytes = 2 * (2**31 - 8) * (2**31 - 1)
    with pytest.raises(ConfigError, match=rf".embedding alone takes {embedding_bytes}.; check the sizes in its config"):
        ask(Job(model, batch=1, input_len=2, payload=False))


def test_no_model_is_called_nothing() -> None:
    with pytest.raises(ConfigError, match="the model is an empty name"):
        model_report("")
