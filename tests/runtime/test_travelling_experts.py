"""Experts over the cards of several replicas: tokens travel to them and come back, to the numbers of transformers."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import MOE_FAMILIES, SIZES, reference, save
from latent_checkpoints import save_latent
from linear_checkpoints import save_linear

from siltwin.isa.errors import ConfigError
from siltwin.models.checkpoint import open_checkpoint
from siltwin.models.graph import total_parameters
from siltwin.runtime.binding import step_bindings
from siltwin.runtime.dispatch import room_extents
from siltwin.runtime.expert_room import with_proportional_room
from siltwin.runtime.job import Job
from siltwin.runtime.layout import Layout, check_layout, legal_tp
from siltwin.runtime.layout_warnings import layout_warnings
from siltwin.runtime.numbers import Numbers
from siltwin.runtime.prepare import prepare
from siltwin.runtime.routing import Recorded
from siltwin.runtime.run import RunResult, run_job

NEW_TOKENS = 4
PROMPTS = [[(5 * index + 3 * length) % SIZES["vocab_size"] for index in range(length)] for length in (1, 9, 40)]
LAYOUTS = ["dp=2,ep=2", "dp=4,ep=4", "dp=2,tp=2,ep=4", "dp=2,tp=2,pp=2,ep=2"]
WIDE = ["dp=8,ep=8", "dp=2,tp=4,ep=8", "dp=4,tp=2,ep=2", "dp=2,tp=2,pp=2,ep=4", "dp=2,tp=4,ep=4,etp=2",
        "dp=2,tp=4,ep=2,etp=4", "dp=3,tp=4,ep=3,etp=2"]  # fmt: skip
MAKERS = {"deepseek_v3": save_latent, "qwen3_next": save_linear}
Made = tuple[Path, list]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory):
    made: dict[str, Made] = {}

    def make(family: str) -> Made:
        if family not in made:
            path = MAKERS.get(family, save)(tmp_path_factory.mktemp("travelling"), family, 0)
            made[family] = path, [reference(path, prompt, NEW_TOKENS) for prompt in PROMPTS]
        return made[family]

    return make


def job(path: Path, layout: str, **changes: Any) -> Job:
    options = {
        "dtype": "float32",
        "kv_dtype": "float32",
        "prompt_ids": tuple(map(tuple, PROMPTS)),
        "max_new_tokens": NEW_TOKENS,
        "ignore_eos": True,
        "logits": True,
    }
    return Job(str(path), layout=layout, **{**options, **changes})


def run(path: Path, layout: str, routing: Any = None, **changes: Any) -> RunResult:
    return run_job(job(path, layout, **changes), routing=routing)


def check(result: RunResult, expected: list) -> None:
    assert result.logits is not None
    for index, (prompt_logits, tokens, rows) in enumerate(expected):
        spread = prompt_logits.std()
        assert np.abs(result.logits[f"logits_{index}"] - prompt_logits).max() <= 1e-4 * spread
        assert np.abs(result.logits[f"decode_logits_{index}"] - np.stack(rows)).max() <= 1e-4 * spread
        assert list(result.report.requests[index].tokens) == tokens
    assert all(card.live_at_end_bytes == 0 for card in result.report.cards)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe", "glm4_moe", "deepseek_v3"])
def test_travelling_tokens_give_the_logits_of_transformers(checkpoint, family: str, layout: str) -> None:
    """Three requests leave some replica of four without tokens; it still computes for the others."""
    path, expected = checkpoint(family)
    check(run(path, layout), expected)


@pytest.mark.long
@pytest.mark.parametrize("layout", [*LAYOUTS, *WIDE])
@pytest.mark.parametrize("family", [*MOE_FAMILIES, *MAKERS])
def test_every_family_lets_its_tokens_travel(checkpoint, family: str, layout: str) -> None:
    path, expected = checkpoint(family)
    degrees = dict(part.split("=") for part in layout.split(","))
    if int(degrees.get("ep", 1)) > min(len_of_experts(path)) or int(degrees.get("tp", 1)) not in legal(path, degrees):
        pytest.skip("this family has too few experts or heads")
    check(run(path, layout, chunk_tokens=11), expected)


def len_of_experts(path: Path) -> list[int]:
    return [layer.mlp.experts.count for layer in open_checkpoint(path).graph.layers if hasattr(layer.mlp, "experts")]


def legal(path: Path, degrees: dict[str, str]) -> list[int]:
    return legal_tp(open_checkpoint(path).graph, int(degrees["ep"]), int(degrees["dp"]), int(degrees.get("etp", 0)))


@pytest.mark.parametrize(
    "layout",
    [
        "tp=16,ep=16",
        "tp=16",
        "tp=4,dp=4,ep=16",
        "tp=4,dp=4",
        "tp=8,dp=2,ep=4,etp=4",
        "dp=16,ep=16",
        "dp=16,etp=16",
        "dp=8,tp=2,ep=2,etp=8",
    ],
)
def test_sixteen_cards_of_experts_equal_experts_cut_in_sixteen(tmp_path_factory: Any, layout: str) -> None:
    sizes = {"num_local_experts": 16, "num_attention_heads": 16, "intermediate_size": 32}
    path = save(tmp_path_factory.mktemp("sixteen"), "mixtral", 3, **sizes)
    result = run(path, layout, max_new_tokens=2, prompt_ids=(tuple(PROMPTS[2]),))
    check(result, [reference(path, PROMPTS[2], 2)])


@pytest.mark.parametrize(
    "layout", ["dp=2,ep=2", "dp=4,ep=4", "dp=2,tp=2,pp=2,ep=4", "dp=3,tp=4,ep=3,etp=2", "dp=4,ep=2,etp=2"]
)
def test_without_numbers_the_recorded_loads_give_the_same_spans(checkpoint, layout: str) -> None:
    path, _ = checkpoint("mixtral")
    on = run(path, layout, logits=False)
    loads = Recorded({record.step.index: record.routed for record in on.records})
    off = run(path, layout, loads, payload=False, logits=False)
    assert on.spans == off.spans and on.memory == off.memory
    even = run(path, layout, payload=False, logits=False)
    assert even.spans != on.spans, "even loads are not what these numbers routed"


@pytest.mark.parametrize("layout", ["dp=2,ep=2", "dp=3,tp=4,ep=3,etp=2"])
def test_every_rank_counts_what_the_loads_of_all_say(checkpoint, layout: str) -> None:
    path, _ = checkpoint("mixtral")
    prepared = prepare(job(path, layout))
    plan, requests = prepared.plan, prepared.requests()
    memory = plan.memory(range(plan.layout.cards))
    memory.load(0)
    step = plan.lanes(requests).next_step()
    assert step is not None
    memory.begin(step, requests, 0)
    numbers = Numbers(plan, prepared.checkpoint)
    seen: dict[int, Any] = {}
    execute = numbers.payload.run
    numbers.payload.run = lambda *given: seen.update(execute(*given)) or seen  # type: ignore[method-assign]
    routed = numbers.run(step, requests, memory.pool).routed
    for rank, binding in enumerate(step_bindings(plan, step, routed)):
        written = seen[rank]
        assert {"layers.0.experts", "layers.0.sent", "layers.0.received", "layers.0.local"} <= written.keys()
        assert written == {name: binding.extents[name] for name in written}


def test_what_crosses_links_is_the_rows_for_other_cards_there_and_back(checkpoint) -> None:
    """Rows of 48 floats of 4 bytes, and counts of 7 experts once a layer; every pair of cards is a link apart."""
    path, _ = checkpoint("mixtral")
    result = run(path, "dp=2,ep=2", cluster="full-mesh-8", logits=False)
    rows = counts = 0
    experts = [range(4), range(4, 7)]
    for record in result.records:
        for loads in record.routed.values():
            for holder in range(2):
                rows += sum(int(loads[holder, 0, expert]) for expert in experts[1 - holder])
            counts += 7
    moved = {row.kind: row for row in result.report.collectives}
    assert set(moved) == {"all_to_all"} and moved["all_to_all"].axis == "ep"
    assert moved["all_to_all"].bytes == 2 * rows * 48 * 4 + counts * 4
    assert moved["all_to_all"].count == len(result.records) * 3 * 3


def test_experts_of_all_replicas_are_held_once_and_all_else_by_every_replica(checkpoint) -> None:
    path, _ = checkpoint("mixtral")
    graph = open_checkpoint(path).graph
    experts = 3 * 7 * 3 * 48 * 56
    held = [card.by_tag["weight"] for card in run(path, "dp=4,ep=4", payload=False, logits=False).report.cards]
    assert sum(held) == 4 * (4 * (total_parameters(graph) - experts) + experts)
    assert Counter(held) == {held[0]: 3, held[3]: 1}, "two experts each, and the last one alone"


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (Layout(dp=4, ep=3), "at tp=1,dp=4: .*ep must divide 4 and be at most 7 experts; choose ep from 1, 2, 4"),
        (Layout(dp=8, ep=8), "choose ep from 1, 2, 4$"),
        (
            Layout(dp=4, tp=2, etp=3),
            "etp=3 does not fit .* be a multiple of it, .* width 56; choose etp from 1, 2, 4, 8",
        ),
        (Layout(dp=2, tp=4, ep=2, etp=3), "choose etp from 1, 2, 4$"),
        (Layout(dp=2, tp=4, ep=3, etp=2), "ep must divide 4 and be at most 7 experts; choose ep from 1, 2, 4$"),
    ],
)
def test_a_placement_that_does_not_fit_names_those_that_do(checkpoint, layout: Layout, message: str) -> None:
    graph = open_checkpoint(checkpoint("mixtral")[0]).graph
    with pytest.raises(ConfigError, match=message):
        check_layout(layout, graph, None)


def test_few_rows_have_room_for_all_that_can_arrive_and_many_for_twice_an_even_share(checkpoint) -> None:
    """Top 2 of 7 experts over 4 replicas of one card: all may go to one of them, half a share each is even."""
    graph = open_checkpoint(checkpoint("mixtral")[0]).graph
    for tokens, arriving in ((40, 4 * 40 * 2), (1 << 13, 4 * (1 << 13) * 2), (1 << 14, 1 << 16), (1 << 20, 1 << 22)):
        extents = room_extents(graph, Layout(dp=4, ep=4), tokens)
        assert extents == {"sent.x2": (2 * tokens,), "received.x2of7": (arriving,)}
    assert room_extents(graph, Layout(tp=4, ep=4), 40) == {}, "no token travels within a holder"


def test_loads_beyond_the_room_are_refused_with_what_helps(checkpoint) -> None:
    path, _ = checkpoint("mixtral")

    options: dict[str, Any] = {"payload": False, "max_new_tokens": None, "logits": False, "expert_room": "2"}
    sizes = {"prompt_ids": (), "batch": 1024, "input_len": 120, "output_len": 0}
    with pytest.raises(ConfigError, match=r"layer 0: 245760 rows .* card 0, .* room for 122880; give more with --exp"):
        run(path, "dp=4,ep=4", all_to_two, **{**options, **sizes})


def all_to_two(routed: Any) -> Any:
    """Every token to the first two experts, which stand on the first card."""
    return np.array([[[tokens] * 2 + [0] * 5] for tokens in routed.tokens])


@pytest.mark.parametrize(
    ("routing", "given", "room"),
    [
        (None, None, 2 * 61440),  # numbers on: twice an even share, 1024 * 120 tokens * 2 choices over 4 cards
        (all_to_two, None, 245760),
        (all_to_two, "1.5", 92160),
        (all_to_two, "full", 4 * 61440),
        (None, "full", 4 * 61440),
    ],
)
def test_room_follows_from_the_routing_or_from_what_is_asked_for(
    checkpoint, routing: Any, given: str | None, room: int
) -> None:
    sizes = {"prompt_ids": (), "batch": 1024, "input_len": 120, "output_len": 0, "max_new_tokens": None}
    options = {**sizes, "payload": False, "logits": False, "expert_room": given}
    plan = replace(prepare(job(checkpoint("mixtral")[0], "dp=4,ep=4", **options)).plan, routing=routing)
    assert plan.largest.extents["received.x2of7"] == (room,)


def test_jobs_of_other_lengths_get_room_in_proportion(checkpoint) -> None:
    sizes = {"prompt_ids": (), "batch": 1024, "input_len": 120, "output_len": 0, "max_new_tokens": None}
    plan = prepare(job(checkpoint("mixtral")[0], "dp=4,ep=4", **sizes, payload=False, logits=False)).plan
    assert with_proportional_room(plan) is plan, "even loads have room as it is"
    skewed = with_proportional_room(replace(plan, routing=all_to_two))
    assert (skewed.routing, skewed.expert_room) == (None, 4.0)
    assert skewed.largest == replace(plan, routing=all_to_two).largest


@pytest.mark.parametrize(
    ("layout", "changes", "warning"),
    [
        ("dp=4", {}, "1 of dp=4 replicas have no sequence"),
        ("dp=2", {}, "replicas take their steps together, though no token travels"),
        ("tp=2", {"micro_batches": 2}, "--micro-batches 2 at pp=1"),
        ("pp=2", {"micro_batches": 5}, "more than the 3 sequences of a replica"),
        ("pp=2", {"sequence_parallel": True}, "--sequence-parallel changes nothing at tp=1"),
        ("dp=2,ep=2", {}, None),
    ],
)
def test_layouts_that_do_not_do_what_one_may_think_are_told(
    checkpoint, layout: str, changes: dict[str, Any], warning: str | None
) -> None:
    told = layout_warnings(prepare(job(checkpoint("mixtral")[0], layout, **changes)).plan)
    assert any(warning in text for text in told) if warning else not told
