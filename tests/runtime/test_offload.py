"""Experts in host memory: no number changes, memory falls by what moved, and the host link shows where it holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from siltwin.isa.dma import HOST_LOAD
from siltwin.isa.errors import ConfigError
from siltwin.runtime.job import Job
from siltwin.runtime.prepare import prepare
from siltwin.runtime.run import RunResult, run_job

CONFIG = {
    "model_type": "mixtral",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 1001,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e4,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
LAYER = 8 * 3 * 256 * 512 * 2  # bytes of the experts of one layer
IDS = ((3, 1, 4, 1, 5, 9, 2, 6), (2, 7, 1, 8))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("offload") / "config.json"
    path.write_text(json.dumps(CONFIG))
    return path


def run(model: Path, **asked: Any) -> RunResult:
    sizes = (
        {"prompt_ids": IDS, "max_new_tokens": 3}
        if asked.get("payload", True)
        else {"batch": 2, "input_len": 8, "output_len": 2}
    )
    return run_job(Job(str(model), ignore_eos=True, **{**sizes, **asked}))


def host_link(bytes_per_s: float) -> tuple[tuple[str, str], ...]:
    return (("host.bandwidth_bytes_per_s", str(bytes_per_s)),)


@pytest.mark.parametrize(
    ("layout", "share", "asked"),
    [("tp=1", "1", {}), ("tp=2,ep=2", "0.5", {"weights": "mxfp4"}), ("pp=2", "1", {"weights": "int8"})],
)
def test_experts_from_host_memory_give_the_same_bits(
    model: Path, layout: str, share: str, asked: dict[str, Any]
) -> None:
    stay = run(model, layout=layout, logits=True, **asked)
    moved = run(model, layout=layout, logits=True, offload=f"experts={share}", **asked)
    assert stay.logits is not None and moved.logits is not None
    for name, values in stay.logits.items():
        np.testing.assert_array_equal(moved.logits[name], values)
    off = run(model, layout=layout, offload=f"experts={share}", payload=False, **asked)
    simpy = run(model, layout=layout, offload=f"experts={share}", payload=False, engine="simpy", **asked)
    assert off.spans == simpy.spans


@pytest.mark.parametrize(("share", "layers"), [(1.0, 5), (0.5, 2), (0.2, 1)])
def test_memory_falls_by_the_layers_that_moved_and_keeps_two_staging_areas(
    model: Path, share: float, layers: int
) -> None:
    held = [run(model, payload=False, **asked).report.cards[0] for asked in ({}, {"offload": f"experts={share}"})]
    assert held[0].by_tag["weight"] - held[1].by_tag["weight"] == (layers - min(2, layers)) * LAYER
    assert held[1].weights["host expert bf16"] == layers * LAYER
    assert held[1].weights.get("expert bf16", 0) == (5 - layers) * LAYER


def test_a_slow_host_link_holds_every_layer_and_a_fast_one_none(model: Path) -> None:
    slow, fast = 1e9, 1e15
    stay = run(model, payload=False)
    slowly, quickly = (
        run(model, payload=False, offload="experts=1", overrides=host_link(speed)) for speed in (slow, fast)
    )
    loading_ps = 5 * LAYER / slow * 1e12
    for record, alone in zip(slowly.records, stay.records, strict=True):
        loads = [span for span in record.spans if span.mnemonic == "host_load"]
        took_ps, alone_ps = record.end_ps - record.start_ps, alone.end_ps - alone.start_ps
        assert loading_ps < sum(span.end_ps - span.start_ps for span in loads) < took_ps < loading_ps + alone_ps
    assert stay.report.totals.elapsed_ps < quickly.report.totals.elapsed_ps < 1.25 * stay.report.totals.elapsed_ps


def test_a_layer_is_loaded_while_the_one_before_it_runs(model: Path) -> None:
    plan = prepare(Job(str(model), batch=1, input_len=4, payload=False, offload="experts=1")).plan
    program = plan.built(0, plan.variants[0]).program
    loads = [
        (call.block.partition(".")[0], dict(zip([p for p, _ in block.params], call.arguments, strict=True)))
        for call in program.calls
        for block in [program.block[call.block]]
        for issue in block.body
        if isinstance(issue.instruction, HOST_LOAD) and issue.instruction.src.buffer == "fetch_of0"
    ]
    assert [(block, names["fetch_of0"], names["fetch_to0"]) for block, names in loads] == [
        ("embed", "layers.0.experts.gate_up", "staging0.gate_up"),
        ("layer", "layers.1.experts.gate_up", "staging1.gate_up"),
        ("layer", "layers.2.experts.gate_up", "staging0.gate_up"),
        ("layer", "layers.3.experts.gate_up", "staging1.gate_up"),
        ("layer", "layers.4.experts.gate_up", "staging0.gate_up"),
    ]


@pytest.mark.parametrize(
    ("model_name", "text", "said"),
    [
        ("Mixtral-8x22B", "weights=0.5", "--offload 'weights=0.5' is not experts=SHARE"),
        ("Mixtral-8x22B", "experts=2", "a share above 0 and at most 1"),
        ("Mixtral-8x22B", "experts", "is not experts=SHARE"),
        ("Llama-3.1-405B", "experts=1", "has no experts; leave them out"),
    ],
)
def test_what_cannot_be_offloaded_is_refused(model_name: str, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        prepare(Job(model_name, scale=True, batch=1, input_len=4, payload=False, offload=text))
