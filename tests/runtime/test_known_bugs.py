"""What others got wrong: the known bugs of serving engines and simulators, each as a test with its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import SIZES, reference, save
from latent_checkpoints import save_latent

from siltwin.isa.errors import ConfigError
from siltwin.models.checkpoint import open_checkpoint
from siltwin.runtime.catalogue import model_report
from siltwin.runtime.job import Job
from siltwin.runtime.run import RunResult, run_job

PROMPT = [(7 * index + 3) % SIZES["vocab_size"] for index in range(40)]
HIDDEN, VOCAB = SIZES["hidden_size"], SIZES["vocab_size"]


def run(path: Path, layout: str, **changes: Any) -> RunResult:
    options = {"dtype": "float32", "kv_dtype": "float32", "prompt_ids": (tuple(PROMPT),), "max_new_tokens": 6}
    return run_job(Job(str(path), layout=layout, ignore_eos=True, **{"logits": True, **options, **changes}))


def agrees(path: Path, *layouts: str, **changes: Any) -> None:
    """Logits within 1e-4 of their spread, prefill and decode, and the same tokens."""
    prompt_logits, tokens, rows = reference(path, PROMPT, 6)
    for layout in layouts:
        result = run(path, layout, **changes)
        assert result.logits is not None
        assert np.abs(result.logits["logits_0"] - prompt_logits).max() <= 1e-4 * prompt_logits.std()
        assert np.abs(result.logits["decode_logits_0"] - np.stack(rows)).max() <= 1e-4 * prompt_logits.std()
        assert list(result.report.requests[0].tokens) == tokens


def weights(path: Path, layout: str) -> list[int]:
    """Bytes of weights on each card, in fp32."""
    report = run(path, layout, payload=False, logits=False, max_new_tokens=1).report
    return [card.by_tag["weight"] for card in report.cards]


def test_eight_cards_share_two_kv_heads(tmp_path: Path) -> None:
    """Each kv head stands on four cards; cutting the heads' rows instead gives every card a part of one."""
    path = save(tmp_path, "qwen3", 0, intermediate_size=64)
    agrees(path, "tp=8")
    kv_rows_of_a_card = 2 * 16
    whole = weights(path, "tp=1")[0]
    held = sum(weights(path, "tp=8"))
    norms = 3 * (2 * HIDDEN + 2 * 16) + HIDDEN
    assert held - whole == 4 * (7 * norms + 3 * HIDDEN * (8 * kv_rows_of_a_card - 2 * 2 * 16))


def test_a_head_is_not_as_wide_as_hidden_size_by_heads(tmp_path: Path) -> None:
    path = save(tmp_path, "llama", 0, head_dim=10, num_attention_heads=8)
    assert open_checkpoint(path).config.head_dim == 10 != HIDDEN // 8
    agrees(path, "tp=2")


def test_keys_and_values_of_a_head_differ_in_size(tmp_path: Path) -> None:
    path = save_latent(tmp_path, "deepseek_v3", 0)
    latent = open_checkpoint(path).config.latent
    assert latent is not None and latent.v_dim == 14 != latent.head_dim == 16
    agrees(path, "tp=4,pp=2")


def test_at_ep_8_each_card_holds_an_eighth_of_the_experts(tmp_path: Path) -> None:
    path = save(tmp_path, "mixtral", 0, num_local_experts=16)
    agrees(path, "tp=8,ep=8")
    expert = 3 * HIDDEN * SIZES["intermediate_size"]
    spread, cut = weights(path, "tp=8,ep=8"), weights(path, "tp=8")
    assert spread == cut, "two whole experts are as many bytes as an eighth of each of sixteen"
    dense = weights(save(tmp_path / "few", "mixtral", 0, num_local_experts=8), "tp=8,ep=8")
    routers = 3 * 8 * HIDDEN
    assert [a - b for a, b in zip(spread, dense, strict=True)] == [4 * (3 * expert + routers)] * 8


@pytest.mark.parametrize(("kv_pages", "pages"), [("unified", 4), ("ideal", 3)])
def test_windows_keep_their_pages_or_let_them_go(tmp_path: Path, kv_pages: str, pages: int) -> None:
    """40 prompt and 23 more tokens are four pages; a window of 12 needs three at the prompt and two from then on."""
    path = save(tmp_path, "mistral", 0)
    agrees(path, "tp=2,pp=3", kv_pages=kv_pages)
    result = run(path, "tp=1", kv_pages=kv_pages, max_new_tokens=24)
    assert result.report.cards[0].by_tag["kv"] == pages * 3 * 16 * 2 * 2 * 10 * 4


def test_layers_that_predict_further_tokens_are_skipped_and_listed(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    path = save_latent(tmp_path, "deepseek_v3", 0)
    before = weights(path, "tp=2")
    file = path / "model.safetensors"
    tensors = load_file(file)
    last = "model.layers.2."
    extra = {name.replace(last, "model.layers.3."): t.clone() for name, t in tensors.items() if name.startswith(last)}
    extra["model.layers.3.eh_proj.weight"] = tensors["lm_head.weight"].clone()
    save_file(tensors | extra, file, metadata={"format": "pt"})
    agrees(path, "tp=2,pp=2")
    assert weights(path, "tp=2") == before
    assert open_checkpoint(path).skipped == tuple(sorted(extra))
    assert model_report(str(path)).models[0].skipped_tensors == tuple(sorted(extra))


def test_tied_embeddings_stand_once_and_on_both_ends_of_a_pipeline(tmp_path: Path) -> None:
    path = save(tmp_path, "qwen3", 0)
    assert open_checkpoint(path).config.tied and "lm_head.weight" not in open_checkpoint(path).names()
    agrees(path, "tp=2", "tp=2,pp=3")
    table = 4 * VOCAB * HIDDEN
    assert sum(weights(path, "pp=3")) - weights(path, "tp=1")[0] == table


@pytest.mark.parametrize("layout", ["tp=2", "tp=4", "tp=4,pp=2"])
def test_a_vocabulary_need_not_be_a_multiple_of_the_cards(tmp_path: Path, layout: str) -> None:
    """131 rows over 4 cards are 33, 33, 33 and 32: nothing is padded, and no logit beyond the last can win."""
    path = save(tmp_path, "llama", 0)
    agrees(path, layout)
    result = run(path, layout)
    assert result.logits is not None and result.logits["logits_0"].shape[1] == VOCAB


def test_rows_that_pad_a_vocabulary_in_the_file_are_not_taken_for_tokens(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    path = save(tmp_path, "llama", 0)
    file = path / "model.safetensors"
    tensors = load_file(file)
    padded = tensors["lm_head.weight"].new_zeros(136, HIDDEN)
    padded[:VOCAB] = tensors["lm_head.weight"]
    save_file(tensors | {"lm_head.weight": padded}, file, metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"lm_head.weight has shape \[136, 48\].*asks for \[131, 48\]"):
        open_checkpoint(path)


def test_a_stage_may_hold_dense_layers_alone_before_those_with_experts(tmp_path: Path) -> None:
    path = save_latent(tmp_path, "deepseek_v3", 0, num_hidden_layers=4, first_k_dense_replace=2)
    agrees(path, "pp=2", "tp=2,ep=2,pp=4")
    dense, sparse = weights(path, "pp=2")
    assert dense < sparse
