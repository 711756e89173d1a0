"""Decode of SmolLM2-135M on six emulated cards (tp=3, pp=2) in bf16: tokens a second of wall time.

    python benchmarks/bench_decode.py [--engine simpy|compiled] [--tokens 64] [--profile]

Prints how a token's time divides into arithmetic (the kernels of all six cards) and the calendar, measured in one run,
token by token, after a few to warm up. `make run` installs the weights.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import time
from statistics import median
from typing import NamedTuple

from siltwin.emulator.kernels.threads import host_threads
from siltwin.runtime.job import ENGINES, Engine, Job
from siltwin.runtime.numbers import Numbers
from siltwin.runtime.prepare import prepare
from siltwin.runtime.run import start_run, time_step
from siltwin.runtime.scheduler import Scheduler

MODEL, CARD, LAYOUT, PROMPT = "smollm2-135m-instruct", "ascend-910b2", "tp=3,pp=2", "What is the capital of France?"
WARM_STEPS = 4  # the prefill, and the first decode steps, which bind kernels and cost the program
TARGET_TOKENS_PER_S = 12


class StepSeconds(NamedTuple):
    """Wall time of one step."""

    arithmetic: float
    calendar: float

    @property
    def both(self) -> float:
        """All of it."""
        return self.arithmetic + self.calendar


def decode(tokens: int, engine: Engine, profile: cProfile.Profile | None) -> list[StepSeconds]:
    """The steps of a job that generates `tokens` tokens after the warm ones."""
    job = Job(
        MODEL, CARD, layout=LAYOUT, dtype="bfloat16", prompts=(PROMPT,), max_new_tokens=tokens + WARM_STEPS,
        ignore_eos=True, engine=engine,
    )  # fmt: skip
    prepared = prepare(job)
    numbers, state = Numbers(prepared.plan, prepared.checkpoint), start_run(prepared)
    scheduler = Scheduler(state.requests, None)
    state.memory.load(0)
    steps = []
    while (step := scheduler.next_step()) is not None:
        if profile is not None and step.index == WARM_STEPS:
            profile.enable()
        begun = time.perf_counter()
        state.memory.begin(step, state.requests, state.cluster.now_ps)
        result = numbers.run(step, state.requests, state.memory.pool)
        computed = time.perf_counter()
        time_step(state, step, result.routed)
        steps.append(StepSeconds(computed - begun, time.perf_counter() - computed))
        scheduler.complete(step, result.picked)
    if profile is not None:
        profile.disable()
    return steps


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=64, help="tokens that are measured")
    parser.add_argument("--engine", choices=ENGINES, default="simpy")
    parser.add_argument("--profile", action="store_true", help="print where the time goes (which slows it)")
    given = parser.parse_args()
    if given.tokens < 1:
        parser.error(f"--tokens {given.tokens}: give 1 or more")
    profile = cProfile.Profile() if given.profile else None
    steps = decode(given.tokens, given.engine, profile)
    warm = steps[WARM_STEPS:]
    whole = sum(step.both for step in warm)
    arithmetic, calendar = (sum(part) / whole for part in zip(*warm, strict=True))
    print(f"prefill and first steps: {', '.join(f'{step.both * 1e3:.0f}' for step in steps[:WARM_STEPS])} ms")
    print(
        f"decode, {host_threads()} host threads: {len(warm) / whole:.1f} tokens/s "
        f"(target {TARGET_TOKENS_PER_S}; median {1 / median(step.both for step in warm):.1f}), "
        f"{whole / len(warm) * 1e3:.1f} ms a token: arithmetic {arithmetic:.0%}, {given.engine} calendar {calendar:.0%}"
    )
    if profile is not None:
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    main()
