"""The reference of Kimi K3: another statement of the same mathematics, and align against it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from siltwin.isa.dtype import FP32
from siltwin.models.checkpoint import open_checkpoint
from siltwin.runtime.align import align
from siltwin.runtime.align_ask import AlignAsk
from siltwin.runtime.job import Job
from siltwin.runtime.reference import open_reference
from siltwin.runtime.report_align import AlignReport

torch = pytest.importorskip("torch")
from kimi_k3_checkpoints import save_kimi_k3  # noqa: E402
from kimi_k3_statement import KimiK3  # noqa: E402

IDS = [(5 * at + 2) % 131 for at in range(40)]
FORMS: list[tuple[bool, dict[str, Any]]] = [
    (False, {}),
    (True, {"moe_intermediate_size": 32, "routed_expert_hidden_size": 64}),
    (False, {"routed_expert_hidden_size": None, "use_full_rank_gate": False, "attn_res_block_size": None}),
    (False, {"gate_lower_bound": None, "hidden_act": "silu", "q_lora_rank": None, "mla_use_output_gate": False}),
    (False, {"moe_renormalize": False, "latent_moe_use_norm": False, "attn_res_block_size": 1}),
]


@pytest.mark.parametrize(("packed", "changes"), FORMS)
def test_it_says_what_the_statement_of_these_tests_says(tmp_path: Path, packed: bool, changes: dict[str, Any]) -> None:
    path, model = save_kimi_k3(tmp_path, 7, packed, **changes)
    exact = KimiK3(model.config, model.tensors, torch.float64).logits(IDS)
    reference = open_reference(open_checkpoint(path))
    noise = np.abs(model.logits(IDS) - exact).max()
    assert np.abs(reference.run(IDS).logits - exact).max() <= max(1e-4 * exact.std(), 4 * noise)
    reference.show_rounding(FP32)
    assert np.abs(reference.run(IDS).logits - exact).max() <= 1e-6 * exact.std()


def test_experts_are_those_that_are_forced(tmp_path: Path) -> None:
    path, model = save_kimi_k3(tmp_path, 7)
    reference = open_reference(open_checkpoint(path))
    free = reference.run(IDS)
    same = reference.run(IDS, forced={layer: routes.ids for layer, routes in free.routes.items()})
    assert np.array_equal(free.logits, same.logits)
    other = {3: np.broadcast_to(np.array([0, 1, 2]), (len(IDS), 3))}
    changed = reference.run(IDS, forced=other)
    assert np.array_equal(changed.layers[3], free.layers[3]) and not np.array_equal(changed.layers[4], free.layers[4])
    assert np.array_equal(changed.routes[3].ids, free.routes[3].ids)


def aligned(path: Path, ask: AlignAsk | None = None, **changes: Any) -> AlignReport:
    job = {"dtype": "float32", "kv_dtype": "float32", "batch": 2, "input_len": 9, "output_len": 3}
    return align(Job(str(path), **{**job, **changes}), *([] if ask is None else [ask]))


@pytest.mark.parametrize("layout", ["tp=1", "dp=2,tp=2,pp=2,ep=4"])
def test_align_finds_no_drift(tmp_path: Path, layout: str) -> None:
    path, _ = save_kimi_k3(tmp_path, 8)
    report = aligned(path, layout=layout)
    assert (report.verdict, report.first_drift) == ("aligned", None)
    assert report.reference.startswith("Kimi K3 stated in torch")
    assert [layer.name for layer in report.layers] == ["embedding", *(f"layer {index}" for index in range(7))]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_rounding_raises_no_alarm(tmp_path: Path, dtype: str) -> None:
    path, _ = save_kimi_k3(tmp_path, 8)
    assert aligned(path, AlignAsk(forced_routing=True), dtype=dtype, kv_dtype=dtype).verdict == "aligned"


def test_a_scaled_kimi_k3_aligns_on_eight_cards() -> None:
    report = aligned(Path("Kimi-K3"), scale=True, layout="dp=2,tp=2,pp=2,ep=4")
    assert (report.verdict, report.first_drift) == ("aligned", None)
