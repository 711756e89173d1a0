"""Prefill of a small Llama or DeepSeek-V3 (hidden 512, 8 layers, 512 tokens) on one card against transformers.

Prints ratios of runs on the same CPU, taken in turns, the best of several each:

    python benchmarks/bench_prefill.py [--family llama|deepseek_v3]

Both compute the logits of the last position only. Ours includes scheduling, memory, numbers and the SimPy timeline.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, DeepseekV3Config, LlamaConfig

from siltwin.emulator.kernels.threads import set_host_threads
from siltwin.runtime.job import Job
from siltwin.runtime.numbers import Numbers
from siltwin.runtime.prepare import prepare
from siltwin.runtime.run import start_run, time_step

TOKENS, REPEATS = 512, 7
VOCAB = 32000
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 512,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "max_position_embeddings": 1024,
}
# Of each family, what it is at most: fp32 on one thread and on two, as parts of transformers' time, bf16 of our fp32.
CONFIGS = {
    "llama": (LlamaConfig(**SIZES, intermediate_size=1376), (1.3, 1.6)),
    "deepseek_v3": (
        DeepseekV3Config(
            **SIZES,
            intermediate_size=1376,
            moe_intermediate_size=512,
            n_routed_experts=32,
            num_experts_per_tok=4,
            n_group=4,
            topk_group=2,
            first_k_dense_replace=1,
            q_lora_rank=256,
            kv_lora_rank=128,
            qk_nope_head_dim=64,
            qk_rope_head_dim=32,
            v_head_dim=64,
        ),
        (2.0, 2.0),
    ),
}

Work = Callable[[], object]


def ours(path: Path, dtype: str) -> Work:
    """A prefill step with its numbers and its timeline."""
    prompt = tuple(index * 37 % VOCAB for index in range(TOKENS))
    job = Job(str(path), dtype=dtype, kv_dtype=dtype, prompt_ids=(prompt,), max_new_tokens=1)
    prepared = prepare(job)
    numbers = Numbers(prepared.plan, prepared.checkpoint)

    def prefill() -> None:
        state = start_run(prepared)
        step = prepared.plan.lanes(state.requests).next_step()
        assert step is not None
        state.memory.load(0)
        state.memory.begin(step, state.requests, 0)
        result = numbers.run(step, state.requests, state.memory.pool)
        time_step(state, step, result.routed)

    return prefill


def theirs(path: Path, dtype: torch.dtype) -> Work:
    """The same forward pass by transformers."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype).eval()
    ids = torch.tensor([[index * 37 % VOCAB for index in range(TOKENS)]])

    def prefill() -> None:
        with torch.no_grad():
            model(ids, use_cache=True, logits_to_keep=1)

    return prefill


def best_s(works: Sequence[Work]) -> list[float]:
    """The shortest of several runs of each, taken in turns, after one to warm up."""
    times: list[list[float]] = [[] for _ in works]
    for turn in range(REPEATS + 1):
        for work, measured in zip(works, times, strict=True):
            begun = time.perf_counter()
            work()
            if turn:
                measured.append(time.perf_counter() - begun)
    return [min(measured) for measured in times]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", choices=CONFIGS, default="llama")
    config, limits = CONFIGS[parser.parse_args().family]
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        AutoModelForCausalLM.from_config(config).float().save_pretrained(path)
        works = ours(path, "float32"), ours(path, "bfloat16"), theirs(path, torch.float32), theirs(path, torch.bfloat16)
        for threads, limit in zip((1, 2), limits, strict=True):
            set_host_threads(threads)
            torch.set_num_threads(threads)
            fp32, bf16, torch_fp32, torch_bf16 = best_s(works)
            print(
                f"{threads} thread(s): fp32 {fp32 * 1e3:.0f} ms, transformers {torch_fp32 * 1e3:.0f} ms, "
                f"ratio {fp32 / torch_fp32:.2f} (at most {limit})\n"
                f"{threads} thread(s): bf16 {bf16 * 1e3:.0f} ms, {bf16 / fp32:.2f} of our fp32 (at most 1.5); "
                f"transformers {torch_bf16 * 1e3:.0f} ms"
            )


if __name__ == "__main__":
    main()
