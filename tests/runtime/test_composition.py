"""Composition: what a card lacks is run from what it has, with the same numbers, in more time; the rest is refused."""

import pytest

from siltwin.isa.errors import UnsupportedError
from siltwin.runtime.job import Job
from siltwin.runtime.run import run_job


def test_what_nothing_composes_is_refused_by_name() -> None:
    job = Job("SmolLM2-135M", batch=1, input_len=8, payload=False, overrides=(("native", "all,-matmul,-argmax"),))
    with pytest.raises(UnsupportedError, match="ascend-910b2 has no matmul, argmax, which program"):
        run_job(job)
