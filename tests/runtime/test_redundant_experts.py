"""Experts in several places: packed evenly by their loads, counted in memory, taken in turn, to the same numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import SIZES, reference, save
from hypothesis import given
from hypothesis import strategies as st

from siltwin.isa.errors import ConfigError
from siltwin.runtime.dealing import deal_slots
from siltwin.runtime.job import Job
from siltwin.runtime.prepare import prepare
from siltwin.runtime.replicas import placement_of, replica_table
from siltwin.runtime.routing import Recorded
from siltwin.runtime.run import RunResult, run_job

NEW_TOKENS = 4
PROMPTS = [[(5 * index + 3 * length) % SIZES["vocab_size"] for index in range(length)] for length in (1, 9, 40)]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("copies"), "mixtral", 0)


def job(path: Path, layout: str, redundant: int, **changes: Any) -> Job:
    options = {
        "dtype": "float32",
        "kv_dtype": "float32",
        "prompt_ids": tuple(map(tuple, PROMPTS)),
        "max_new_tokens": NEW_TOKENS,
        "ignore_eos": True,
        "redundant_experts": redundant,
    }
    return Job(str(path), layout=layout, **{**options, **changes})


def run(path: Path, layout: str, redundant: int, routing: Any = None, **changes: Any) -> RunResult:
    return run_job(job(path, layout, redundant, **changes), routing=routing)


@pytest.mark.parametrize(
    ("layout", "redundant"),
    [("dp=2,ep=2", 3), ("dp=2,tp=2,ep=4", 5), ("tp=4,ep=2", 1), ("dp=8,ep=8", 1), ("dp=2,tp=2,pp=2,ep=4", 9)],
)
def test_copies_give_the_logits_of_transformers(path: Path, layout: str, redundant: int) -> None:
    """Seven experts and one copy stand on eight cards, which seven alone could not fill."""
    result = run(path, layout, redundant, logits=True)
    assert result.logits is not None
    for index, prompt in enumerate(PROMPTS):
        logits, tokens, rows = reference(path, prompt, NEW_TOKENS)
        assert np.abs(result.logits[f"logits_{index}"] - logits).max() <= 1e-4 * logits.std()
        assert np.abs(result.logits[f"decode_logits_{index}"] - np.stack(rows)).max() <= 1e-4 * logits.std()
        assert list(result.report.requests[index].tokens) == tokens


@pytest.mark.parametrize("layout", ["dp=2,tp=2,ep=4", "tp=4,ep=2"])
def test_without_numbers_the_recorded_loads_of_slots_give_the_same_spans(path: Path, layout: str) -> None:
    on = run(path, layout, 3)
    loads = Recorded({record.step.index: record.routed for record in on.records})
    off = run(path, layout, 3, loads, payload=False)
    assert on.spans == off.spans and on.memory == off.memory
    even = run(path, layout, 3, payload=False)
    for routed in (record.routed for record in (*on.records, *even.records)):
        for layer in range(3):
            assert routed[f"layers.{layer}.slots"].sum() == routed[f"layers.{layer}.experts"].sum()


def test_every_copy_is_counted_in_memory(path: Path) -> None:
    """An expert of a layer is three matrices of 48 by 56; 3 of 10 slots are copies, 5 slots stand on each card."""
    weights = [card.by_tag["weight"] for card in run(path, "dp=2,ep=2", 3, payload=False).report.cards]
    alone = [card.by_tag["weight"] for card in run(path, "dp=2,ep=2", 0, payload=False).report.cards]
    expert = 3 * (3 * 48 * 56) * 4
    assert [more - less for more, less in zip(weights, alone, strict=True)] == [1 * expert, 2 * expert]


def test_a_hot_expert_is_copied_and_its_cards_share_its_rows(path: Path, tmp_path: Path) -> None:
    """Expert 6 of every layer is chosen by every token; with copies on all cards each serves a quarter of it."""
    file = tmp_path / "loads.json"
    file.write_text(json.dumps([1, 1, 1, 1, 1, 1, 50]))
    plan = prepare(job(path, "dp=4,ep=4", 5, expert_loads=str(file))).plan
    assert [placement.count(6) for placement in plan.placements.values()] == [4, 4, 4]

    def hot(routed: Any) -> Any:
        return np.array([[[11, 11, 11, 11, 10, 10, 64] if tokens else [0] * 7] for tokens in routed.tokens])

    options: dict[str, Any] = {"payload": False, "prompt_ids": ((1,) * 64,) * 4, "max_new_tokens": 1}
    plain = run(path, "dp=4,ep=4", 0, hot, **options)
    copied = run(path, "dp=4,ep=4", 5, hot, expert_loads=str(file), **options)
    products = [
        [span.end_ps - span.start_ps for span in result.spans if span.mnemonic == "grouped_matmul"]
        for result in (plain, copied)
    ]
    assert max(products[1]) < max(products[0])
    rows = copied.records[0].routed["layers.0.slots"].sum(axis=(0, 1))
    placement = plan.placements["layers.0"]
    assert [rows[slot] for slot, expert in enumerate(placement) if expert == 6] == [64] * 4


@given(st.lists(st.integers(0, 100), min_size=2, max_size=12), st.integers(2, 5), st.integers(0, 10))
def test_every_expert_stands_somewhere_and_copies_apart(loads: list[int], members: int, extra: int) -> None:
    members = min(members, len(loads))
    slots = len(loads) + min(extra, len(loads) * (members - 1))
    placement = placement_of(loads, slots, members)
    assert len(placement) == slots and set(placement) == set(range(len(loads)))
    assert max(placement.count(expert) for expert in placement) <= members
    table = replica_table(placement, len(loads), 1 + members)
    for expert, (count, *own) in enumerate(table.tolist()):
        assert [slot for slot, held in enumerate(placement) if held == expert] == own[:count]
    dealt = deal_slots(np.array([[loads], [loads[::-1]]]), placement, 2)
    for expert, pair in enumerate(zip(loads, loads[::-1], strict=True)):
        own = dealt[:, 0, [slot for slot, held in enumerate(placement) if held == expert]]
        assert own.sum(axis=1).tolist() == list(pair)
        assert all(np.ptp(part) <= 1 for part in (*own, own.sum(axis=0))), "within a sender, and over both"


def test_the_most_loaded_are_copied_and_packed_to_balance() -> None:
    """90 in two halves of 45 beside 40, 30, 20, 10, 10 on two cards of four: 45+30+20+10... and 45+40+10+10."""
    loads = [90, 40, 30, 20, 10, 10, 5]
    placement = placement_of(loads, 8, 2)
    halves = placement[:4], placement[4:]
    assert placement.count(0) == 2 and all(0 in half for half in halves)
    totals = [sum(loads[e] / placement.count(e) for e in half) for half in halves]
    assert abs(totals[0] - totals[1]) <= 10


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[1, 2]", "layer 0 has 2 loads for 7 experts"),
        ('{"9": [1]}', "'9' is no layer with experts"),
        ('{"0": [1, 2, 3, 4, 5, 6, -7]}', "must be a list of numbers, 0 or more"),
        ("7", "give a list, or lists by layer index"),
        ("{}", "names no layer"),
        ("{", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
    ],
)
def test_loads_that_cannot_be_are_refused(path: Path, tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "loads.json"
    file.write_text(content)
    with pytest.raises(ConfigError, match=message):
        prepare(job(path, "dp=2,ep=2", 1, expert_loads=str(file)))


@pytest.mark.parametrize(
    ("layout", "redundant", "message"),
    [("tp=2", 1, "every card has all experts at ep=1"), ("dp=2,ep=2", 8, "leave room for 7")],
)
def test_copies_without_a_place_are_refused(path: Path, layout: str, redundant: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        prepare(job(path, layout, redundant))


def test_cards_with_and_without_an_expert_of_their_own_meet_where_each_holds_as_many_slots() -> None:
    """64 experts do not divide by 24 cards and 72 slots do: ranks have two sets of tables that name the same counts."""
    asked = {"card": "ascend-910c", "cluster": "cloudmatrix-384", "layout": "dp=24,ep=24", "redundant_experts": 8}
    lengths = {"batch": 24, "cached_len": 64, "input_len": 0, "output_len": 1, "payload": False}
    ends = [
        run_job(Job("OLMoE-1B-7B", engine=engine, **asked, **lengths)).records[0].end_ps
        for engine in ("compiled", "simpy")
    ]
    assert ends[0] == ends[1]
