"""Without the reference installed align says what to install, before any work; a run does without it."""

import sys

import pytest

from siltwin.isa.errors import ConfigError
from siltwin.runtime import align as module
from siltwin.runtime.align import align
from siltwin.runtime.job import Job
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
