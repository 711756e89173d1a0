"""The watch for numbers that are not finite: what overflows is named by layer, head or expert, and token."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers")
from checkpoints import save
from safetensors.numpy import load_file, save_file

from siltwin.isa.arithmetic import Arithmetic
from siltwin.isa.meaning import ArrayMemory
from siltwin.runtime.job import Job
from siltwin.runtime.report import OutOfRange, Report
from siltwin.runtime.run import run_job
from siltwin.runtime.watch import describe

HUGE = 3e4  # of fp16's 65504
PROMPTS = ((5, 9, 11, 2), (3, 7, 42, 8, 42, 1))  # token 42 stands in request 1 alone, first at position 2
Damage = Callable[[dict[str, Any]], None]


def damaged(path: Path, damage: Damage) -> Path:
    copy = Path(shutil.copytree(path, path.with_name("damaged"), dirs_exist_ok=True))
    weights = load_file(copy / "model.safetensors")
    damage(weights)
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    return copy


def run(path: Path, layout: str, **asked: Any) -> Report:
    given = {"prompt_ids": PROMPTS, "max_new_tokens": 3, "ignore_eos": True, "dtype": "float16", "kv_dtype": "float16"}
    return run_job(Job(str(path), layout=layout, **{**given, **asked})).report


def first_of(report: Report) -> OutOfRange:
    """What passed the range: infinite, or cut to the largest number, as the card's rules say."""
    found = report.not_finite or report.saturated
    assert found is not None
    return found


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("watch"), "llama", 0)


@pytest.mark.parametrize("layout", ["tp=1", "tp=4", "pp=3", "tp=2,pp=2"])
def test_a_head_that_overflows_is_named_with_its_layer_and_first_token(llama: Path, layout: str) -> None:
    """Query head 5 of layer 1 (rows 40 to 47 of 8 heads of 8): its rows blow up whatever token comes."""

    def blow_up(weights: dict[str, Any]) -> None:
        weights["model.layers.1.self_attn.q_proj.weight"][43] = HUGE * np.resize([1, -1], 48)
        weights["model.layers.1.input_layernorm.weight"][:] = 100.0

    report = run(damaged(llama, blow_up), layout)
    found = first_of(report)
    assert (found.layer, found.head, found.request, found.position, found.step) == ("layer 1", "query head 5", 0, 0, 0)
    assert found.instruction.startswith("matmul dst=%qkv")
    assert found.value in ("inf", "-inf", "saturated")
    stage = {"tp=1": 0, "tp=4": 0, "pp=3": 1, "tp=2,pp=2": 0}[layout]
    tp = {"tp=1": 1, "tp=4": 4, "pp=3": 1, "tp=2,pp=2": 2}[layout]
    assert found.card == stage * tp + 5 * tp // 8  # the rank that holds head 5
    assert any(describe(found) in warning for warning in report.warnings)


def only_for(token: int) -> Damage:
    """Key head 0 of layer 0 overflows for one token alone: no other has anything in column 7."""

    def blow_up(weights: dict[str, Any]) -> None:
        table = weights["model.embed_tokens.weight"]
        table[:, 7] = 0
        table[token] = 50.0 * np.eye(48)[7]
        weights["model.layers.0.self_attn.k_proj.weight"][3] = 6e4 * np.eye(48)[7]

    return blow_up


@pytest.mark.parametrize("overlap", [False, True])
def test_a_token_that_overflows_is_named_where_it_first_stands(llama: Path, overlap: bool) -> None:
    """Of the 10 tokens of a step in halves the second has request 1 from its position 1 on."""
    found = first_of(run(damaged(llama, only_for(42)), "tp=2", overlap=overlap))
    assert (found.layer, found.head, found.expert, found.request, found.position) == (
        "layer 0",
        "key head 0",
        None,
        1,
        2,
    )
    assert found.instruction.startswith("matmul dst=%qkv.b" if overlap else "matmul dst=%qkv ")
    assert found.value in ("inf", "saturated") and found.elements == 2  # token 42 comes twice


def test_an_overflow_that_comes_while_decoding_names_its_step(llama: Path) -> None:
    calm = run(damaged(llama, only_for(130)), "tp=1")
    picked = calm.requests[1].tokens[0]
    assert picked not in (*PROMPTS[0], *PROMPTS[1], *calm.requests[0].tokens)

    def blow_up(weights: dict[str, Any]) -> None:
        only_for(130)(weights)
        weights["model.embed_tokens.weight"][picked] = 50.0 * np.eye(48)[7]

    found = first_of(run(damaged(llama, blow_up), "tp=1"))
    assert (found.step, found.request, found.position, found.layer) == (1, 1, 6, "layer 0")


@pytest.mark.parametrize("layout", ["tp=1", "tp=2,ep=2", "tp=4,ep=2"])
def test_an_expert_that_overflows_is_named_with_the_first_token_that_takes_it(tmp_path: Path, layout: str) -> None:
    path = save(tmp_path, "qwen3_moe", 1, decoder_sparse_step=1)

    def blow_up(weights: dict[str, Any]) -> None:
        weights["model.layers.2.mlp.experts.6.up_proj.weight"][:] = 6e4

    found = first_of(run(damaged(path, blow_up), layout))
    assert (found.layer, found.expert, found.head) == ("layer 2", 6, None)
    assert found.instruction.startswith("grouped_matmul dst=%expert_gate_up")
    assert found.request is not None and found.position is not None


def test_honest_runs_find_nothing_and_say_nothing(llama: Path) -> None:
    for dtype in ("float32", "bfloat16", "float16"):
        report = run(llama, "tp=2", dtype=dtype, kv_dtype=dtype)
        assert report.not_finite is None and report.saturated is None
        assert not any("range" in warning for warning in report.warnings)


def test_the_keys_of_a_cache_that_is_too_narrow_are_named_by_head(llama: Path) -> None:
    """In fp32 a key of 1e6 is fine; the fp16 cache cannot hold it."""

    def enlarge(weights: dict[str, Any]) -> None:
        weights["model.layers.2.self_attn.k_proj.weight"][8:16] *= 1e6

    found = first_of(run(damaged(llama, enlarge), "tp=4", dtype="float32"))
    assert (found.layer, found.head, found.request, found.position) == ("layer 2", "key head 1", 0, 0)
    assert found.instruction.startswith("scatter dst=%cache")


def test_inputs_beyond_a_scale_that_was_found_before_are_named_as_cut(tmp_path: Path) -> None:
    """Two tokens hold no measure of what others bring."""
    path = save(tmp_path, "llama", 0, hidden_size=64, intermediate_size=128, head_dim=16)
    coded = {"weights": "int8", "activations": "int8", "dtype": "float32", "kv_dtype": "float32"}
    report = run(path, "tp=2", **coded, calibrate="2")
    found = report.saturated
    assert found is not None and report.not_finite is None
    assert (found.value, found.step) == ("saturated", 0)
    assert found.layer == "layer 0" and found.instruction.startswith("quantise_static ")
    assert found.request is not None and found.position is not None
    assert any(describe(found) in warning for warning in report.warnings)
    assert run(path, "tp=2", **coded).saturated is None  # each token's own scale holds it


def test_a_card_that_cuts_what_passes_16_bits_is_watched_for_the_largest_number(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The largest fp16 as a bias of one key head's column: it stands in every token's row as it is."""
    path = save(llama.parent, "llama", 5, attention_bias=True)

    def largest(weights: dict[str, Any]) -> None:
        weights["model.layers.1.self_attn.k_proj.bias"][11] = 65504.0
        weights["model.layers.1.self_attn.k_proj.weight"][11] = 0

    bad = damaged(path, largest)
    monkeypatch.setattr(ArrayMemory, "rules", property(lambda memory: Arithmetic(saturation="saturate")))
    found = run(bad, "tp=2").saturated
    assert found is not None
    assert (found.layer, found.head, found.request, found.position) == ("layer 1", "key head 1", 0, 0)
    assert found.instruction.startswith("matmul dst=%qkv")
