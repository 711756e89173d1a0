"""Jobs that choose the order of latent attention's products: the same numbers, a workspace charged, and both said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import SIZES, reference, save
from latent_checkpoints import save_latent

from siltwin.isa.errors import ConfigError, UnsupportedError
from siltwin.runtime.job import Job
from siltwin.runtime.prepare import prepare
from siltwin.runtime.report import LatentReport
from siltwin.runtime.routing import Recorded
from siltwin.runtime.run import RunResult, run_job

NEW_TOKENS = 6
PROMPTS = [[(7 * index + 3 * length) % SIZES["vocab_size"] for index in range(length)] for length in (1, 9, 40, 70)]
ROW_BYTES = 8 * (10 + 6 + 14) * 4  # keys and values of 8 heads, fp32
PART_BYTES = 8 * (14 + 1) * 4


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory):
    made: dict[str, tuple[Path, list]] = {}

    def make(family: str):
        if family not in made:
            path = save_latent(tmp_path_factory.mktemp("order"), family, 0)
            made[family] = path, [reference(path, prompt, NEW_TOKENS) for prompt in PROMPTS]
        return made[family]

    return make


def run(path: Path, layout: str = "tp=1", routing: Any = None, **changes: Any) -> RunResult:
    options = {"dtype": "float32", "kv_dtype": "float32", "ignore_eos": True}
    if "batch" not in changes:
        options |= {"prompt_ids": tuple(map(tuple, PROMPTS)), "max_new_tokens": NEW_TOKENS}
    return run_job(Job(str(path), layout=layout, **{**options, **changes}), routing=routing)


def check(result: RunResult, expected: list) -> None:
    assert result.logits is not None
    for index, (prompt_logits, tokens, rows) in enumerate(expected):
        allowed = 1e-4 * prompt_logits.std()
        assert np.abs(result.logits[f"logits_{index}"] - prompt_logits).max() <= allowed
        assert np.abs(result.logits[f"decode_logits_{index}"] - np.stack(rows)).max() <= allowed
        assert list(result.report.requests[index].tokens) == tokens


CASES: list[tuple[str, dict[str, Any]]] = [
    ("tp=2", {"mla": "absorbed"}),
    ("tp=2", {"mla": "expanded", "mla_piece_tokens": 5, "chunk_tokens": 17}),
    ("cp=2", {"mla": "expanded", "mla_piece_tokens": 5}),
]
MORE: list[tuple[str, dict[str, Any]]] = [
    ("dp=2", {"mla": "expanded"}),
    ("cp=2", {"mla": "absorbed", "cp_prefill": "allgather", "chunk_tokens": 31}),
    ("cp=2", {"mla": "expanded", "mla_piece_tokens": 16, "cp_prefill": "allgather", "chunk_tokens": 31}),
    ("tp=2,cp=2,dp=2", {"mla": "expanded", "mla_piece_tokens": 1, "chunk_tokens": 16}),
    ("tp=2,pp=2", {"mla": "expanded", "mla_piece_tokens": 33, "chunk_tokens": 7}),
]


@pytest.mark.parametrize(("layout", "options"), CASES)
def test_either_order_gives_the_logits_of_transformers(checkpoint, layout: str, options: dict[str, Any]) -> None:
    path, expected = checkpoint("deepseek_v3")
    check(run(path, layout, logits=True, **options), expected)


@pytest.mark.long
@pytest.mark.parametrize(("layout", "options"), [*CASES, *MORE])
@pytest.mark.parametrize("family", ["deepseek_v2", "deepseek_v3", "deepseek_v32", "glm_moe_dsa"])
def test_every_family_does_over_every_axis(checkpoint, family: str, layout: str, options: dict[str, Any]) -> None:
    path, expected = checkpoint(family)
    if "dsa" in family or family == "deepseek_v32":
        options = {name: value for name, value in options.items() if name != "cp_prefill"}
    check(run(path, layout, logits=True, **options), expected)


def test_after_a_cached_prefix_the_orders_agree(checkpoint) -> None:
    path, _ = checkpoint("deepseek_v3")
    asked = {"batch": 2, "cached_len": 57, "input_len": 9, "output_len": 5, "logits": True}
    ways = [{"mla": "absorbed"}, {"mla": "expanded", "mla_piece_tokens": 16}]
    absorbed, expanded = (run(path, **asked, **way) for way in ways)
    assert absorbed.logits is not None and expanded.logits is not None
    for name, values in absorbed.logits.items():
        assert np.abs(expanded.logits[name] - values).max() <= 1e-4 * values.std()
    assert [r.tokens for r in absorbed.report.requests] == [r.tokens for r in expanded.report.requests]


@pytest.mark.parametrize("layout", ["tp=2", "cp=2"])
def test_without_numbers_time_and_memory_are_the_same(checkpoint, layout: str) -> None:
    path, _ = checkpoint("deepseek_v3")
    options: dict[str, Any] = {"mla": "expanded", "mla_piece_tokens": 5, "chunk_tokens": 50}
    on = run(path, layout, **options)
    loads = Recorded({record.step.index: record.routed for record in on.records})
    off = run(path, layout, loads, payload=False, **options)
    assert on.spans == off.spans and on.memory == off.memory
    assert on.report.latent_attention == off.report.latent_attention


def test_the_report_says_each_phase_and_what_it_needed(checkpoint) -> None:
    """Prompts of 120 tokens in pieces of 16; then five steps of four sequences that end with 1 + 5, 14, 45, 75."""
    path, _ = checkpoint("deepseek_v3")
    report = run(path, payload=False, mla="expanded", mla_piece_tokens=16).report
    piece = 16 * ROW_BYTES
    assert report.latent_attention == (
        LatentReport(kind="prefill", expanded=4, pieces=8, piece_tokens=16, workspace_bytes=piece + 120 * PART_BYTES),
        LatentReport(kind="decode", expanded=20, pieces=9, piece_tokens=16, workspace_bytes=piece + 4 * PART_BYTES),
    )
    assert report.cards[0].by_tag["workspace"] == piece + 120 * PART_BYTES


def test_absorbed_decode_needs_room_for_queries_of_latents(checkpoint) -> None:
    path, _ = checkpoint("deepseek_v3")
    report = run(path, "tp=2", payload=False, mla="absorbed").report
    prefill, decode = report.latent_attention
    row = 8 // 2 * (18 + 6 + 18) * 4
    assert (prefill.absorbed, prefill.expanded, prefill.workspace_bytes) == (4, 0, 120 * row)
    assert (decode.absorbed, decode.expanded, decode.workspace_bytes) == (20, 0, 4 * row)
    assert {card.by_tag["workspace"] for card in report.cards} == {120 * row}


def test_auto_expands_prompts_and_absorbs_decode_steps(checkpoint) -> None:
    path, _ = checkpoint("deepseek_v3")
    prefill, decode = run(path, payload=False, prompt_ids=(tuple(PROMPTS[3]),)).report.latent_attention
    assert (prefill.expanded, prefill.absorbed, prefill.pieces) == (1, 0, 1)
    assert (decode.expanded, decode.absorbed) == (0, 5)


def test_a_workspace_that_does_not_fit_is_named(checkpoint) -> None:
    """Of a sequence with 64 Ki tokens: expanded whole 64 Ki x 960 bytes, in pieces of 256 far less."""
    path, _ = checkpoint("deepseek_v3")
    asked = {
        "payload": False,
        "batch": 1,
        "input_len": 120,
        "output_len": 0,
        "mla": "expanded",
        "mla_piece_tokens": 120,
    }
    need = run(path, **asked).report.cards[0]
    room = need.peak_bytes + need.reserved_bytes
    held = {"overrides": (("hbm.capacity_bytes", str(room - 4096)), ("hbm.reserved_bytes", str(need.reserved_bytes)))}
    short = run(path, **asked, **held).report
    assert short.oom is not None
    fits = run(path, **{**asked, **held, "mla_piece_tokens": 8}).report
    assert fits.oom is None and fits.cards[0].by_tag["workspace"] < need.by_tag["workspace"]


def test_what_cannot_be_is_refused_and_what_changes_nothing_is_said(tmp_path: Path, checkpoint) -> None:
    path, _ = checkpoint("deepseek_v3")
    sized: dict[str, Any] = {"batch": 1, "input_len": 4, "payload": False}
    with pytest.raises(ConfigError, match="--mla 'mine' does not exist; choose one of auto, absorbed, expanded"):
        Job(str(path), mla="mine", **sized)
    with pytest.raises(ConfigError, match="--mla absorbed expands nothing"):
        Job(str(path), mla="absorbed", mla_piece_tokens=9, **sized)
    with pytest.raises(ConfigError, match="--mla-piece-tokens=0 must be from 1"):
        Job(str(path), mla="expanded", mla_piece_tokens=0, **sized)
    plain = prepare(Job(str(save(tmp_path, "llama", 0)), mla="expanded", **sized))
    assert any("--mla changes nothing" in warning for warning in plain.warnings)


def test_a_card_that_composes_latent_attention_absorbs_and_says_so(checkpoint) -> None:
    path, _ = checkpoint("deepseek_v3")
    without = {"overrides": (("native", "-latent_attention"),)}
    with pytest.raises(UnsupportedError, match="its composition absorbs"):
        run(path, payload=False, mla="expanded", **without)
    (prefill, decode) = run(path, payload=False, **without).report.latent_attention
    assert (prefill.absorbed, prefill.expanded, decode.absorbed) == (4, 0, 20)
