"""Models with sparse attention against transformers over every layout, and what each card then holds and sends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from checkpoints import reference
from latent_checkpoints import SPARSE_FAMILIES, pack_fp8, save_latent
from test_latent_end_to_end import NEW_TOKENS, PROMPTS, check, run

from siltwin.isa.dtype import BF16, FP32
from siltwin.models.config import read_config
from siltwin.models.graph import build_graph
from siltwin.models.shelf import shipped_configs
from siltwin.runtime.align import align
from siltwin.runtime.job import Job
from siltwin.runtime.judging import choice_hints

LAYOUTS = ["tp=1", "tp=2", "tp=4", "pp=2", "tp=2,ep=2", "tp=4,ep=4", "tp=4,pp=2,ep=2", "tp=2,pp=2,dp=2,ep=4"]
SHARED = ["full", "shared", "shared", "shared", "shared"]
# Budgets of one token and of more than any prompt has, no sharing at all and nothing but sharing, heads of other sizes.
OTHERS: list[tuple[str, dict[str, Any]]] = [
    ("deepseek_v32", {"index_topk": 1, "first_k_dense_replace": 3}),
    ("deepseek_v32", {"index_topk": 64, "index_head_dim": 6, "index_n_heads": 24, "attention_bias": False}),
    ("deepseek_v32", {"index_topk": 40, "tie_word_embeddings": True, "norm_topk_prob": False}),
    ("glm_moe_dsa", {"index_topk": 94, "indexer_types": None}),
    ("glm_moe_dsa", {"index_topk": 16, "indexer_types": SHARED, "num_attention_heads": 4, "num_key_value_heads": 4}),
    ("glm_moe_dsa", {"index_topk_freq": 2, "index_skip_topk_offset": 1, "indexer_types": None, "n_group": 3}),
]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory):
    """Checkpoints and what the reference makes of the prompts, made once each."""
    made: dict[str, tuple[Path, list]] = {}

    def make(family: str, seed: int = 0, **changes: Any):
        key = f"{family} {seed} {changes}"
        if key not in made:
            path = save_latent(tmp_path_factory.mktemp("sparse"), family, seed, **changes)
            made[key] = path, [reference(path, prompt, NEW_TOKENS) for prompt in PROMPTS]
        return made[key]

    return make


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("family", SPARSE_FAMILIES)
def test_logits_and_tokens_equal_those_of_transformers(checkpoint, family: str, layout: str) -> None:
    path, expected = checkpoint(family)
    check(run(path, layout), expected)


@pytest.mark.parametrize(("family", "changes"), OTHERS, ids=[str(at) for at in range(len(OTHERS))])
def test_every_budget_and_sharing_agrees(checkpoint, family: str, changes: dict[str, Any]) -> None:
    path, expected = checkpoint(family, **changes)
    check(run(path, "tp=2,pp=2"), expected)


@pytest.mark.long
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("family", SPARSE_FAMILIES)
def test_other_seeds_agree_too(checkpoint, family: str, seed: int, layout: str) -> None:
    path, expected = checkpoint(family, seed)
    check(run(path, layout), expected)


@pytest.mark.parametrize("pp", [2, 3, 4, 5])
def test_a_choice_travels_to_the_stage_that_shares_it(checkpoint, pp: int) -> None:
    path, expected = checkpoint("glm_moe_dsa", indexer_types=SHARED, index_topk=16)
    check(run(path, f"pp={pp}"), expected)


def test_chunked_prefill_gives_the_same_logits(checkpoint) -> None:
    path, expected = checkpoint("glm_moe_dsa")
    check(run(path, "tp=2", chunk_tokens=7), expected)


@pytest.mark.parametrize("layout", ["tp=1", "tp=2,pp=2"])
@pytest.mark.parametrize("family", SPARSE_FAMILIES)
def test_the_payload_changes_no_span(checkpoint, family: str, layout: str) -> None:
    path, _ = checkpoint(family, first_k_dense_replace=5, index_topk=20)
    options: dict[str, Any] = {"max_new_tokens": 6, "logits": False}
    on, off = run(path, layout, **options), run(path, layout, payload=False, **options)
    assert on.spans == off.spans
    assert on.memory == off.memory


@pytest.mark.parametrize("family", SPARSE_FAMILIES)
def test_align_finds_every_layer_equal(checkpoint, family: str) -> None:
    path, _ = checkpoint(family)
    job = Job(str(path), layout="tp=2,pp=2", dtype="float32", kv_dtype="float32", prompt_ids=(tuple(PROMPTS[2]),))
    report = align(job)
    assert report.verdict == "aligned"
    assert len(report.layers) == 1 + (3 if family == "deepseek_v32" else 5)


def test_deepseeks_fp8_is_read_with_its_indexers(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    sizes: dict[str, Any] = {"hidden_size": 136, "q_lora_rank": 132, "index_head_dim": 12, "initializer_range": 0.06}
    path = save_latent(tmp_path / "packed", "deepseek_v32", 0, **sizes)
    plain = save_latent(tmp_path / "plain", "deepseek_v32", 0, **sizes)
    save_file(pack_fp8(path), plain / "model.safetensors", metadata={"format": "pt"})
    check(run(path, "tp=2"), [reference(plain, prompt, NEW_TOKENS) for prompt in PROMPTS])


def weights_by_hand(tp: int) -> int:
    """Elements of glm_moe_dsa's weights on a rank whose experts are cut along their width, but for the vocabulary.

    Hidden 48, 8 heads of 10 + 6 with values of 17, latents of 26 and 18; three indexers of 18 heads of 10; a dense
    layer of 56, four of 15 experts of 20.
    """
    hidden, heads = 48, 8 // tp
    latents = (26 + 18 + 6) * hidden + 26 + 18
    made = heads * (10 + 6) * 26 + heads * (10 + 17) * 18 + hidden * heads * 17
    indexers = 3 * (18 * 10 * 26 + 10 * hidden + 2 * 10 + 18 * hidden)  # whole on every rank
    experts = 15 * hidden + 15 + (15 + 1) * 3 * hidden * 20 // tp
    return 5 * (latents + made + 2 * hidden) + indexers + 3 * hidden * 56 // tp + 4 * experts + hidden


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_indexers_stand_whole_on_every_rank(checkpoint, tp: int) -> None:
    path, _ = checkpoint("glm_moe_dsa")
    report = run(path, f"tp={tp}", payload=False, max_new_tokens=1, logits=False).report
    for index, card in enumerate(report.cards):
        rows = 131 // tp + (index < 131 % tp)
        assert card.by_tag["weight"] == 4 * (weights_by_hand(tp) + 2 * rows * 48)


@pytest.mark.parametrize("layout", ["tp=1", "tp=4", "pp=2"])
def test_layers_that_choose_cache_index_keys_beside_latents(checkpoint, layout: str) -> None:
    path, _ = checkpoint("glm_moe_dsa")
    report = run(path, layout, payload=False, max_new_tokens=1, logits=False).report
    pages = sum(-(-len(prompt) // 16) for prompt in PROMPTS)
    # layers 0, 1 and 4 choose; stages hold three layers and two
    held = [(3, 2), (2, 1)] if layout == "pp=2" else [(5, 3)] * len(report.cards)
    for card, (layers, choosing) in zip(report.cards, held, strict=True):
        assert card.by_tag["kv"] == pages * 16 * 4 * (layers * (18 + 6) + choosing * 10)


def test_a_drift_that_a_choice_may_have_made_is_said_to_be_one() -> None:
    graph = build_graph(read_config(shipped_configs()["GLM-5.1"]))
    (hint,) = choice_hints("layer 3", graph, 2049, BF16)
    assert hint.startswith("queries attend to 2048 tokens chosen by index scores, and rounding to bf16")
    assert not choice_hints(None, graph, 2049, BF16)
    assert not choice_hints("layer 3", graph, 2048, BF16)
    assert not choice_hints("layer 3", graph, 2049, FP32)
