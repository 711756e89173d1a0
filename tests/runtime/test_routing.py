"""Routing models: loads that are even, drawn or recorded, by hand and by law."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import SIZES, save
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from siltwin.cli import cli
from siltwin.isa.errors import ConfigError
from siltwin.models.checkpoint import open_checkpoint
from siltwin.runtime.binding import step_bindings
from siltwin.runtime.dealing import deal_evenly
from siltwin.runtime.dispatch import LayerLoads
from siltwin.runtime.drawing import draw
from siltwin.runtime.expert_room import parse_room
from siltwin.runtime.job import Job
from siltwin.runtime.layout import Layout
from siltwin.runtime.prepare import prepare
from siltwin.runtime.routing import Drawn, Even, Recorded, Routed, parse_routing
from siltwin.runtime.run import RunResult, run_job

PROMPTS = [[(5 * index + 3 * length) % SIZES["vocab_size"] for index in range(length)] for length in (1, 9, 40)]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("routing"), "mixtral", 0)


def test_what_does_not_divide_goes_to_cards_in_turn_and_there_to_experts_in_turn() -> None:
    """Two cards of two experts, two senders of 3 choices: one each, and the third to the sender's own card."""
    assert deal_evenly(np.array([[3, 3]]), 2, 4).tolist() == [[[1, 1, 1, 0], [1, 0, 1, 1]]]


def test_choices_left_over_go_to_cards_evenly_apart() -> None:
    """Four senders of 2 choices to four cards of one expert: two cards apart, from the sender's own on."""
    assert deal_evenly(np.array([[2] * 4]), 4, 4)[0].tolist() == [[1, 0, 1, 0], [0, 1, 0, 1]] * 2


def test_parts_without_tokens_leave_no_card_out() -> None:
    """Of four senders two have choices, two each: the second begins a card further on, though it is the third."""
    assert deal_evenly(np.array([[2, 0, 2, 0]]), 4, 4)[0].tolist() == [[1, 0, 1, 0], [0] * 4, [0, 1, 0, 1], [0] * 4]
    layout = Layout(tp=8, dp=16, ep=128)
    loads = LayerLoads(layout, Even()(Routed(1, 1, (1,) * 16, 16, 896, layout)))
    assert set(loads.arriving.reshape(-1).tolist()) == {2}, "16 tokens of 16 choices, one each in a replica"


def test_every_card_of_the_reference_prefill_gets_the_same() -> None:
    """128 parts of 512 tokens choose 16 of 896 experts on 128 cards: 64 from each, 1,170 or 1,171 for an expert."""
    layout = Layout(tp=8, dp=16, ep=128)
    routing = Even()
    loads = routing(Routed(0, 1, (4096,) * 16, 16, 896, layout))
    assert loads is routing(Routed(3, 90, (4096,) * 16, 16, 896, layout)), "layers and steps share one table"
    assert set(LayerLoads(layout, loads).by_card.reshape(-1).tolist()) == {64}
    assert loads.sum(axis=(0, 1)).reshape(128, 7).tolist() == [[1171, 1171, 1170, 1170, 1170, 1170, 1170]] * 128


@given(st.lists(st.integers(0, 40), min_size=1, max_size=6), st.integers(1, 6), st.integers(1, 20), st.data())
def test_even_loads_count_every_choice_and_leave_no_expert_behind(
    tokens: list[int], cards: int, experts: int, data: st.DataObject
) -> None:
    cards = min(cards, experts)
    top_k = data.draw(st.integers(1, experts))
    choices = np.array([tokens]) * top_k
    (loads,) = deal_evenly(choices, cards, experts)
    assert loads.sum(axis=1).tolist() == choices[0].tolist()
    assert all(loads[sender].max() <= count for sender, count in enumerate(tokens)), "a token chooses distinct experts"
    assert all(np.ptp(part) <= 1 for part in loads) or experts % cards == 0
    totals = loads.sum(axis=0)
    if experts % cards:
        assert np.ptp(totals) <= 1
    else:
        assert all(np.ptp(card) <= 1 for card in totals.reshape(cards, -1))
        assert np.ptp(loads.reshape(len(tokens), cards, -1).sum(axis=2), axis=1).max() <= 1


def chances(weights: list[float], top_k: int) -> list[float]:
    """How likely each of few experts is among `top_k` successive draws without replacement, by all their orders."""
    found = [0.0] * len(weights)
    for order in itertools.permutations(range(len(weights)), top_k):
        chance, left = 1.0, sum(weights)
        for expert in order:
            chance, left = chance * weights[expert] / left, left - weights[expert]
        for expert in order:
            found[expert] += chance
    return found


@pytest.mark.parametrize(("experts", "top_k"), [(3, 2), (5, 1), (5, 4), (6, 3)])
@pytest.mark.parametrize("skew", [0.0, 1.0, 3.0])
def test_experts_are_drawn_as_often_as_successive_draws_say(experts: int, top_k: int, skew: float) -> None:
    tokens = 40_000
    ranks = np.random.default_rng(experts).permutation(experts)
    counts = draw(np.array([tokens]), top_k, ranks, skew, 11)[0][ranks]
    for count, chance in zip(counts, chances([(1 + r) ** -skew for r in range(experts)], top_k), strict=True):
        assert abs(int(count) - tokens * chance) <= 5 * (tokens * chance * (1 - chance)) ** 0.5 + 1


def test_many_experts_are_drawn_as_often_by_the_slow_path_as_by_an_oracle() -> None:
    """12 of 40 at skew 2, where draws among all seldom find a new one, against Gumbel's top k by NumPy."""
    tokens, experts, top_k = 30_000, 40, 12
    counts = draw(np.array([tokens]), top_k, np.arange(experts), 2.0, 5)[0].astype(float)
    rng = np.random.default_rng(3)
    logits = -2 * np.log(np.arange(1, experts + 1)) + rng.gumbel(size=(tokens, experts))
    oracle = np.bincount(np.argsort(-logits, axis=1)[:, :top_k].reshape(-1), minlength=experts)
    share = oracle / tokens
    assert (np.abs(counts - oracle) <= 5 * np.sqrt(2 * tokens * share * (1 - share)) + 2).all()


def test_no_token_draws_an_expert_twice_and_the_extremes_are_exact() -> None:
    tokens = np.array([7, 0, 70_000])
    assert draw(tokens, 4, np.arange(4), 1.0, 1).tolist() == [[count] * 4 for count in (7, 0, 70_000)]
    ranks = np.array([2, 0, 1, 3])
    assert draw(tokens, 2, ranks, 64.0, 1).tolist() == [[count, 0, count, 0] for count in (7, 0, 70_000)]


def test_draws_follow_from_seed_step_layer_and_holder_alone() -> None:
    layout = Layout(dp=3, tp=2, ep=6)
    routed = Routed(1, 4, (50, 60, 70), 2, 12, layout)
    loads = Drawn(1.0, 7)(routed)
    assert loads.shape == (3, 1 * 2, 12) and loads.sum() == 180 * 2
    assert (loads == Drawn(1.0, 7)(routed)).all()
    assert (loads[0] == Drawn(1.0, 7)(replace(routed, tokens=(50, 1, 1)))[0]).all()
    for other in (replace(routed, step=2), replace(routed, layer=5)):
        assert (loads != Drawn(1.0, 7)(other)).any()
    assert (loads != Drawn(1.0, 8)(routed)).any()
    steps = [Drawn(2.0, 7)(replace(routed, tokens=(9000,) * 3, step=step)).sum(axis=(0, 1)) for step in (1, 2)]
    assert (np.argsort(-steps[0])[:3] == np.argsort(-steps[1])[:3]).all(), "who is popular stays from step to step"


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([
    Layout(tp=4, ep=2), Layout(dp=2, ep=2), Layout(dp=4, tp=2, ep=4), Layout(dp=4, tp=2, ep=8, pp=2),
    Layout(dp=2, tp=4, ep=4, etp=2), Layout(dp=4, ep=2, etp=2), Layout(dp=8, ep=2, etp=2, redundant=3),
]), st.integers(0, 1 << 30))  # fmt: skip
def test_rows_of_an_exchange_are_those_that_a_walk_over_ranks_finds(layout: Layout, seed: int) -> None:
    experts = 9
    slots = layout.slots(experts)
    loads = np.random.default_rng(seed).integers(0, 9, (layout.holders, layout.expert_parts, slots))
    own = LayerLoads(layout, loads)
    axis = "exchange" if layout.cuts > 1 else "ep"
    for rank in range(layout.cards):
        assert own.of_holders.of(rank) == tuple(loads[layout.holder_of(rank)].reshape(-1).tolist())
        if not layout.experts_travel:
            continue
        group = [other % layout.stage_cards for other in layout.groups(rank)[axis]]
        shares = {member: layout.experts_of(member, experts) for member in group}

        def rows(sender: int, home: int, shares: dict[int, Any] = shares) -> int:
            to = shares[home]
            return int(loads[layout.holder_of(sender), shares[sender].part, to.first : to.first + to.count].sum())

        me = rank % layout.stage_cards
        assert own.sent.of(rank) == tuple(rows(me, home) for home in group)
        assert own.received.of(rank) == tuple(rows(sender, me) for sender in group)
        mine = shares[me]
        local = [
            sum(int(loads[layout.holder_of(sender), shares[sender].part, mine.first + e]) for sender in group)
            for e in range(mine.count)
        ]
        assert own.local[mine.count].of(rank) == tuple(local)


def job(path: Path, layout: str, **changes: Any) -> Job:
    options = {"dtype": "float32", "kv_dtype": "float32", "max_new_tokens": 3, "ignore_eos": True}
    options |= {"prompt_ids": tuple(map(tuple, PROMPTS))}
    return Job(str(path), layout=layout, **{**options, **changes})


def test_ranks_that_bind_equal_values_have_the_same_extents(path: Path) -> None:
    """Of four replicas the last, with a longer prompt, binds other values."""
    prepared = prepare(job(path, "dp=4", payload=False, prompt_ids=((1,) * 8,) * 3 + ((1,) * 9,)))
    step = prepared.plan.lanes(prepared.requests()).next_step()
    bound = step_bindings(prepared.plan, step, prepared.plan.routed(step))
    assert [binding.extents is bound[0].extents for binding in bound] == [True, True, True, False]


SAVED = [
    ("tp=4,ep=2", {}),
    ("dp=2,tp=2,ep=4", {"redundant_experts": 3}),
    ("dp=4,ep=2,etp=2", {}),
    ("pp=2,dp=2,ep=2", {"micro_batches": 2}),
    ("cp=2,ep=2", {"chunk_tokens": 16}),
]


@pytest.mark.parametrize(("layout", "changes"), [SAVED[1], *(pytest.param(*s, marks=pytest.mark.long) for s in SAVED)])
def test_a_saved_routing_gives_the_spans_of_the_run_that_wrote_it(
    path: Path, tmp_path: Path, layout: str, changes: dict[str, Any]
) -> None:
    ids, file = tmp_path / "ids.json", tmp_path / "routing.json"
    ids.write_text(json.dumps(PROMPTS))
    words = ["run", str(path), "--layout", layout, "--prompt-ids", str(ids), "--max-new-tokens", "3", "--ignore-eos"]
    words += ["--dtype", "float32", "--kv-dtype", "float32", "--save-routing", str(file), "--json", str(tmp_path / "r")]
    words += [word for name, value in changes.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "r").read_text())
    off = run_job(job(path, layout, payload=False, routing=f"recorded:{file}", **changes))
    again = json.loads(off.report.model_dump_json())
    for part in ("steps", "cards", "collectives", "totals"):
        assert again[part] == report[part], part
    on = run_job(job(path, layout, **changes))
    assert on.spans == off.spans and on.memory == off.memory
    even: RunResult = run_job(job(path, layout, payload=False, **changes))
    assert even.spans != on.spans, "even loads are not what these numbers routed"
    assert not any("every expert is given as many" in text for text in off.report.warnings)


def test_drawn_loads_that_were_saved_give_the_same_spans_again(path: Path, tmp_path: Path) -> None:
    """Of a skewed run on cards that are never equal; even loads take less time, and copies by what was saved too."""
    file = tmp_path / "routing.json"
    sized = ["--no-payload", "--batch", "16", "--input-len", "100", "--output-len", "1", "--layout", "dp=4,ep=4"]
    words = ["run", str(path), *sized, "--dtype", "float32", "--kv-dtype", "float32", "--routing", "zipf:2"]
    result = CliRunner().invoke(cli, [*words, "--save-routing", str(file)])
    assert result.exit_code == 0 and "Expert load (zipf:2)" in result.output, result.output
    options: dict[str, Any] = {"payload": False, "prompt_ids": (), "max_new_tokens": None, "ignore_eos": False}
    options |= {"batch": 16, "input_len": 100, "output_len": 1}
    drawn, again, even, copied = (
        run_job(job(path, "dp=4,ep=4", **options, **more))
        for more in (
            {"routing": "zipf:2"},
            {"routing": f"recorded:{file}"},
            {},
            {"routing": "zipf:2", "redundant_experts": 5, "expert_loads": str(file)},
        )
    )
    assert again.spans == drawn.spans and again.memory == drawn.memory
    skewed, level, spread = (result.report.expert_loads for result in (drawn, even, copied))
    assert skewed and level and spread
    assert spread.largest.card_over_mean < skewed.largest.card_over_mean
    # 3200 choices of seven experts are 457 each and one more for the first, which stands with another on a card
    assert level.largest.card_over_mean == pytest.approx((458 + 457) / (3200 / 4))
    assert even.report.totals.elapsed_ps < drawn.report.totals.elapsed_ps


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("odd", "--routing 'odd' is none; give even, multinomial, zipf:A or recorded:FILE"),
        ("zipf", "give even"),
        ("even:1", "give even"),
        ("zipf:-1", "exponent must be a number from 0 .* to 64"),
        ("zipf:nan", "zipf:nan: the exponent"),
        ("zipf:1e9", "zipf:1e9: the exponent"),
        ("zipf:", "zipf:: the exponent"),
        ("recorded:", "names no file"),
    ],
)
def test_a_routing_that_is_none_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_routing(text)


@pytest.mark.parametrize("text", ["0", "0.99", "-2", "nan", "inf", "all", ""])
def test_a_room_that_is_none_is_refused(text: str) -> None:
    assert parse_room("1.25") == 1.25 and parse_room("full") == float("inf") and parse_room(None) is None
    with pytest.raises(ConfigError, match=r"must be a number, 1 \(an even share\) or more, or full"):
        parse_room(text)


def test_routing_is_for_models_with_experts_and_runs_without_numbers(path: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--routing zipf:1 says what experts get where no numbers do"):
        job(path, "tp=1", routing="zipf:1")
    dense = save(tmp_path, "llama", 0)
    with pytest.raises(ConfigError, match="--routing multinomial: llama-0 has no experts; leave it out"):
        prepare(job(dense, "tp=1", payload=False, routing="multinomial"))


def test_a_routing_that_cannot_be_saved_is_refused_before_the_run_and_never_hides_an_out_of_memory(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "routing.json"
    words = ["--no-payload", "--batch", "1", "--input-len", "8", "--output-len", "1", "--save-routing", str(file)]
    tiny = ["--set", "hbm.capacity_bytes=64KiB", "--set", "hbm.reserved_bytes=0"]
    out = CliRunner().invoke(cli, ["run", str(path), *words, *tiny])
    assert out.exit_code == 3 and "OUT OF MEMORY" in out.output and not file.exists()

    def never(*_: object) -> None:
        raise AssertionError("it ran")

    monkeypatch.setattr("siltwin.runtime.run._run", never)
    result = CliRunner().invoke(cli, ["run", "Llama-3.1-405B", "--scale", *words])
    assert result.exit_code == 2 and "has no experts; leave it out" in result.output


MODEL = {"model": "mixtral-0"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not valid JSON"),
        ("[1]", "give a file that --save-routing wrote"),
        ('{"model": "other", "steps": {"0": {}}}', "recorded of 'other', and the job is mixtral-0's"),
        (json.dumps(MODEL | {"steps": {}}), "give a file that --save-routing wrote"),
        (json.dumps(MODEL | {"steps": {"x": {}}}), "step 'x' is none"),
        (json.dumps(MODEL | {"steps": {"0": {"layers.0.experts": [[1], [2, 3]]}}}), "must be loads by holder"),
        (json.dumps(MODEL | {"steps": {"0": {"layers.0.experts": [[[-1, 2]]]}}}), "must be loads by holder"),
        (json.dumps(MODEL | {"steps": {"0": {"layers.0.experts": [[[0.5, 2]]]}}}), "must be loads by holder"),
        (json.dumps(MODEL | {"steps": {"1": {}}}), "step 0, layers.0.experts: nothing is recorded; it holds 1 steps"),
        (json.dumps(MODEL | {"steps": {"0": {"layers.0.experts": [[[1] * 7]] * 2}}}), "must be .1, 1, 7. "),
        (json.dumps(MODEL | {"steps": {"0": {"layers.0.experts": [[[14] * 6 + [15]]]}}}), "chose 99 times, .* 50 tok"),
    ],
)
def test_a_recording_of_another_job_is_refused(path: Path, tmp_path: Path, content: str, message: str) -> None:
    assert open_checkpoint(path).graph.name == "mixtral-0"
    file = tmp_path / "routing.json"
    file.write_text(content)
    with pytest.raises(ConfigError, match=message):
        run_job(job(path, "tp=1", payload=False, routing=f"recorded:{file}"))


def test_a_recording_says_which_experts_to_copy(path: Path, tmp_path: Path) -> None:
    """Expert 4 is chosen most over both steps, though not in the first."""
    steps = {
        str(index): {f"layers.{layer}.experts": [[loads]] for layer in range(3)}
        for index, loads in enumerate(([1, 2, 3, 4, 5, 7, 6], [0, 0, 0, 0, 9, 0, 0]))
    }
    file = tmp_path / "routing.json"
    file.write_text(json.dumps({"model": "mixtral-0", "steps": steps}))
    plan = prepare(job(path, "dp=4,ep=4", redundant_experts=1, expert_loads=str(file))).plan
    assert [[placement.count(expert) for expert in range(7)] for placement in plan.placements.values()] == [
        [1, 1, 1, 1, 2, 1, 1]
    ] * 3


def test_recorded_loads_of_slots_are_those_of_the_file() -> None:
    layout = Layout(dp=2, ep=2, redundant=1)
    slots = np.array([[[3, 0, 1, 2]], [[1, 1, 1, 3]]])
    loads = np.array([[[3, 1, 2]], [[2, 1, 3]]])
    routing = Recorded({0: {"layers.5.experts": loads, "layers.5.slots": slots}})
    routed = Routed(0, 5, (3, 3), 2, 3, layout)
    assert routing(routed) is loads and routing.slots(routed) is slots


def test_a_report_tells_how_uneven_the_load_was(path: Path, tmp_path: Path) -> None:
    """Two cards of four and three experts: 20 of 24 rows, and 9 of 24, over means of 12 and of 24 / 7, in layer 1."""
    steps = {
        str(step): {
            f"layers.{n}.experts": [[[9, 5, 3, 3, 2, 1, 1]]] if (step, n) == (0, 1) else [[[4, 4, 4, 3, 3, 3, 3]]]
            for n in range(3)
        }
        for step in (0, 1)
    }
    file = tmp_path / "routing.json"
    file.write_text(json.dumps({"model": "mixtral-0", "steps": steps}))
    sized = {"prompt_ids": ((1,) * 24,), "max_new_tokens": 1, "chunk_tokens": 12, "payload": False}
    found = run_job(job(path, "tp=2,ep=2", routing=f"recorded:{file}", **sized)).report.expert_loads
    assert found is not None and found.routing == "recorded"
    worst = found.largest
    assert (worst.layer, worst.step, worst.card, worst.expert, worst.rows) == (1, 0, 0, 0, 20)
    assert worst.card_over_mean == pytest.approx(20 / 12) and worst.expert_over_mean == pytest.approx(9 * 7 / 24)
    assert found.median_card_over_mean == pytest.approx(15 / 12)
    assert [layer.card_over_mean > 1.5 for layer in found.layers] == [False, True, False]
    text = CliRunner().invoke(cli, ["run", str(path), "--no-payload", "--batch", "1", "--input-len", "9"]).output
    assert "Expert load (even)" in text and "busiest card: 18 rows, 1 times the mean" in text
