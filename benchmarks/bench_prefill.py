"""Prefill of a small Llama (hidden 512, 8 layers, 512 tokens) on one card against transformers on the same CPU.

Prints ratios of runs taken in turns, the best of several each: `python benchmarks/bench_prefill.py`.
Both compute the logits of the last position only. Ours includes scheduling, memory, numbers and the SimPy timeline.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from siltwin.emulator.kernels.threads import set_host_threads
from siltwin.runtime.job import Job
from siltwin.runtime.numbers import Numbers
from siltwin.runtime.prepare import prepare
from siltwin.runtime.run import start_run, time_step
from siltwin.runtime.scheduler import Scheduler

TOKENS, REPEATS = 512, 7
CONFIG = LlamaConfig(
    vocab_size=32000,
    hidden_size=512,
    intermediate_size=1376,
    num_hidden_layers=8,
    num_attention_heads=8,
    num_key_value_heads=8,
    max_position_embeddings=1024,
)


Work = Callable[[], object]


def ours(path: Path, dtype: str) -> Work:
    """A prefill step with its numbers and its timeline."""
    prompt = tuple(index * 37 % CONFIG.vocab_size for index in range(TOKENS))
    job = Job(str(path), dtype=dtype, kv_dtype=dtype, prompt_ids=(prompt,), max_new_tokens=1)
    prepared = prepare(job)
    numbers = Numbers(prepared.plan, prepared.checkpoint)

    def prefill() -> None:
        state = start_run(prepared)
        step = Scheduler(state.requests, None).next_step()
        assert step is not None
        state.memory.load(0)
        state.memory.begin(step, state.requests, 0)
        numbers.run(step, state.requests, state.memory.pool)
        time_step(state, step)

    return prefill


def theirs(path: Path, dtype: torch.dtype) -> Work:
    """The same forward pass by transformers."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype).eval()
    ids = torch.tensor([[index * 37 % CONFIG.vocab_size for index in range(TOKENS)]])

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
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        LlamaForCausalLM(CONFIG).float().save_pretrained(path)
        works = ours(path, "float32"), ours(path, "bfloat16"), theirs(path, torch.float32), theirs(path, torch.bfloat16)
        for threads, limit in ((1, 1.3), (2, 1.6)):
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
