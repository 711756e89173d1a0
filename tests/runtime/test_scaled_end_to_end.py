"""Llama 4 and Gemma against transformers over every layout: chunks, caps, two ropes, weights that scale inputs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import SIZES, reference
from scaled_checkpoints import SCALED_FAMILIES, save_scaled
from test_quantised_weights import decoded

from siltwin.isa.dtype import BF16, FP32
from siltwin.isa.work import Unit
from siltwin.models.checkpoint import open_checkpoint
from siltwin.runtime.align import align
from siltwin.runtime.job import Job
from siltwin.runtime.layout import Layout
from siltwin.runtime.lowering.lower import build
from siltwin.runtime.lowering.stage import LoweringOptions
from siltwin.runtime.plan import Variant
from siltwin.runtime.routing import Recorded
from siltwin.runtime.run import RunResult, run_job

NEW_TOKENS = 24
LAYOUTS = ["tp=1", "tp=2", "tp=4", "pp=3", "tp=2,pp=2"]
EXPERT_LAYOUTS = ["tp=2,ep=2", "tp=4,ep=2", "tp=4,ep=4,pp=2"]
MESHES = [(family, layout) for family in SCALED_FAMILIES for layout in LAYOUTS]
MESHES += [("llama4_text", layout) for layout in EXPERT_LAYOUTS]
PROMPTS = [[(7 * index + 3 * length) % SIZES["vocab_size"] for index in range(length)] for length in (1, 9, 40, 70)]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory):
    """Checkpoints and what the reference makes of the prompts, made once each."""
    made: dict[tuple[str, int], tuple[Path, list]] = {}

    def make(family: str, seed: int = 0):
        if (family, seed) not in made:
            path = save_scaled(tmp_path_factory.mktemp("scaled"), family, seed)
            made[family, seed] = path, [reference(path, prompt, NEW_TOKENS) for prompt in PROMPTS]
        return made[family, seed]

    return make


def run(path: Path, layout: str, routing: Any = None, **changes: Any) -> RunResult:
    options = {
        "dtype": "float32",
        "kv_dtype": "float32",
        "prompt_ids": tuple(map(tuple, PROMPTS)),
        "max_new_tokens": NEW_TOKENS,
        "ignore_eos": True,
        "logits": True,
    }
    return run_job(Job(str(path), layout=layout, **{**options, **changes}), routing=routing)


def check(result: RunResult, expected: list) -> None:
    assert result.logits is not None
    for index, (prompt_logits, tokens, rows) in enumerate(expected):
        allowed = 1e-4 * prompt_logits.std()
        assert np.abs(result.logits[f"logits_{index}"] - prompt_logits).max() <= allowed
        assert np.abs(result.logits[f"decode_logits_{index}"] - np.stack(rows)).max() <= allowed
        assert list(result.report.requests[index].tokens) == tokens
    assert all(card.live_at_end_bytes == 0 for card in result.report.cards)


@pytest.mark.parametrize(("family", "layout"), MESHES)
def test_logits_and_tokens_equal_those_of_transformers(checkpoint, family: str, layout: str) -> None:
    path, expected = checkpoint(family)
    check(run(path, layout), expected)


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(("family", "layout"), MESHES)
def test_other_seeds_agree_too(checkpoint, family: str, layout: str, seed: int) -> None:
    path, expected = checkpoint(family, seed)
    check(run(path, layout), expected)


@pytest.mark.parametrize(
    "changes",
    [
        {"use_qk_norm": False, "attn_temperature_tuning": False, "attention_bias": True},
        {"num_experts_per_tok": 3, "attention_chunk_size": None, "tie_word_embeddings": True, "moe_layers": [0, 3]},
        {"no_rope_layers": [0, 0, 0, 0], "attention_chunk_size": 1, "num_key_value_heads": 1},
    ],
    ids=["no norm", "three experts", "no rope"],
)
def test_llama4s_own_switches_either_way(tmp_path: Path, changes: dict[str, Any]) -> None:
    path = save_scaled(tmp_path, "llama4_text", 5, **changes)
    check(run(path, "tp=2,ep=2,pp=2", max_new_tokens=4), [reference(path, prompt, 4) for prompt in PROMPTS])


@pytest.mark.parametrize("family", SCALED_FAMILIES)
def test_chunked_prefill_gives_the_same_logits(checkpoint, family: str) -> None:
    path, expected = checkpoint(family)
    check(run(path, "tp=2", chunk_tokens=7), expected)


@pytest.mark.parametrize("family", ["llama4_text", "gemma2"])
def test_without_numbers_the_recorded_loads_give_the_same_spans(checkpoint, family: str) -> None:
    path, _ = checkpoint(family)
    options = {"max_new_tokens": 6, "logits": False}
    on = run(path, "tp=2", **options)
    loads = Recorded({record.step.index: record.routed for record in on.records})
    off = run(path, "tp=2", loads, payload=False, **options)
    assert on.spans == off.spans
    assert on.memory == off.memory


@pytest.mark.parametrize("family", SCALED_FAMILIES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_layer_aligns(checkpoint, family: str, dtype: str) -> None:
    path, _ = checkpoint(family)
    report = align(Job(str(path), layout="tp=2,pp=2", dtype=dtype, kv_dtype=dtype))
    assert report.verdict == "aligned", report.first_drift


def test_layers_without_rope_see_all_and_layers_with_it_their_chunk(checkpoint) -> None:
    path, _ = checkpoint("llama4_text")
    result = run(path, "tp=1", payload=False, max_new_tokens=2, logits=False, prompt_ids=(tuple(PROMPTS[3]),))
    program = result.programs[0, Variant(True)]
    chunks = [
        issue.instruction.chunk
        for call in program.calls
        for issue in next(block for block in program.blocks if block.name == call.block).body
        if issue.instruction.mnemonic == "attention"
    ]
    assert chunks == [12, 0, 12, 12]


def test_the_scale_of_embeddings_is_rounded_as_their_dtype_holds_it(checkpoint) -> None:
    """The root of 3072 is 55.4256; in bf16 it is 55.5, and that is what Gemma's embeddings are scaled by."""
    path, _ = checkpoint("gemma3_text")
    wide = replace(open_checkpoint(path).graph, embedding_scale=3072**0.5)
    for dtype, factor in ((BF16, 55.5), (FP32, float(np.float32(3072**0.5)))):
        options = LoweringOptions(dtype, dtype, 16, dict.fromkeys(Unit, "q"))
        program = build(wide, Layout(), 0, options).program
        embed = next(block for block in program.blocks if block.name.startswith("embed"))
        assert [i.instruction.factor for i in embed.body if i.instruction.mnemonic == "scale"] == [factor]


@pytest.mark.parametrize(
    ("family", "asked", "scheme", "layout"),
    [
        ("llama4_text", {"weights": "int8"}, "int8_channel", "tp=4,ep=2"),
        ("llama4_text", {"weights": "int4", "group": 32}, "int4_g32", "tp=2,pp=2"),
        ("gemma3_text", {"weights": "mxfp4"}, "mxfp4", "tp=2"),
    ],
)
def test_quantised_on_loading_the_numbers_are_those_of_the_decoded_weights(
    tmp_path: Path, family: str, asked: dict[str, Any], scheme: str, layout: str
) -> None:
    """Llama 4's experts lie [in, out], all gates before all ups: each output is a row of the scheme."""
    sizes = {"hidden_size": 64, "intermediate_size": 128, "intermediate_size_mlp": 192, "head_dim": 16}
    if family == "gemma3_text":
        del sizes["intermediate_size_mlp"]
    path = save_scaled(tmp_path, family, 0, **sizes)
    plain = decoded(path, scheme)
    result = run(path, layout, max_new_tokens=4, **asked)
    check(result, [reference(plain, prompt, 4) for prompt in PROMPTS])
