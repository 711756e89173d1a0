"""Made-up reports for the tests of schemas, terminal text and command line: two cards, one prompt."""

from typing import Any

from siltwin.runtime.report import (
    CardReport,
    CollectiveReport,
    EvidenceReport,
    Fits,
    LinkReport,
    LiveAllocation,
    OomReport,
    PhaseReport,
    Phases,
    Report,
    RequestReport,
    StepReport,
    Totals,
    UnitUse,
)
from siltwin.runtime.report_align import AlignReport, LayerDrift, LogitsDrift
from siltwin.runtime.report_base import Bounds
from siltwin.runtime.report_document import CardPart, ClusterPart, HostReport, LayoutPart, ModelPart
from siltwin.runtime.report_limits import CardNeed, JobSizes, LimitsReport

MIB, GIB = 2**20, 2**30
US, MS = 10**6, 10**9

COMMON: dict[str, Any] = {
    "model": ModelPart(
        name="SmolLM2-135M-Instruct",
        family="llama",
        total_params=134_515_008,
        dtype="bf16",
        kv_dtype="bf16",
        source="SmolLM2-135M-Instruct.Q4_1.gguf",
        num_layers=30,
    ),
    "card": CardPart(name="ascend-910b2", description="one card", weakest_evidence="assumed"),
    "cluster": ClusterPart(name="usual-node-full_mesh-8", kind="full_mesh", cards_used=2),
    "layout": LayoutPart(tp=1, pp=2, cards=2),
    "host": HostReport(wall_s=12.5, output_tokens_per_s=14.25),
    "not_modelled": ("vision towers", "training steps"),
}


def card(rank: int, **changes: Any) -> CardReport:
    """A card that peaks at 130 MiB of 64 GiB."""
    values: dict[str, Any] = {
        "rank": rank,
        "stage": rank,
        "peak_bytes": 130 * MIB,
        "peak_ps": 3 * MS,
        "capacity_bytes": 64 * GIB,
        "reserved_bytes": 2 * GIB,
        "by_tag": {"weight": 100 * MIB, "kv": 20 * MIB, "activation": 10 * MIB},
        "live_at_end_bytes": 0,
        "units": {
            "tensor": UnitUse(busy_ps=4 * MS, utilisation=0.25, cycles=7_200_000),
            "link": UnitUse(busy_ps=1 * MS, utilisation=0.125 * (rank + 1)),
        },
    }
    return CardReport(**(values | changes))


def request(**changes: Any) -> RequestReport:
    """A prompt of 37 tokens and an answer of 8."""
    values: dict[str, Any] = {
        "prompt_tokens": 37,
        "tokens": (504, 3575, 282, 4649, 314, 7042, 30, 2),
        "output_tokens": 8,
        "text": "The capital of France is Paris.",
        "ttft_s": 0.004,
        "tpot_s": 0.0017142857,
        "finish_reason": "stop",
    }
    return RequestReport(**(values | changes))


def steps() -> tuple[StepReport, ...]:
    """A prefill of 4 ms and a decode step of 2 ms."""
    prefill = Bounds(compute=1 * MS, dispatch=3 * MS)
    decode = Bounds(hbm=1_500 * US, link=500 * US)
    return (
        StepReport(
            index=0,
            kind="prefill",
            start_ps=0,
            end_ps=4 * MS,
            tokens=37,
            sequences=1,
            bound="dispatch",
            bounds=prefill,
        ),
        StepReport(
            index=1,
            kind="decode",
            start_ps=4 * MS,
            end_ps=6 * MS,
            tokens=1,
            sequences=1,
            bound="hbm",
            bounds=decode,
        ),
    )


def report(**changes: Any) -> Report:
    """A whole run; any field may be replaced."""
    first, second = steps()
    values: dict[str, Any] = COMMON | {
        "engine": "simpy",
        "payload": True,
        "requests": (request(),),
        "steps": (first, second),
        "cards": (card(0), card(1)),
        "links": (LinkReport(name="0>1", source=0, target=1, bytes=42_624, busy_ps=500 * US),),
        "collectives": (CollectiveReport(axis="pp", kind="send", count=2, bytes=42_624, time_ps=500 * US),),
        "totals": Totals(
            elapsed_ps=16 * MS,
            ttft_max_s=0.004,
            ttft_mean_s=0.004,
            tpot_mean_s=0.0017142857,
            output_tokens_per_s=500.0,
            prompt_tokens_per_s=9250.0,
            cycles=28_800_000,
        ),
        "phases": Phases(
            prefill=PhaseReport(steps=1, elapsed_ps=4 * MS, bound="dispatch", bounds=first.bounds),
            decode=PhaseReport(steps=7, elapsed_ps=12 * MS, bound="hbm", bounds=second.bounds),
        ),
        "evidence": (
            EvidenceReport(figure="time", weakest="assumed", assumed=("dispatch.tensor_ps", "hbm.latency_ps")),
            EvidenceReport(figure="memory", weakest="datasheet"),
        ),
        "warnings": ("2 cards of the node stay unused",),
    }
    return Report(**(values | changes))


def oom(**changes: Any) -> OomReport:
    """Card 1 misses 3 GiB for KV pages in the second step."""
    values: dict[str, Any] = {
        "card": 1,
        "time_ps": 4 * MS,
        "step": 1,
        "step_kind": "decode",
        "instruction": "ATTENTION q, kv.0 -> out",
        "request": 3,
        "tag": "kv",
        "owner": "KV pages of request 3",
        "requested_bytes": 4 * GIB,
        "missing_bytes": 3 * GIB,
        "capacity_bytes": 64 * GIB,
        "reserved_bytes": 2 * GIB,
        "free_bytes": 1 * GIB,
        "largest_hole_bytes": 512 * MIB,
        "largest_live": tuple(
            LiveAllocation(owner=f"layer {i}", tag="weight", num_bytes=5 * GIB, address=i * 5 * GIB, allocated_ps=0)
            for i in range(10)
        ),
        "by_tag": {"weight": 50 * GIB, "kv": 11 * GIB},
        "fits": Fits(largest_batch=3, largest_context=None, smallest_hbm_bytes=67 * GIB, smallest_tp=2),
    }
    return OomReport(**(values | changes))


def limits(**changes: Any) -> LimitsReport:
    """A job that fits."""
    values: dict[str, Any] = COMMON | {
        "job": JobSizes(batch=4, prompt_tokens=1024, output_tokens=128),
        "fits_as_asked": True,
        "granule_bytes": 512,
        "cards": tuple(
            CardNeed(
                rank=rank,
                stage=rank,
                high_water_bytes=3 * GIB,
                capacity_bytes=64 * GIB,
                reserved_bytes=2 * GIB,
                by_tag={"weight": 700 * MIB, "kv": 324 * MIB},
            )
            for rank in range(2)
        ),
        "fits": Fits(largest_batch=812, largest_context=8192, smallest_hbm_bytes=3 * GIB, smallest_tp=1),
    }
    return LimitsReport(**(values | changes))


def aligned(**changes: Any) -> AlignReport:
    """Two layers that agree to a millionth."""
    values: dict[str, Any] = COMMON | {
        "reference": "transformers 5.24.0 on torch 2.13.0, float32",
        "positions": 45,
        "layers": (
            LayerDrift(name="layers.0", max_abs=1e-6, max_rel=2e-6, cosine=1.0),
            LayerDrift(name="layers.1", max_abs=3e-6, max_rel=4e-6, cosine=0.99999999),
        ),
        "logits": LogitsDrift(max_abs=1e-5, max_rel=2e-5, cosine=1.0, kl=1e-9, argmax_agreement=1.0),
        "first_drift": None,
        "tolerance": 1e-4,
        "tolerance_of": "max |difference| of the logits over their standard deviation",
        "verdict": "aligned",
    }
    return AlignReport(**(values | changes))
