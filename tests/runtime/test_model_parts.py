"""Every instruction of a lowered model is given the part of the model that it belongs to."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

from siltwin.isa.text import assemble
from siltwin.runtime.job import Job
from siltwin.runtime.model_parts import parts_of
from siltwin.runtime.prepare import prepare


def mnemonics(model: str, layout: str, **asked: Any) -> dict[str, set[str]]:
    """Mnemonics of a scaled model's program by part."""
    plan = prepare(
        Job(model, scale=True, layout=layout, batch=2, input_len=8, output_len=1, payload=False, **asked)
    ).plan
    found: dict[str, set[str]] = defaultdict(set)
    for block in plan.built(0, plan.variants[0]).program.blocks:
        for issue, part in zip(block.body, parts_of(block), strict=True):
            found[part].add(issue.instruction.mnemonic)
    return found


def test_kimi_k3_has_latent_and_linear_attention_dense_and_expert_layers() -> None:
    found = mnemonics("Kimi-K3", "tp=2,dp=2,ep=4")
    assert {"gated_delta", "causal_conv", "matmul"} <= found["attention linear"]
    assert {"latent_attention", "scatter", "sigmoid_gate", "matmul"} <= found["attention latent"]
    assert found["dense"] == found["shared experts"] == {"matmul", "situ_gated"}
    assert found["router"] == {"matmul", "route", "tally"}
    assert found["routed experts"] == {
        "matmul",
        "permute",
        "regroup",
        "grouped_matmul",
        "grouped_situ_gated",
        "combine",
    }
    assert found["norms and residuals"] == {"rmsnorm", "residual_mix", "copy", "add"}
    assert found["collectives tp"] == {"all_reduce", "all_gather"} and found["collectives ep"] == {"all_to_all"}
    assert found["inputs"] == {"host_load", "embedding"}
    assert {"argmax", "host_store", "matmul"} <= found["head"]
    assert set(found) == {
        *("attention linear", "attention latent", "dense", "shared experts", "router", "routed experts", "inputs"),
        *("norms and residuals", "collectives tp", "collectives ep", "head"),
    }


@pytest.mark.parametrize(
    ("model", "parts"),
    [
        ("DeepSeek-V3.2", {"attention latent, chosen keys", "dense", "routed experts"}),
        ("gpt-oss-120b", {"attention window", "attention full", "routed experts"}),
        ("Qwen3-Next-80B-A3B", {"attention linear", "attention full", "shared experts"}),
        ("Llama-3.1-405B", {"attention full", "dense"}),
    ],
)
def test_kinds_of_attention_and_of_feed_forwards_are_told_apart(model: str, parts: set[str]) -> None:
    found = set(mnemonics(model, "tp=2"))
    assert parts <= found
    mixers = {part for part in found if part.startswith("attention")}
    assert mixers == {part for part in parts if part.startswith("attention")}


def test_what_is_offloaded_is_a_part_of_its_own() -> None:
    found = mnemonics("Mixtral-8x22B", "pp=2", offload="experts=1,kv=1")
    assert found["offload"] == {"host_load", "host_load_pages", "host_store_rows"}
    assert found["inputs"] == {"host_load", "embedding"}
    assert not {"host_load_pages", "host_store_rows"} & set().union(
        *(own for part, own in found.items() if part != "offload")
    )


def test_what_has_no_weight_belongs_to_what_reads_it() -> None:
    program = assemble(
        """program p
queue tensor
queue vector
buffer x : bf16[4, 8] activation
buffer w : bf16[8, 8] weight
block layer
param x : bf16[4, 8]
param down_weight : bf16[8, 8]
param post_norm : bf16[8]
local n : bf16[4, 8]
local a : bf16[4, 8]
local b : bf16[4, 8]
vector | rmsnorm dst=%n x=%x weight=%post_norm eps=1e-05 plus_one=no
vector | scale dst=%a x=%n factor=2.0
tensor | matmul dst=%b a=%a w=%down_weight bias=-
vector | add dst=%x a=%x b=%b
end"""
    )
    assert parts_of(program.blocks[0]) == ("norms and residuals", "dense", "dense", "norms and residuals")
