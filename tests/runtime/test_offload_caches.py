"""Caches in host memory: no number changes, memory falls by what moved, and the host link's time is the step's."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import numpy as np
import pytest

from siltwin.isa.errors import ConfigError, NotYetError
from siltwin.isa.host_pages import HOST_LOAD_PAGES, HOST_STORE_ROWS
from siltwin.runtime.budget import Budget
from siltwin.runtime.helps import growths, helps_of
from siltwin.runtime.job import Job
from siltwin.runtime.prepare import prepare
from siltwin.runtime.run import RunResult, run_job

LAYERS = 5
DENSE = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 211,
    "max_position_embeddings": 65536,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e4,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
EXPERTS = {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
LATENT = {
    "model_type": "deepseek_v3",
    "q_lora_rank": None,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "num_key_value_heads": 4,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": LAYERS,  # none of them is reached
    "n_group": 1,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
    "moe_layer_freq": 1,
}
FAMILIES = {"dense": DENSE, "experts": DENSE | EXPERTS, "latent": DENSE | LATENT}
ROW = 2 * 2 * 16 * 2  # bytes of a token's keys and values in one layer of the dense model
IDS = (tuple(range(3, 40)), (2, 7, 1, 8))  # 37 tokens end in the middle of a page
CHUNKED = {"chunk_tokens": 17, "max_new_tokens": 3}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("caches")
    for name, config in FAMILIES.items():
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(config))
    return {name: str(folder / name / "config.json") for name in FAMILIES}


def run(model: str, **asked: Any) -> RunResult:
    return run_job(Job(model, ignore_eos=True, **asked))


def decode(model: str, cached_len: int = 1000, batch: int = 3, **asked: Any) -> RunResult:
    return run(model, payload=False, batch=batch, cached_len=cached_len, input_len=0, output_len=2, **asked)


def host_link(bytes_per_s: float) -> tuple[tuple[str, str], ...]:
    return (("host.bandwidth_bytes_per_s", str(bytes_per_s)),)


@pytest.mark.parametrize(
    ("family", "share", "asked"),
    [
        ("dense", "kv=1", {}),
        ("dense", "kv=0.5", {"layout": "pp=2", "micro_batches": 2}),
        ("dense", "kv=1", {"kv_dtype": "int8"}),
        ("latent", "kv=1", {"layout": "tp=2"}),
        ("latent", "kv=1", {"fuse": "rope-attention"}),
        ("experts", "experts=1,kv=1", {"layout": "tp=2,ep=2"}),
        ("experts", "kv=0.4", {"layout": "dp=2"}),
    ],
)
def test_caches_in_host_memory_give_the_same_bits(
    models: dict[str, str], family: str, share: str, asked: dict[str, Any]
) -> None:
    given = {"prompt_ids": IDS, "logits": True, **CHUNKED, **asked}
    stay, moved = run(models[family], **given), run(models[family], offload=share, **given)
    assert stay.logits is not None and moved.logits is not None and stay.logits
    for name, values in stay.logits.items():
        np.testing.assert_array_equal(moved.logits[name], values)
    assert any(span.mnemonic == "host_store_rows" for span in moved.spans)


def test_what_was_cached_before_the_job_lies_in_host_memory_too(models: dict[str, str]) -> None:
    given = {"batch": 2, "cached_len": 35, "input_len": 3, "output_len": 2, "logits": True}
    stay, moved = run(models["dense"], **given), run(models["dense"], offload="kv=1", **given)
    assert stay.logits is not None and moved.logits is not None
    for name, values in stay.logits.items():
        np.testing.assert_array_equal(moved.logits[name], values)


@pytest.mark.parametrize(
    ("family", "asked"),
    [
        ("dense", {"layout": "pp=2", "micro_batches": 2}),
        ("latent", {"layout": "tp=2"}),
        ("experts", {"layout": "dp=2"}),
    ],
)
def test_spans_are_the_same_on_both_calendars_with_numbers_and_without(
    models: dict[str, str], family: str, asked: dict[str, Any]
) -> None:
    sizes = {"batch": 2, "input_len": 37, "output_len": 2, "chunk_tokens": 17, "offload": "kv=0.7", **asked}
    off = run(models[family], payload=False, **sizes)
    assert off.spans == run(models[family], payload=False, engine="simpy", **sizes).spans
    assert off.spans == run(models[family], payload=False, fold=False, **sizes).spans
    if family != "experts":
        assert off.spans == run(models[family], **sizes).spans


@pytest.mark.parametrize(("share", "layers"), [(1.0, 5), (0.5, 2), (0.2, 1)])
@pytest.mark.parametrize("policy", ["paged", "preallocated"])
def test_memory_falls_by_the_caches_that_moved_and_keeps_two_to_stage_them(
    models: dict[str, str], share: float, layers: int, policy: str
) -> None:
    stay, moved = (decode(models["dense"], kv_policy=policy, **asked) for asked in ({}, {"offload": f"kv={share}"}))
    pages = 3 * -(-1001 // 16)  # the last token of two is not cached
    held = [one.report.cards[0].by_tag["kv"] for one in (stay, moved)]
    assert held == [LAYERS * pages * 16 * ROW, (LAYERS - layers + min(2, layers)) * pages * 16 * ROW]
    assert stay.report.cards[0].by_tag["weight"] == moved.report.cards[0].by_tag["weight"]


def test_a_layer_takes_what_the_host_link_takes_for_its_pages(models: dict[str, str]) -> None:
    slow = decode(models["dense"], offload="kv=1", overrides=host_link(1e9))
    card = prepare(Job(models["dense"], batch=1, input_len=4, payload=False)).plan.card
    fixed_ps = card.dispatch.host_ps + card.host.latency_ps + card.hbm.latency_ps
    stay = decode(models["dense"])
    for step, (record, alone) in enumerate(zip(slow.records, stay.records, strict=True)):
        pages = 3 * -(-(1000 + step) // 16)
        page_ps, row_ps = 16 * ROW * 1000, ROW * 1000  # a byte takes 1,000 ps
        took = {
            name: [span.end_ps - span.start_ps for span in record.spans if span.mnemonic == name]
            for name in ("host_load_pages", "host_store_rows")
        }
        assert took["host_load_pages"] == [fixed_ps + pages * page_ps] * LAYERS
        assert took["host_store_rows"] == [fixed_ps + 3 * row_ps] * LAYERS
        loading_ps, step_ps = sum(took["host_load_pages"]), record.end_ps - record.start_ps
        stored_ps, alone_ps = sum(took["host_store_rows"]), alone.end_ps - alone.start_ps
        assert loading_ps < step_ps < loading_ps + stored_ps + alone_ps


def test_a_fast_host_link_is_hidden_behind_the_layers(models: dict[str, str]) -> None:
    stay, moved = (decode(models["dense"], overrides=host_link(1e15), **asked) for asked in ({}, {"offload": "kv=1"}))
    assert stay.report.totals.elapsed_ps < moved.report.totals.elapsed_ps < 1.5 * stay.report.totals.elapsed_ps


def test_a_chunk_loads_the_pages_of_those_before_it(models: dict[str, str]) -> None:
    result = run(
        models["dense"], payload=False, batch=1, input_len=100, output_len=1, chunk_tokens=40, offload="kv=1",
        overrides=host_link(1e9),
    )  # fmt: skip
    took = [
        [span.end_ps - span.start_ps for span in record.spans if span.mnemonic == "host_load_pages"]
        for record in result.records
    ]
    fixed_ps = took[0][0]  # nothing comes for the first chunk
    page_ps = 16 * ROW * 1000
    for own, pages in zip(took, (0, 3, 5, 7), strict=True):  # 0, 40, 80 and 100 tokens before
        assert own == [pytest.approx(fixed_ps + pages * page_ps, rel=1e-3)] * LAYERS  # HBM is shared with the layers


def test_a_layer_is_staged_where_the_one_before_it_is_not(models: dict[str, str]) -> None:
    plan = prepare(Job(models["dense"], batch=1, input_len=4, payload=False, offload="kv=1")).plan
    program = plan.built(0, plan.variants[0]).program
    moves: list[tuple[str, str, str, str]] = []
    for call in program.calls:
        block = program.block[call.block]
        names = dict(zip([name for name, _ in block.params], call.arguments, strict=True))
        for issue in block.body:
            i = issue.instruction
            if isinstance(i, HOST_LOAD_PAGES | HOST_STORE_ROWS):
                moves.append((call.block.partition(".")[0], i.mnemonic, names[i.dst.buffer], names[i.src.buffer]))
    cache = [f"layers.{layer}.cache" for layer in range(LAYERS)]
    staged = [f"staging{layer % 2}.cache" for layer in range(LAYERS)]
    load, store = "host_load_pages", "host_store_rows"
    wanted = [("embed", load, staged[0], cache[0])]
    for layer in range(LAYERS):
        if layer + 1 < LAYERS:
            wanted.append(("layer", load, staged[layer + 1], cache[layer + 1]))
        wanted.append(("layer", store, cache[layer], staged[layer]))
    assert moves == wanted


def test_the_budget_is_what_the_run_held_and_grows_by_what_stays(models: dict[str, str]) -> None:
    job = Job(models["dense"], payload=False, batch=3, cached_len=1000, input_len=0, output_len=2, offload="kv=0.4")
    budget = Budget(prepare(job).plan)
    card = run_job(job).report.cards[0]
    assert budget.need_bytes(budget.plan) == card.peak_bytes + card.reserved_bytes
    (grown,) = [one.tags["kv"] for one in growths(budget) if "16 more tokens" in one.by]
    assert grown == 3 * 16 * ROW * (3 + 2)  # three layers keep theirs, and two stage the others'


def test_moving_the_caches_is_offered_with_what_it_saves(models: dict[str, str]) -> None:
    room = (("hbm.capacity_bytes", str(2**31 + 2**24)),)  # the reserve, and 16 MiB
    job = Job(
        models["dense"], payload=False, batch=3, cached_len=1000, input_len=0, output_len=2, overrides=room
    )  # fmt: skip
    prepared = prepare(job)
    helps = helps_of(job, Budget(prepared.plan), prepared.checkpoint)
    saved = Counter({one.change: one.saves_bytes or 0 for one in helps})
    assert saved["--offload kv=1"] == 3 * 3 * 63 * 16 * ROW


@pytest.mark.parametrize(
    ("name", "text", "asked", "said"),
    [
        ("Mixtral-8x22B", "kv=0", {}, "a share above 0 and at most 1"),
        ("Mixtral-8x22B", "kv=1,kv=0.5", {}, "each once"),
        ("Mixtral-8x22B", "pages=1", {}, "is not experts=SHARE, kv=SHARE or both"),
        ("Mixtral-8x22B", "kv=1", {"layout": "cp=2"}, "with cp=2 comes with a later version"),
        ("Mixtral-8x22B", "kv=1", {"overlap": True}, "with --overlap comes with a later version"),
        ("gpt-oss-120b", "kv=1", {"kv_pages": "ideal"}, "with --kv-pages ideal comes with a later version"),
    ],
)
def test_what_caches_in_host_memory_do_not_go_with_is_refused(
    name: str, text: str, asked: dict[str, Any], said: str
) -> None:
    with pytest.raises((ConfigError, NotYetError), match=said):
        prepare(Job(name, scale=True, batch=1, input_len=4, payload=False, offload=text, **asked))
