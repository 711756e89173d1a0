"""The numbers of a job that this machine cannot hold are refused before it tries."""

import pytest

from siltwin.isa.errors import ConfigError
from siltwin.runtime import host
from siltwin.runtime.host import host_bytes, payload_bytes, refuse_beyond_host
from siltwin.runtime.job import Job
from siltwin.runtime.prepare import prepare
from siltwin.runtime.run import run_job

WEIGHTS = 134_515_008 * 2  # SmolLM2-135M's parameters in bf16


def test_what_a_job_takes_is_its_weights_and_a_little_more() -> None:
    plan = prepare(Job("SmolLM2-135M", batch=1, input_len=8, payload=False)).plan
    # one page of KV is 16 tokens x 30 layers x 2 x 3 heads x 64 x 2 bytes = 368,640; the arena of 8 tokens is small
    assert WEIGHTS + 368_640 <= payload_bytes(plan) <= WEIGHTS + 368_640 + 2 * 2**20


def test_a_job_that_fits_to_the_byte_passes_and_one_byte_less_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = prepare(Job("SmolLM2-135M", batch=1, input_len=8, payload=False)).plan
    needed = payload_bytes(plan)
    monkeypatch.setattr(host, "host_bytes", lambda: needed)
    refuse_beyond_host(plan)
    monkeypatch.setattr(host, "host_bytes", lambda: needed - 1)
    with pytest.raises(ConfigError, match=f"take {needed} bytes of memory and this machine has {needed - 1}; run with"):
        refuse_beyond_host(plan)


def test_only_the_payload_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "host_bytes", lambda: 0)
    assert run_job(Job("SmolLM2-135M", batch=1, input_len=8, payload=False)).report.oom is None
    with pytest.raises(ConfigError, match="--no-payload"):
        run_job(Job("SmolLM2-135M", batch=1, input_len=8))


def test_a_system_that_does_not_say_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("os.sysconf", raising=False)
    assert host_bytes() is None
