"""The reference is asked for before any work, is missed only by align, and loads without a word."""

import sys
from pathlib import Path

import pytest
from checkpoints import save

from siltwin.isa.errors import ConfigError
from siltwin.models.checkpoint import open_checkpoint
from siltwin.runtime import align as module
from siltwin.runtime.align import align
from siltwin.runtime.job import Job
from siltwin.runtime.reference import open_reference
from siltwin.runtime.run import run_job


@pytest.fixture(params=["transformers", "torch"])
def missing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package that is not there."""
    monkeypatch.setitem(sys.modules, request.param, None)
    return str(request.param)


def test_align_says_what_to_install_before_it_computes(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "compute", lambda prepared: pytest.fail("computed in vain"))
    with pytest.raises(ConfigError, match=rf"{missing} is missing.; install siltwin\[reference\]"):
        align(Job("SmolLM2-135M", batch=1, input_len=2, output_len=1))


def test_a_run_does_without(missing: str) -> None:
    assert run_job(Job("SmolLM2-135M", batch=1, input_len=2, payload=False)).report.oom is None


def test_the_reference_loads_without_a_word_and_leaves_the_bars_as_they_were(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    logging = pytest.importorskip("transformers").utils.logging
    checkpoint = open_checkpoint(save(tmp_path, "llama", 0))
    capfd.readouterr()
    logging.enable_progress_bar()
    open_reference(checkpoint)
    assert capfd.readouterr() == ("", "")
    assert logging.is_progress_bar_enabled()
