"""Limits of full-size models: both sides of each boundary are what runs of those jobs meet, without numbers."""

from __future__ import annotations

from typing import Any

import pytest

from siltwin.emulator.hbm import OutOfMemory
from siltwin.runtime.boundary import emulate
from siltwin.runtime.fits import largest_batch, largest_context, replay, with_context
from siltwin.runtime.job import Job
from siltwin.runtime.prepare import Prepared, checkpoint_of, prepare
from siltwin.runtime.report_limits import Broken, Held

H100, ASCEND = {"card": "h100-sxm"}, {"card": "ascend-910c", "cluster": "cloudmatrix-384"}
PREFILL: dict[str, Any] = {"batch": 8, "input_len": 2048, "output_len": 4}
DECODE: dict[str, Any] = {"batch": 64, "cached_len": 4096, "input_len": 0, "output_len": 2}
QUICK = [
    ("Llama-3.1-405B", H100 | {"layout": "tp=8,pp=2", "weights": "fp8"} | DECODE),
    ("gpt-oss-120b", H100 | {"layout": "tp=2", "kv_pages": "ideal"} | DECODE),
]
LONG = [
    ("DeepSeek-V3", H100 | {"layout": "tp=4,dp=4,ep=16", "weights": "fp8"} | DECODE),
    ("Kimi-K3", ASCEND | {"layout": "tp=8,dp=8,ep=64", "weights": "mxfp4"} | DECODE),
    ("Kimi-K2-Instruct", ASCEND | {"layout": "tp=8,dp=4,ep=32", "weights": "int8"} | DECODE),
    ("Qwen3-235B-A22B", H100 | {"layout": "tp=4,dp=2,ep=8", "kv_dtype": "fp8"} | DECODE),
    ("Mixtral-8x22B", H100 | {"layout": "tp=4,pp=2"} | PREFILL),
    ("Qwen3-Next-80B-A3B", H100 | {"layout": "tp=2,dp=2,ep=4"} | PREFILL),
    ("MiniMax-M2", H100 | {"layout": "tp=8,pp=2", "kv_policy": "preallocated"} | DECODE),
    ("GLM-4.5", H100 | {"layout": "tp=8,dp=2,ep=16", "kv_dtype": "int8"} | DECODE),
]
ALL = [*QUICK, *(pytest.param(*case, marks=pytest.mark.long) for case in LONG)]


def held(job: Prepared, value: int) -> Held:
    found = emulate(job, value)
    assert isinstance(found, Held)
    return found


@pytest.mark.parametrize(("model", "asked"), ALL)
def test_the_largest_batch_runs_and_one_sequence_more_runs_out_of_memory(model: str, asked: dict[str, Any]) -> None:
    """Jobs are made anew for each side, as a user would ask for them."""
    checkpoint = checkpoint_of(Job(model))
    plan = prepare(Job(model, payload=False, **asked), checkpoint=checkpoint).plan
    found = largest_batch(plan)
    assert 0 < found < 1 << 16
    last, first = (
        prepare(Job(model, payload=False, **(asked | {"batch": n})), checkpoint=checkpoint) for n in (found, found + 1)
    )
    on = held(last, found)
    usable = plan.card.hbm.capacity_bytes - plan.card.hbm.reserved_bytes
    assert on.step_ps and on.peak_bytes <= usable
    off = emulate(first, found + 1)
    assert isinstance(off, Broken)
    assert 0 < off.missing_bytes <= off.requested_bytes + (1 << 30)


@pytest.mark.parametrize(("model", "asked"), ALL)
def test_the_longest_context_holds_and_one_token_more_does_not(model: str, asked: dict[str, Any]) -> None:
    plan = prepare(Job(model, payload=False, **asked), checkpoint=checkpoint_of(Job(model))).plan
    found = largest_context(plan)
    longest = with_context(plan, found)
    replay(longest, longest.memory(longest.alike))
    if found == plan.graph.max_position_embeddings:
        return
    more = with_context(plan, found + 1)
    with pytest.raises(OutOfMemory):
        replay(more, more.memory(more.alike))
