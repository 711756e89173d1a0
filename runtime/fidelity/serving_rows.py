"""Measured servers: one row a configuration, as a CSV file states them, checked before anything is compared."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ...isa.errors import ConfigError
from .frameworks import FRAMEWORKS
from .records import records

TEXTS = ("id", "backend", "model_path", "system", "gemm_quant_mode")
COUNTS = ("isl", "osl", "batch_size", "tp_size", "pp_size")
TIME = "silicon_tpot_ms"
SLOWEST_MS = 10_000.0  # no server lets a reader wait ten seconds a token: such a time is in other units
FASTEST_MS = 0.05
TOGETHER = "agg"

# Models of server rows that have no experts, and the configs that ship here for them.
DENSE = {
    "Qwen/Qwen3-32B": "Qwen3-32B",
    "Qwen/Qwen3-32B-FP8": "Qwen3-32B",
    "meta-llama/Llama-3.1-8B-Instruct": "Llama-3.1-8B",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "Llama-3.1-8B",
    "meta-llama/Llama-3.1-70B-Instruct": "Llama-3.1-70B",
    "meta-llama/Llama-3.3-70B-Instruct": "Llama-3.1-70B",
    "nvidia/Llama-3.3-70B-Instruct-FP8": "Llama-3.1-70B",
}


class Precision(NamedTuple):
    """How weights and activations are held, as options of a job."""

    weights: str | None = None
    group: int | None = None
    activations: str | None = None


# By the column gemm_quant_mode.
PRECISIONS: Mapping[str, Precision] = {
    "": Precision(),
    "fp8": Precision("fp8", None, "fp8"),
    "fp8_block": Precision("fp8", 128, "fp8"),
}
# The share of the other requests' prompts that is computed while a request decodes, by (backend, gemm_quant_mode): 1
# where clients come one by one, 1/2 where all come at once and each waits for those behind it. What the clients of some
# rows did is in no column, so that this is calibrated, by benchmarks/fit_serving.py. vLLM's fp8 rows compute hardly any
# prompt: with all of them the card would have to exceed its peak, so that most were found in the prefix cache.
PEERS: Mapping[tuple[str, str], float] = {
    ("sglang", ""): 0.45,
    ("sglang", "fp8_block"): 0.82,
    ("trtllm", ""): 0.91,
    ("trtllm", "fp8"): 0.93,
    ("vllm", ""): 0.95,
    ("vllm", "fp8"): 0.1,
}
CODED_CACHES = (("trtllm", "fp8"), ("vllm", "fp8"))  # (backend, gemm_quant_mode) whose keys and values are in fp8


@dataclass(frozen=True)
class ServingRow:
    """One measured server: `concurrency` requests of `isl` prompt and `osl` new tokens are in it at any time.

    `tpot_ms` is the mean time between a request's tokens after its first. `quant` is the column gemm_quant_mode.
    """

    name: str
    backend: str
    model_path: str
    system: str
    quant: str
    isl: int
    osl: int
    concurrency: int
    tp: int
    pp: int
    tpot_ms: float

    @property
    def peers(self) -> float:
        """The share of the other requests' prompts that is computed while a request decodes."""
        return PEERS.get((self.backend, self.quant), 1.0)

    @property
    def kv_dtype(self) -> str:
        """The type of the KV cache."""
        return "fp8" if (self.backend, self.quant) in CODED_CACHES else "bf16"


def measured_serving(path: Path, notes: list[str]) -> tuple[ServingRow, ...]:
    """The servers of dense models in a CSV file with the columns of TEXTS, COUNTS and TIME (others are left alone).

    Rows that nothing here stands for are left out and told in `notes`. ConfigError names the file, the line and what
    is wrong in it.
    """
    left_out: Counter[str] = Counter()
    rows = []
    for record, where in records(path, (*TEXTS, *COUNTS, TIME), "a table of servers"):
        why = _why_not(record)
        if why:
            left_out[why] += 1
        else:
            rows.append(_row(record, where))
    notes += [f"{path.name}: {count} servers left out: {why}" for why, count in left_out.items()]
    return tuple(rows)


def _why_not(record: Mapping[str, str | None]) -> str:
    """Why a row cannot be compared, "" where it can."""
    model, backend, quant, mode = (
        (record.get(name) or "").strip() for name in ("model_path", "backend", "gemm_quant_mode", "mode")
    )
    if model not in DENSE:
        return f"{model} is no dense model known here"
    if mode not in ("", TOGETHER):
        return f"mode={mode}, and only servers that prefill and decode on the same cards ({TOGETHER}) are emulated"
    if backend not in FRAMEWORKS:
        return f"backend={backend}, of which nothing is known; known: {', '.join(FRAMEWORKS)}"
    if quant not in PRECISIONS:
        known = ", ".join(name or "empty (16 bits)" for name in PRECISIONS)
        return f"gemm_quant_mode={quant} is none of {known}"
    return ""


def _row(record: Mapping[str, str | None], where: str) -> ServingRow:
    texts = {name: (record[name] or "").strip() for name in TEXTS}
    counts = {name: _count(record[name], name, where) for name in COUNTS}
    return ServingRow(
        name=texts["id"],
        backend=texts["backend"],
        model_path=texts["model_path"],
        system=texts["system"],
        quant=texts["gemm_quant_mode"],
        isl=counts["isl"],
        osl=counts["osl"],
        concurrency=counts["batch_size"],
        tp=counts["tp_size"],
        pp=counts["pp_size"],
        tpot_ms=_milliseconds(record[TIME], where),
    )


def _count(text: str | None, name: str, where: str) -> int:
    try:
        value = int(text or "")
    except ValueError:
        value = 0
    if value < 1:
        raise ConfigError(f"{where}: {name}={text!r} must be a whole number of at least 1")
    return value


def _milliseconds(text: str | None, where: str) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not FASTEST_MS <= value <= SLOWEST_MS:
        raise ConfigError(
            f"{where}: {TIME}={text!r} must be milliseconds between {FASTEST_MS} and {SLOWEST_MS:g}; is it in "
            "another unit?"
        )
    return value
