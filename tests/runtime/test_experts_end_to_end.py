"""Expert models against transformers over every placement of their experts, and the laws of their time and memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import MOE_FAMILIES, SIZES, reference, save

from siltwin.isa.errors import ConfigError
from siltwin.models.checkpoint import open_checkpoint
from siltwin.models.graph import total_parameters
from siltwin.runtime.job import Job
from siltwin.runtime.layout import Layout, check_layout, legal_tp
from siltwin.runtime.plan import Variant
from siltwin.runtime.routing import Even, Loads, Recorded, Routed
from siltwin.runtime.run import RunResult, run_job

NEW_TOKENS = 24
LAYOUTS = ["tp=1", "tp=2", "tp=4", "pp=2", "tp=2,ep=2", "tp=4,ep=2", "tp=4,ep=4", "tp=4,pp=2,ep=4"]
PROMPTS = [[(7 * index + 3 * length) % SIZES["vocab_size"] for index in range(length)] for length in (1, 9, 40, 70)]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory):
    """Checkpoints and what the reference makes of the prompts, made once each."""
    made: dict[tuple[str, int], tuple[Path, list]] = {}

    def make(family: str, seed: int = 0):
        if (family, seed) not in made:
            path = save(tmp_path_factory.mktemp("experts"), family, seed)
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
        spread = prompt_logits.std()
        assert np.abs(result.logits[f"logits_{index}"] - prompt_logits).max() <= 1e-4 * spread
        assert np.abs(result.logits[f"decode_logits_{index}"] - np.stack(rows)).max() <= 1e-4 * spread
        assert list(result.report.requests[index].tokens) == tokens
    assert all(card.live_at_end_bytes == 0 for card in result.report.cards)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("family", MOE_FAMILIES)
def test_logits_and_tokens_equal_those_of_transformers(checkpoint, family: str, layout: str) -> None:
    path, expected = checkpoint(family)
    check(run(path, layout), expected)


@pytest.mark.long
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("family", MOE_FAMILIES)
def test_other_seeds_agree_too(checkpoint, family: str, seed: int, layout: str) -> None:
    path, expected = checkpoint(family, seed)
    check(run(path, layout), expected)


@pytest.mark.parametrize("layout", ["tp=8,ep=8", "tp=16", "tp=16,ep=16", "tp=8,ep=4,pp=2"])
def test_experts_stand_on_eight_and_sixteen_cards(tmp_path: Path, layout: str) -> None:
    """Two kv heads on up to sixteen ranks, and an expert a card, give what the reference gives without any of it."""
    sizes = {"num_local_experts": 16, "num_attention_heads": 16, "intermediate_size": 32}
    path = save(tmp_path, "mixtral", 3, **sizes)
    result = run(path, layout, max_new_tokens=4, prompt_ids=(tuple(PROMPTS[2]),))
    check(result, [reference(path, PROMPTS[2], 4)])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sixteen_bit_experts_stay_near_the_reference(checkpoint, dtype: str) -> None:
    """Routing may flip where two experts are all but level; the logits as a whole still point the same way."""
    for family in ("qwen2_moe", "gpt_oss"):
        path, expected = checkpoint(family)
        result = run(path, "tp=2,ep=2", dtype=dtype, kv_dtype=dtype, max_new_tokens=1)
        mine, theirs = result.logits["logits_2"], expected[2][0]
        cosine = float((mine * theirs).sum() / np.linalg.norm(mine) / np.linalg.norm(theirs))
        assert 0.99 < cosine < 1 - 1e-9


def test_even_loads_are_told(checkpoint) -> None:
    path, _ = checkpoint("mixtral")
    options = {"max_new_tokens": 1, "logits": False}
    told = [
        any("every expert" in w for w in run(path, "tp=1", payload=bool(p), **options).report.warnings) for p in (0, 1)
    ]
    assert told == [True, False]


def test_chunked_prefill_gives_the_same_logits(checkpoint) -> None:
    path, expected = checkpoint("qwen2_moe")
    check(run(path, "tp=2,ep=2", chunk_tokens=7), expected)


@pytest.mark.parametrize("layout", ["tp=1", "tp=2,pp=2", "tp=4,ep=2", "tp=4,ep=4"])
@pytest.mark.parametrize("family", ["mixtral", "qwen2_moe"])
def test_without_numbers_the_recorded_loads_give_the_same_spans(checkpoint, family: str, layout: str) -> None:
    path, _ = checkpoint(family)
    options = {"max_new_tokens": 6, "logits": False}
    on = run(path, layout, **options)
    loads = Recorded({record.step.index: record.routed for record in on.records})
    off = run(path, layout, loads, payload=False, **options)
    assert on.spans == off.spans
    assert on.memory == off.memory
    spread = run(path, layout, payload=False, **options)
    assert spread.spans != on.spans, "even loads are not what these numbers routed"


def test_one_hotter_expert_moves_the_products_of_its_layer_alone(checkpoint) -> None:
    path, _ = checkpoint("mixtral")
    options = {"payload": False, "max_new_tokens": 1, "logits": False}

    def hot(routed: Routed) -> Loads:
        loads = Even()(routed).copy()
        if routed.layer == 1:
            loads[..., 1] += loads[..., 0]
            loads[..., 0] = 0
        return loads

    plain, skewed = (run(path, "tp=2", routing, **options) for routing in (None, hot))
    layers = [
        call
        for call in range(len(plain.programs[0, Variant(True)].calls))
        if "layer" in plain.programs[0, Variant(True)].calls[call].block
    ]
    changed = {
        (a.call, a.mnemonic)
        for a, b in zip(plain.spans, skewed.spans, strict=True)
        if a.end_ps - a.start_ps != b.end_ps - b.start_ps and a.queue != "link"
    }
    assert {call for call, _ in changed} == {layers[1]}
    assert "grouped_matmul" in {name for _, name in changed}


def test_what_is_recorded_counts_every_choice(checkpoint) -> None:
    path, _ = checkpoint("qwen3_moe")
    result = run(path, "tp=4,ep=2", max_new_tokens=2)
    prefill, decode = result.records[0], result.records[1]
    assert set(prefill.routed) == {"layers.1.experts"}, "of three layers every second has experts"
    loads = prefill.routed["layers.1.experts"]
    assert loads.shape == (1, 2, 10) and loads.sum() == 120 * 3
    assert decode.routed["layers.1.experts"].sum() == 4 * 3


def weights_by_hand(tp: int, ep: int, index: int) -> int:
    """Elements of mixtral's weights on one rank: 8 heads of 10 over 2 kv heads, hidden 48, 7 experts of 56."""
    hidden, width, dim, experts, vocab, layers = 48, 56, 10, 7, 131, 3
    kv = max(1, 2 // tp)
    attention = (8 // tp + 2 * kv) * dim * hidden + hidden * 8 // tp * dim
    own = experts if ep == 1 else experts // ep + (index % ep < experts % ep)
    cut = width // tp if ep == 1 else width
    layer = 2 * hidden + attention + experts * hidden + own * 3 * hidden * cut
    rows = vocab // tp + (index < vocab % tp)
    return layers * layer + hidden + 2 * rows * hidden


@pytest.mark.parametrize(("tp", "ep"), [(1, 1), (2, 1), (2, 2), (4, 1), (4, 2), (4, 4)])
def test_weights_of_a_card_are_counted_by_hand(checkpoint, tp: int, ep: int) -> None:
    path, _ = checkpoint("mixtral")
    report = run(path, f"tp={tp},ep={ep}", payload=False, max_new_tokens=1, logits=False).report
    assert [card.by_tag["weight"] for card in report.cards] == [
        4 * weights_by_hand(tp, ep, index) for index in range(tp)
    ]


def test_experts_over_all_cards_are_held_once_in_all(checkpoint) -> None:
    path, _ = checkpoint("olmoe")
    graph = open_checkpoint(path).graph
    options = {"payload": False, "max_new_tokens": 1, "logits": False}
    whole = run(path, "tp=1", **options).report.cards[0].by_tag["weight"]
    assert whole == 4 * total_parameters(graph)
    held = [sum(card.by_tag["weight"] for card in run(path, f"tp=4,ep={ep}", **options).report.cards) for ep in (1, 4)]
    assert held[0] == held[1], "cut along their width or dealt out whole, the experts' bytes are the same"


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (Layout(tp=4, ep=3), "ep must divide 4 and be at most 7 experts; choose ep from 1, 2, 4"),
        (Layout(tp=1, ep=2), "choose ep from 1"),
        (Layout(tp=3), "divide the feed-forward width 56"),
    ],
)
def test_a_placement_that_does_not_fit_names_those_that_do(checkpoint, layout: Layout, message: str) -> None:
    graph = open_checkpoint(checkpoint("mixtral")[0]).graph
    with pytest.raises(ConfigError, match=message):
        check_layout(layout, graph, None)


def test_a_dense_model_has_no_experts_to_place(tmp_path: Path) -> None:
    graph = open_checkpoint(save(tmp_path, "llama", 0)).graph
    with pytest.raises(ConfigError, match="it has no experts; leave ep at 1"):
        check_layout(Layout(tp=2, ep=2), graph, None)


def test_whole_experts_free_tp_from_their_width(checkpoint) -> None:
    graph = open_checkpoint(checkpoint("mixtral")[0]).graph
    layers = tuple(
        replace(layer, mlp=replace(layer.mlp, experts=replace(layer.mlp.experts, intermediate_size=57)))
        for layer in graph.layers
    )
    odd = replace(graph, layers=layers)
    assert legal_tp(odd) == [1]
    assert legal_tp(odd, ep=2) == [2, 4, 8]
