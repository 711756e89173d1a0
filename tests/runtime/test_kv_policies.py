"""KV policies: what preallocated, paged and virtual caches reserve of one job, by hand; no number changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import save

from siltwin.isa.errors import ConfigError, NotYetError
from siltwin.runtime.job import Job
from siltwin.runtime.kv_compare import untimed
from siltwin.runtime.kv_policy import KV_POLICIES
from siltwin.runtime.prepare import prepare
from siltwin.runtime.run import RunResult, run_job

LAYERS, ROW = 3, 2 * 2 * 8 * 4  # keys and values, two kv heads of 8, fp32
PROMPTS = [[(7 * index + 3 * length) % 131 for index in range(length)] for length in (1, 9, 40)]
GRANULE = 3072  # 24 rows of one layer


def run(path: Path, **changes: Any) -> RunResult:
    options = {
        "dtype": "float32",
        "kv_dtype": "float32",
        "prompt_ids": tuple(map(tuple, PROMPTS)),
        "max_new_tokens": 30,
    }
    return run_job(Job(str(path), ignore_eos=True, **{**options, **changes}))


def granule(policy: str) -> dict[str, str]:
    return {"kv_policy": policy, **({"kv_granule": str(GRANULE)} if policy == "virtual" else {})}


def test_every_policy_gives_the_same_numbers_and_the_same_times(tmp_path: Path) -> None:
    path = save(tmp_path, "mistral", 0)
    paged, *others = (
        run(path, layout="tp=2,pp=2", logits=True, chunk_tokens=7, **granule(name)) for name in KV_POLICIES
    )
    for other in others:
        assert other.spans == paged.spans
        assert other.logits is not None and paged.logits is not None
        for name, values in paged.logits.items():
            np.testing.assert_array_equal(other.logits[name], values)
        assert all(card.live_at_end_bytes == 0 for card in other.report.cards)


def used(lengths: list[int]) -> int:
    return LAYERS * ROW * sum(lengths)


@pytest.mark.parametrize(
    ("policy", "peak", "allocations"),
    [
        # at the end 30, 38 and 69 tokens are cached: 2, 3 and 5 pages of 16
        ("paged", LAYERS * ROW * 16 * (2 + 3 + 5), 10),
        ("preallocated", LAYERS * ROW * 16 * (2 + 3 + 5), 3),
        # a layer's 4,096, 6,144 and 10,240 bytes lie on 2, 2 and 4 granules
        ("virtual", LAYERS * GRANULE * (2 + 2 + 4), LAYERS * (2 + 2 + 4)),
    ],
)
def test_what_a_policy_reserves_and_wastes_at_the_peak(
    tmp_path: Path, policy: str, peak: int, allocations: int
) -> None:
    result = run(save(tmp_path, "llama", 0), payload=False, compare_kv=True, **granule(policy))
    use = next(use for use in result.report.kv if use.policy == policy)
    assert (use.peak_bytes, use.allocations) == (peak, allocations)
    assert result.report.cards[0].by_tag["kv"] == peak, "the run's own peak is that of the table"
    if policy != "preallocated":
        assert use.used_bytes == used([26, 34, 65]), "as the last page is taken, for token 65 of the longest"
    else:
        assert use.used_bytes == 0, "all of it stands reserved before the first token"


def test_waste_over_time_is_weighed_by_how_long_it_stands(tmp_path: Path) -> None:
    """A prompt of 10 tokens and 40 steps: 10 to 50 tokens stand on pages of 16, or on the four that 50 will need."""
    asked = {"prompt_ids": (), "max_new_tokens": None, "batch": 1, "input_len": 10, "output_len": 40}
    result = run(save(tmp_path, "llama", 0), payload=False, compare_kv=True, **asked)
    lasted = [step.end_ps - step.start_ps for step in result.report.steps]
    uses = {use.policy: use for use in result.report.kv}

    def mean_waste(reserved: Callable[[int], int]) -> int:
        wasted = sum(ps * (reserved(tokens) - tokens) for tokens, ps in enumerate(lasted, 10))
        return wasted * LAYERS * ROW // sum(lasted)

    assert len(lasted) == 41
    assert uses["paged"].mean_waste_bytes == mean_waste(lambda tokens: -(-tokens // 16) * 16)
    assert uses["preallocated"].mean_waste_bytes == mean_waste(lambda tokens: 64)
    assert uses["preallocated"].peak_bytes == uses["paged"].peak_bytes == 64 * LAYERS * ROW
    assert uses["virtual"].peak_bytes == LAYERS * 2 * 2**20, "one granule of 2 MiB a layer"


def test_steps_without_times_are_those_of_the_job(tmp_path: Path) -> None:
    plan = prepare(Job(str(save(tmp_path, "llama", 0)), batch=1, input_len=16, output_len=5, payload=False)).plan
    assert [timed.step.tokens for timed in untimed(plan)] == [16, 1, 1, 1, 1, 1]


def test_preallocation_runs_out_where_pages_on_demand_begin(tmp_path: Path) -> None:
    """Room for two pages of each layer: a prompt of 10 fits on one, and 40 steps need four at once or in time."""
    asked = {"prompt_ids": (), "max_new_tokens": None, "batch": 1, "input_len": 10, "output_len": 40, "payload": False}
    path = save(tmp_path, "llama", 0)
    whole = run(path, **asked).report.cards[0]
    room = whole.peak_bytes - 2 * 16 * LAYERS * ROW
    small = {"overrides": (("hbm.capacity_bytes", str(room)), ("hbm.reserved_bytes", "0"))}
    reports = {
        name: run(path, compare_kv=True, **asked, **small, kv_policy=name).report for name in ("paged", "preallocated")
    }
    assert reports["preallocated"].oom is not None and reports["preallocated"].oom.step is None
    assert reports["paged"].oom is not None and reports["paged"].oom.step_kind == "decode"
    assert [use.fits for use in reports["paged"].kv] == [False, False, False]


@pytest.mark.parametrize(
    ("asked", "kind", "said"),
    [
        ({"kv_policy": "slabs"}, ConfigError, "--kv-policy 'slabs' does not exist; choose one of paged, preallocated"),
        ({"kv_granule": "2MiB"}, ConfigError, "--kv-granule sizes the mappings of --kv-policy virtual"),
        ({"kv_policy": "virtual", "kv_granule": "two"}, ConfigError, "--kv-granule: 'two' is no size; write 2MiB"),
        ({"kv_policy": "virtual", "kv_pages": "ideal"}, NotYetError, "--kv-pages ideal with --kv-policy virtual"),
        ({"compare_kv": True, "kv_pages": "ideal"}, NotYetError, "--compare-kv of --kv-pages ideal"),
    ],
)
def test_what_does_not_go_together_is_refused(tmp_path: Path, asked: dict, kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=said):
        prepare(Job(str(save(tmp_path, "llama", 0)), batch=1, input_len=4, payload=False, **asked))
