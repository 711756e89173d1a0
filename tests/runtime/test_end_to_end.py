"""The whole way against transformers: the same checkpoint, sharded over emulated cards, in fp32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from checkpoints import FAMILIES, SIZES, reference, save

from siltwin.runtime.job import Job
from siltwin.runtime.run import RunResult, run_job

PROMPT_LENGTHS = (1, 9, 40, 70)
NEW_TOKENS = 24
LAYOUTS = ["tp=1", "tp=2", "tp=4", "pp=2", "tp=2,pp=2", "tp=4,pp=2"]
PROMPTS = [[(7 * index + 3 * length) % SIZES["vocab_size"] for index in range(length)] for length in PROMPT_LENGTHS]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory):
    """Checkpoints and what the reference makes of the prompts, made once each."""
    made: dict[tuple[str, int], tuple[Path, list]] = {}

    def make(family: str, seed: int):
        if (family, seed) not in made:
            path = save(tmp_path_factory.mktemp("models"), family, seed)
            made[family, seed] = path, [reference(path, prompt, NEW_TOKENS) for prompt in PROMPTS]
        return made[family, seed]

    return make


def run(path: Path, layout: str, **changes) -> RunResult:
    options = {
        "dtype": "float32",
        "kv_dtype": "float32",
        "prompt_ids": tuple(map(tuple, PROMPTS)),
        "max_new_tokens": NEW_TOKENS,
        "ignore_eos": True,
        "logits": True,
    }
    return run_job(Job(str(path), layout=layout, **{**options, **changes}))


def check(result: RunResult, expected: list) -> None:
    assert result.logits is not None
    for index, (prompt_logits, tokens, rows) in enumerate(expected):
        spread = prompt_logits.std()
        assert np.abs(result.logits[f"logits_{index}"] - prompt_logits).max() <= 1e-4 * spread
        assert np.abs(result.logits[f"decode_logits_{index}"] - np.stack(rows)).max() <= 1e-4 * spread
        assert list(result.report.requests[index].tokens) == tokens == result.logits[f"tokens_{index}"].tolist()
    assert all(card.live_at_end_bytes == 0 for card in result.report.cards)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_sharded_logits_and_tokens_equal_those_of_transformers(checkpoint, family: str, layout: str) -> None:
    path, expected = checkpoint(family, 0)
    check(run(path, layout), expected)


@pytest.mark.long
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("family", FAMILIES)
def test_other_seeds_agree_too(checkpoint, family: str, seed: int, layout: str) -> None:
    path, expected = checkpoint(family, seed)
    check(run(path, layout), expected)


@pytest.mark.parametrize("chunk", [1, 7, 16, 33])
def test_chunked_prefill_gives_the_same_logits(checkpoint, chunk: int) -> None:
    path, expected = checkpoint("mistral", 0)
    check(run(path, "tp=2,pp=2", chunk_tokens=chunk), expected)


@pytest.mark.parametrize("card", ["h100-sxm", "reference-npu"])
def test_the_numbers_do_not_depend_on_the_card(checkpoint, card: str) -> None:
    path, expected = checkpoint("qwen3", 0)
    check(run(path, "tp=2", card=card), expected)


def test_a_rerun_is_bit_identical_apart_from_the_host(checkpoint) -> None:
    path, _ = checkpoint("qwen2", 0)
    one, two = (run(path, "tp=2,pp=2", temperature=0.8, top_k=20, top_p=0.9, seed=5) for _ in range(2))
    assert one.report.model_dump(exclude={"host"}) == two.report.model_dump(exclude={"host"})
    assert one.spans == two.spans
    assert all(np.array_equal(one.logits[name], two.logits[name]) for name in one.logits)


def test_sampling_does_not_depend_on_the_batch_or_the_layout(checkpoint) -> None:
    path, _ = checkpoint("llama", 0)
    options = {"temperature": 0.9, "top_k": 30, "top_p": 0.95, "seed": 3}
    together = run(path, "tp=1", **options).report.requests
    alone = run(path, "pp=2", prompt_ids=(tuple(PROMPTS[0]),), **options).report.requests
    assert together[0].tokens == alone[0].tokens
    assert together[1].tokens != run(path, "tp=1").report.requests[1].tokens


def test_cached_tokens_stand_for_a_prefill_that_came_before(checkpoint) -> None:
    """--cached-len with the payload on computes with the very keys that a prefill of the same ids would have left."""
    path, _ = checkpoint("mistral", 0)
    sized = {"prompt_ids": (), "max_new_tokens": None, "batch": 2, "seed": 4}
    cached = run(path, "tp=2", **sized, cached_len=20, input_len=5, output_len=6)
    draw = np.random.default_rng(4)
    new, old = ([draw.integers(0, SIZES["vocab_size"], count).tolist() for _ in range(2)] for count in (5, 20))
    whole = tuple(tuple([*o, *n]) for o, n in zip(old, new, strict=True))
    full = run(path, "tp=2", prompt_ids=whole, max_new_tokens=7)
    assert [r.tokens for r in cached.report.requests] == [r.tokens for r in full.report.requests]
    assert [s.kind for s in cached.report.steps] == ["prefill"] + ["decode"] * 6
    assert np.abs(cached.logits["logits_1"] - full.logits["logits_1"][20:]).max() < 1e-5


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_low_precisions_stay_near(checkpoint, dtype: str) -> None:
    path, expected = checkpoint("llama", 0)
    result = run(path, "tp=2,pp=2", dtype=dtype, kv_dtype=dtype, max_new_tokens=1)
    mine, theirs = result.logits["logits_2"], expected[2][0]
    cosine = float((mine * theirs).sum() / np.linalg.norm(mine) / np.linalg.norm(theirs))
    assert 0.999 < cosine < 1 - 1e-9
