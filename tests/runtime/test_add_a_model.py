"""The family that docs/add-a-model.md adds is what it says: under 80 lines, and equal to transformers."""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from checkpoints import MOE_FAMILIES, reference, save

from siltwin.isa.errors import UnsupportedError
from siltwin.models import families
from siltwin.models.checkpoint import open_checkpoint
from siltwin.models.registry import known_families
from siltwin.models.scale import scaled
from siltwin.runtime.align import align
from siltwin.runtime.job import Job
from siltwin.runtime.run import run_job

PAGE = Path(__file__).parents[2] / "docs" / "add-a-model.md"
DOTS1 = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 2,
    "moe_intermediate_size": 20,
    "first_k_dense_replace": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "n_group": 4,
    "topk_group": 2,
    "attention_bias": True,
    "sliding_window": 12,
    "max_window_layers": 2,
    "num_hidden_layers": 4,
}


@pytest.fixture
def dots1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The page's file stands among the families."""
    (source,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(source.splitlines()) < 80
    (tmp_path / "families").mkdir()
    (tmp_path / "families" / "dots1.py").write_text(source)
    monkeypatch.setattr(families, "__path__", [*families.__path__, str(tmp_path / "families")])
    monkeypatch.setitem(MOE_FAMILIES, "dots1", DOTS1)
    known_families.cache_clear()
    yield
    known_families.cache_clear()
    sys.modules.pop(f"{families.__name__}.dots1", None)


def test_the_family_of_the_page_runs_equal_to_transformers(dots1: None, tmp_path: Path) -> None:
    path = save(tmp_path, "dots1", 0)
    draw = random.Random(1)
    prompts = [[draw.randrange(131) for _ in range(length)] for length in (1, 40)]
    asked = {"prompt_ids": tuple(map(tuple, prompts)), "max_new_tokens": 4, "ignore_eos": True, "logits": True}
    result = run_job(Job(str(path), layout="tp=2,ep=2,pp=2", dtype="float32", kv_dtype="float32", **asked))
    assert result.logits is not None
    for index, prompt in enumerate(prompts):
        logits, tokens, rows = reference(path, prompt, 4)
        assert np.abs(result.logits[f"logits_{index}"] - logits).max() <= 1e-4 * logits.std()
        assert np.abs(result.logits[f"decode_logits_{index}"] - np.stack(rows)).max() <= 1e-4 * logits.std()
        assert list(result.report.requests[index].tokens) == tokens
    assert align(Job(str(path), dtype="float32", kv_dtype="float32")).verdict == "aligned"
    assert scaled(open_checkpoint(path).config, 1).family == "dots1"


def test_without_the_page_the_family_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MOE_FAMILIES, "dots1", DOTS1)
    with pytest.raises(UnsupportedError, match="dots1 is not supported"):
        open_checkpoint(save(tmp_path, "dots1", 0))
