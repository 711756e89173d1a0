"""Prefill of a small Llama (hidden 512, 8 layers, 512 tokens) on one card against transformers on the same CPU.

Prints ratios measured in one run, best of several each: `python benchmarks/bench_prefill.py`.
Both compute the logits of the last position only. Ours includes scheduling, memory, numbers and the SimPy timeline.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from siltwin.emulator.kernels.threads import set_host_threads
from siltwin.runtime.job import Job
from siltwin.runtime.numbers import Numbers
from siltwin.runtime.prepare import prepare
from siltwin.runtime.run import RunState, start_run, time_step
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


def best_s(work: Callable[[], object]) -> float:
    """The shortest of several runs, after one to warm up."""
    work()
    times = []
    for _ in range(REPEATS):
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    return min(times)


def ours_s(path: Path, dtype: str, threads: int) -> float:
    """A prefill step with its numbers and its timeline."""
    set_host_threads(threads)
    prompt = tuple(index * 37 % CONFIG.vocab_size for index in range(TOKENS))
    job = Job(str(path), dtype=dtype, kv_dtype=dtype, prompt_ids=(prompt,), max_new_tokens=1)
    prepared = prepare(job)
    numbers = Numbers(prepared.plan, prepared.checkpoint)

    def prefill() -> None:
        state: RunState = start_run(prepared)
        step = Scheduler(state.requests, None).next_step()
        assert step is not None
        state.memory.load(0)
        state.memory.begin(step, state.requests, 0)
        numbers.run(step, state.requests, state.memory.pool)
        time_step(state, step)

    return best_s(prefill)


def theirs_s(path: Path, dtype: torch.dtype, threads: int) -> float:
    """The same forward pass by transformers."""
    torch.set_num_threads(threads)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype).eval()
    ids = torch.tensor([[index * 37 % CONFIG.vocab_size for index in range(TOKENS)]])
    with torch.no_grad():
        return best_s(lambda: model(ids, use_cache=True, logits_to_keep=1))


def main() -> None:
    """Measure and print."""
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        LlamaForCausalLM(CONFIG).float().save_pretrained(path)
        rows = {}
        for threads, limit in ((1, 1.3), (2, 1.6)):
            ours, theirs = ours_s(path, "float32", threads), theirs_s(path, torch.float32, threads)
            rows[threads] = ours
            print(
                f"fp32, {threads} thread(s): ours {ours * 1e3:.0f} ms, transformers {theirs * 1e3:.0f} ms, "
                f"ratio {ours / theirs:.2f} (at most {limit})"
            )
            low = ours_s(path, "bfloat16", threads)
            print(f"bf16, {threads} thread(s): ours {low * 1e3:.0f} ms, {low / ours:.2f} of our fp32 (at most 1.5)")
        slow = theirs_s(path, torch.bfloat16, 1)
        print(f"bf16, transformers, 1 thread: {slow * 1e3:.0f} ms")


if __name__ == "__main__":
    main()
