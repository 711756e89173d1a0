"""Cards whose memory is the very same share one, and everything is as if each had its own."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siltwin.emulator.hbm import OutOfMemory
from siltwin.emulator.spec import load_card
from siltwin.isa.dtype import BF16
from siltwin.models.blocks import Graph
from siltwin.models.config import read_config
from siltwin.models.graph import build_graph
from siltwin.runtime.layout import Layout
from siltwin.runtime.plan import JobPlan, Lengths

CONFIG = {
    "model_type": "mistral",
    "vocab_size": 99,  # uneven over tensor-parallel ranks
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "sliding_window": 24,
    "tie_word_embeddings": False,
}
CARD = load_card("ascend-910b2")
GRAPH: Graph = build_graph(read_config(CONFIG))


def plan_of(layout: Layout, sequences: tuple[Lengths, ...], **options: Any) -> JobPlan:
    return JobPlan(GRAPH, layout, CARD, BF16, BF16, sequences, **options)


def followed(plan: JobPlan, *, folded: bool, capacity_bytes: int | None = None) -> tuple[dict[int, Any], Any]:
    """What every card's memory did over a job, a step a microsecond, and the out-of-memory that ended it."""
    memory, requests = plan.memory(plan.alike if folded else range(plan.layout.cards), capacity_bytes), plan.requests()
    lanes, now, failed = plan.lanes(requests), 0, None
    try:
        memory.load(0)
        for request in requests:
            memory.grow_to(request, request.cached_len, 0)
        while (step := lanes.next_step()) is not None or lanes.in_flight:
            if step is not None:
                memory.begin(step, requests, now)
                continue
            now += 10**6
            for request in lanes.complete(lanes.oldest, None):
                memory.release(request, now)
        memory.unload(now)
    except OutOfMemory as error:
        failed = {key: value for key, value in vars(error).items()}
    seen = {
        rank: (list(hbm.history()), hbm.peak_bytes, hbm.peak_ps, dict(hbm.peak_by_tag), hbm.high_water_bytes)
        for rank, hbm in memory.hbm.items()
    }
    return seen, failed


lengths = st.builds(Lengths, st.integers(1, 60), st.integers(1, 40), st.sampled_from([0, 0, 17, 64]))
layouts = st.sampled_from([Layout(tp=2, dp=3), Layout(dp=4), Layout(pp=2, dp=2), Layout(tp=2, cp=2, dp=2)])


@settings(max_examples=40, deadline=None)
@given(layouts, st.lists(lengths, min_size=1, max_size=2), st.integers(1, 9), st.integers(1, 2), st.data())
def test_folded_memory_is_that_of_every_card(layout, kinds, count, micro_batches, data) -> None:
    sequences = tuple(data.draw(st.sampled_from(kinds)) for _ in range(count))
    options = {"chunk_tokens": data.draw(st.sampled_from([None, 16])), "micro_batches": micro_batches}
    if layout.cp == 1:
        options["kv_pages"] = data.draw(st.sampled_from(["unified", "ideal"]))
    plan = plan_of(layout, sequences, **options)
    alone, failed = followed(plan, folded=False)
    assert followed(plan, folded=True) == (alone, None) and failed is None
    most = max(high_water for *_, high_water in alone.values())
    tight = most - data.draw(st.integers(1, (most - CARD.hbm.reserved_bytes) // 2))
    _, failed = followed(plan, folded=False, capacity_bytes=tight)
    assert failed is not None and followed(plan, folded=True, capacity_bytes=tight)[1] == failed


def test_equal_replicas_stand_for_one_another() -> None:
    assert plan_of(Layout(dp=4), (Lengths(20, 4),) * 8).alike == (0, 0, 0, 0)
    assert plan_of(Layout(dp=4), (Lengths(20, 4),) * 6).alike == (0, 0, 2, 2)  # two have a request more


def test_one_longer_request_shows_in_the_cards_of_its_replica_alone() -> None:
    """Requests are dealt in turn: number 6 of 8 is the second one of replica 2 of 4, whose cards are 4 and 5."""
    equal = [Lengths(20, 4)] * 8
    longer = [*equal[:6], Lengths(40, 4), equal[7]]
    layout = Layout(tp=2, dp=4)
    plain, changed = (plan_of(layout, tuple(lengths)) for lengths in (equal, longer))
    assert plain.alike == (0, 1) * 4  # of 99 ids the first card has 50 and the second 49
    assert changed.alike == (0, 1, 0, 1, 4, 5, 0, 1)
    peaks = [followed(changed, folded=True)[0][rank][3]["kv"] for rank in range(8)]
    # 23 tokens take two pages and 43 take three; a page is 16 tokens x 2 layers x k and v x one head of 8 x 2 bytes
    assert peaks == [4 * 1024] * 4 + [5 * 1024] * 2 + [4 * 1024] * 2


@pytest.mark.parametrize("order", [(20, 40), (40, 20)])
def test_the_order_of_requests_matters_within_a_replica(order: tuple[int, int]) -> None:
    """Replica 0 has a request of 20 tokens, then one of 40; replica 1 has the same two, in this order."""
    sequences = (Lengths(20, 4), Lengths(order[0], 4), Lengths(40, 4), Lengths(order[1], 4))
    assert plan_of(Layout(dp=2), sequences).alike == ((0, 0) if order == (20, 40) else (0, 1))
