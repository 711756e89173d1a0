"""Composition: what a card lacks is run from what it has, with the same numbers, in more time; the rest is refused."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from checkpoints import save
from kimi_k3_checkpoints import save_kimi_k3
from latent_checkpoints import LATENT_FAMILIES, SPARSE_FAMILIES, save_latent
from scaled_checkpoints import save_scaled

from siltwin.isa.errors import UnsupportedError
from siltwin.runtime.align import align
from siltwin.runtime.job import Job
from siltwin.runtime.limits import find_limits
from siltwin.runtime.plan import Variant
from siltwin.runtime.prepare import prepare
from siltwin.runtime.routing import Recorded
from siltwin.runtime.run import RunResult, run_job

PROMPTS = tuple(tuple(range(1, 1 + length)) for length in (3, 21, 1, 40))


@pytest.fixture(scope="session")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("composition")


@cache
def checkpoint(directory: Path, family: str) -> Path:
    if family == "kimi_k3":
        return save_kimi_k3(directory, 1)[0]
    saver = save_latent if family in (*LATENT_FAMILIES, *SPARSE_FAMILIES) else save
    return (save_scaled if family in ("gemma2", "llama4_text") else saver)(directory, family, 1)


def job(directory: Path, family: str, native: str | None = None, **options: object) -> Job:
    given: dict[str, object] = {"dtype": "float32", "kv_dtype": "float32", "prompt_ids": PROMPTS, "max_new_tokens": 4}
    given |= {"ignore_eos": True, "logits": True, "layout": "tp=2", **options}
    return Job(str(checkpoint(directory, family)), overrides=(("native", native),) if native else (), **given)


@cache
def whole(directory: Path, family: str) -> RunResult:
    return run_job(job(directory, family))


def apart(one: RunResult, other: RunResult) -> float:
    """The largest difference of logits, over their standard deviation."""
    assert one.logits is not None and other.logits is not None
    pairs = [(one.logits[name], other.logits[name]) for name in one.logits if "logits" in name]
    return max(float(np.abs(a - b).max() / b.std()) for a, b in pairs)


CASES = [
    ("qwen3", "attention", ("paged_scores", "masked_softmax", "paged_values")),
    ("mistral", "attention", ("paged_scores", "masked_softmax", "paged_values")),
    ("gpt_oss", "attention", ("paged_scores", "masked_softmax", "paged_values")),
    ("gemma2", "attention", ("paged_scores", "soft_cap", "masked_softmax", "paged_values")),
    ("llama4_text", "attention", ("paged_scores", "masked_softmax", "paged_values")),
    ("gemma2", "soft_cap", ("scale", "map")),
    ("gemma2", "rmsnorm", ("sum_squares", "rms_scale")),
    ("gemma2", "gated", ("multiply", "scale", "add", "sigmoid_gate")),
    ("gpt_oss", "grouped_gated", ("gated",)),
    ("kimi_k3", "situ_gated", ("soft_cap", "sigmoid_gate", "multiply")),
    ("qwen3", "rmsnorm", ("sum_squares", "rms_scale")),
    ("llama", "add_rmsnorm", ("add", "rmsnorm")),
    ("llama", "gated", ("sigmoid_gate", "multiply")),
    ("llama", "rope", ("gather", "multiply", "scale", "add")),
    ("mixtral", "grouped_gated", ("gated",)),
    ("glm_moe_dsa", "latent_attention", ("heads_matmul", "paged_scores", "masked_softmax", "paged_values")),
    ("deepseek_v3", "latent_attention", ("heads_matmul", "paged_scores", "masked_softmax", "paged_values")),
]


@pytest.mark.parametrize(("family", "lacks", "into"), CASES)
def test_numbers_stay_and_time_grows(places: Path, family: str, lacks: str, into: tuple[str, ...]) -> None:
    native, composed = whole(places, family), run_job(job(places, family, f"all,-{lacks}"))
    # this Kimi K3 magnifies rounding: at tp=1 its logits differ from these by as much
    assert apart(composed, native) < (5e-4 if family == "kimi_k3" else 1e-5)
    assert [r.tokens for r in composed.report.requests] == [r.tokens for r in native.report.requests]
    longer = composed.report.totals.elapsed_ps - native.report.totals.elapsed_ps
    assert longer > 0 or (longer, lacks) == (0, "grouped_gated")  # one launch for one, over the same rows
    (applied,) = composed.report.passes
    assert (applied.name, applied.into) == (f"compose {lacks}", into)
    assert applied.launches >= applied.places * (len(into) - 1)  # some parts come more than once
    assert native.report.passes == ()
    mnemonics = {span.mnemonic for span in composed.spans}
    assert lacks not in mnemonics and set(into) <= mnemonics


def test_compositions_are_composed_in_turn(places: Path) -> None:
    lacks = "all,-attention,-add_rmsnorm,-rmsnorm,-gated,-sigmoid_gate,-rope"
    composed = run_job(job(places, "qwen3", lacks))
    assert apart(composed, whole(places, "qwen3")) < 1e-5
    assert {"map", "sum_squares", "paged_values"} <= {span.mnemonic for span in composed.spans}


@pytest.mark.parametrize(("family", "lacks"), [("gpt_oss", "attention"), ("deepseek_v3", "latent_attention")])
def test_payload_off_gives_the_same_spans_and_bytes(places: Path, family: str, lacks: str) -> None:
    """Chunks, mixed steps and contexts that pass page after page; experts get what the numbers gave them."""
    options = {"chunk_tokens": 16, "max_new_tokens": 20, "layout": "tp=2,pp=2", "logits": False}
    on = run_job(job(places, family, f"all,-{lacks}", **options))
    loads = Recorded({record.step.index: record.routed for record in on.records})
    off = run_job(job(places, family, f"all,-{lacks}", payload=False, **options), routing=loads)
    assert on.spans == off.spans
    assert on.memory == off.memory


@pytest.mark.parametrize("layout", ["dp=2,tp=2", "pp=2", "cp=2"])
def test_a_composition_is_the_same_in_every_layout(places: Path, layout: str) -> None:
    options = {"layout": layout, "cp_prefill": "allgather"} if "cp" in layout else {"layout": layout}
    composed = run_job(job(places, "qwen3", "all,-attention,-rmsnorm", **options))
    assert apart(composed, whole(places, "qwen3")) < 1e-5
    assert "paged_scores" in {span.mnemonic for span in composed.spans}


def test_scores_take_room_between_the_parts(places: Path) -> None:
    """Of 65 prompt tokens at 8 heads over 2 ranks and contexts of up to 43 tokens in pages of 16: fp32 scores."""
    native, composed = (prepare(job(places, "qwen3", lacks)).plan for lacks in (None, "all,-attention"))
    sizes = composed.lowered(0, Variant(True)).arena.sizes
    (scores,) = [size for (_, name), size in sizes.items() if name.startswith("scores.")]
    assert scores == -(-65 * 4 * 48 * 4 // 512) * 512
    activations = [sum(part.num_bytes for part in plan.footprint(0).static) for plan in (native, composed)]
    assert 0 < activations[1] - activations[0] <= scores


def test_a_composed_run_aligns_with_transformers(places: Path) -> None:
    report = align(job(places, "llama", "all,-attention,-rope", logits=False))
    assert report.verdict == "aligned" and report.logits.max_rel is not None and report.logits.max_rel < 1e-5


@pytest.mark.parametrize(
    ("lacks", "says"),
    [
        ("all,-matmul,-argmax", r"has no matmul, argmax, which the model needs \(matmul: nothing composes it; argmax"),
        ("all,-attention,-masked_softmax", "attention: masked_softmax is not native, and attention is composed of it"),
    ],
)
def test_what_nothing_composes_is_refused_by_name(lacks: str, says: str) -> None:
    asked = Job("SmolLM2-135M", batch=1, input_len=8, payload=False, overrides=(("native", lacks),))
    for ask in (run_job, find_limits):
        with pytest.raises(UnsupportedError, match=f"ascend-910b2 .*{says}"):
            ask(asked)


def test_neighbours_that_pair_have_no_composition(places: Path) -> None:
    with pytest.raises(UnsupportedError, match="rope: neighbours that pair are no range of columns"):
        run_job(job(places, "deepseek_v3", "all,-rope"))
