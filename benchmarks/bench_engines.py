"""Both calendars on one unfolded step of Kimi K3 at full size, beside a bare heap loop, in one run.

    python benchmarks/bench_engines.py [--prefill] [--small]

128 dies of Ascend 910C (tp=8, dp=16, ep=128), no two alike with `--routing zipf:1.0`: every card runs for itself. What
counts of each engine is the time from the last submission to the end of the step; submission stands beside. A second
program keeps no resource short and never meets another card. The heap loop (1,000 pending, take the first, put one
back) says how fast this machine is now: targets are for one that makes 15 million turns a second, and scaled by that.
"""

from __future__ import annotations

import argparse
import time
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from siltwin.emulator.cluster import Cluster
from siltwin.emulator.compiled.cluster import CompiledCluster
from siltwin.emulator.machines import Machines
from siltwin.emulator.spec import load_card, override
from siltwin.emulator.ticket import Submission
from siltwin.interconnect.cluster import make_cluster
from siltwin.isa.program import Binding
from siltwin.isa.text import assemble
from siltwin.runtime.job import Job
from siltwin.runtime.prepare import Prepared, prepare
from siltwin.runtime.run import start_run, time_step

PENDING, TURNS, HEAP_TARGET_PER_S = 1000, 3_000_000, 15e6
RATIO_SHARED, RATIO_ALONE, TARGET_PER_S = 30, 20, 1e6
CARDS, CALLS = 128, 100


@njit(cache=True)
def heap_turns(due: Any, turns: int) -> int:
    """Take the first of a heap of times and put another back that comes later, so many times; the last time."""
    size, now, seed = len(due), 0, 1
    for _ in range(turns):
        now = due[0]
        last, place = due[size - 1], 0  # take it: the last one sinks from the top
        while True:
            child = 2 * place + 1
            if child >= size - 1:
                break
            if child + 1 < size - 1 and due[child + 1] < due[child]:
                child += 1
            if due[child] >= last:
                break
            due[place] = due[child]
            place = child
        due[place] = last
        seed = (seed * 1103515245 + 12345) % 2147483648
        later, place = now + 1 + seed % 100_000, size - 1  # put one back: it rises from the bottom
        while place > 0 and due[(place - 1) // 2] > later:
            due[place] = due[(place - 1) // 2]
            place = (place - 1) // 2
        due[place] = later
    return int(now)


def heap_per_s() -> float:
    """Turns a second of the bare heap loop, the best of five."""
    best_s = float("inf")
    for _ in range(6):  # the first may compile
        due = np.arange(PENDING, dtype=np.int64)
        begin = time.process_time()
        heap_turns(due, TURNS)
        best_s = min(best_s, time.process_time() - begin)
    return TURNS / best_s


class Timed(NamedTuple):
    """Processor seconds of a run: of submission, from there to its end, and of the compiled loop alone."""

    activities: int
    submit_s: float
    finish_s: float
    loop_s: float

    @property
    def per_s(self) -> float:
        """Activities a second, from submission to the end."""
        return self.activities / self.finish_s


class Watch:
    """Counts the processor time of some methods of an object."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}

    def over(self, owner: Any, name: str) -> None:
        """From now on `owner`'s method is timed."""
        method = getattr(owner, name)

        def timed(*given: Any, **options: Any) -> Any:
            begin = time.process_time()
            try:
                return method(*given, **options)
            finally:
                self.spent[name] = self.spent.get(name, 0.0) + time.process_time() - begin

        setattr(owner, name, timed)


def watched(cluster: Machines) -> Watch:
    """A watch over a cluster's submissions and time."""
    watch = Watch()
    watch.over(cluster, "start")
    watch.over(cluster, "finish")
    if isinstance(cluster, CompiledCluster):
        watch.over(cluster.calendar, "run")
    return watch


def timed(watch: Watch, activities: int) -> Timed:
    """What a watch has seen."""
    return Timed(activities, watch.spent["start"], watch.spent["finish"], watch.spent.get("run", 0.0))


def kimi_k3(engine: str, options: argparse.Namespace) -> Prepared:
    """The job, on one engine."""
    layout, dp = ("tp=8,dp=2,ep=16", 2) if options.small else ("tp=8,dp=16,ep=128", 16)
    sizes: dict[str, Any] = {"batch": 16 * dp, "cached_len": 32768, "input_len": 0}
    if options.prefill:
        sizes = {"batch": dp, "input_len": 4096}
    model, weights = ("Kimi-K3", "mxfp4") if not options.small else ("DeepSeek-V3", None)
    return prepare(
        Job(
            model,
            card="ascend-910c",
            cluster="cloudmatrix-384",
            layout=layout,
            weights=weights,
            payload=False,
            output_len=1,
            routing="zipf:1.0",
            fold=False,
            engine=engine,
            **sizes,
        )  # fmt: skip
    )


def step_of(prepared: Prepared) -> Timed:
    """The first step of a job, without memory and report."""
    state = start_run(prepared)
    step = state.prepared.plan.lanes(state.requests).next_step()
    assert step is not None, "a job has steps"
    watch = watched(state.cluster)
    record = time_step(state, step)
    return timed(watch, len(record.told))


ALONE = """program alone
queue tensor
queue vector
buffer x : bf16[64, 512] activation
buffer w : bf16[512, 512] weight
buffer y : bf16[64, 512] activation
block layer
  param x : bf16[64, 512]
  param w : bf16[512, 512]
  param y : bf16[64, 512]
{lines}
end
"""


def alone_on_each_card(kind: type[Machines]) -> Timed:
    """128 cards, each with a chain of matrix products and additions in two queues; HBM is never short."""
    lines = "\n".join(
        f"  tensor | matmul dst=%y a=%x w=%w bias=- | wait vector+{n}\n"
        f"  vector | add dst=%x a=%y b=%y | wait tensor+{n + 1}"
        for n in range(8)
    )
    program = assemble(ALONE.format(lines=lines) + "call layer x w y\n" * CALLS)
    card = override(load_card("ascend-910c"), {"hbm.bandwidth_bytes_per_s": "1000TB/s"})
    topology = make_cluster("full_mesh", CARDS, 10**10, 10**6).topology()
    cluster: Any = kind(card, topology) if kind is Cluster else CompiledCluster(card, topology, fold=False)
    watch = watched(cluster)
    ran = cluster.start([Submission(rank, program, Binding({}, {}), {}) for rank in range(CARDS)])
    cluster.finish(ran)
    return timed(watch, len(ran.spans))


def told(name: str, found: Timed) -> str:
    """One engine's line."""
    loop = f", of which the loop {found.loop_s:.3f} s" if found.loop_s else ""
    return (
        f"  {name}: {found.activities:,} activities; submitted in {found.submit_s:.2f} s, run in {found.finish_s:.3f} s"
        f"{loop}: {found.per_s:,.0f} a second"
    )


def compare(what: str, fast: Timed, slow: Timed, ratio: int) -> None:
    """Print both engines, and how many times as fast one is as the other."""
    assert fast.activities == slow.activities, "both engines run the same"
    times = slow.finish_s / fast.finish_s
    print(f"{what}\n{told('SimPy', slow)}\n{told('compiled', fast)}\n  {times:.1f} times SimPy (at least {ratio})")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prefill", action="store_true", help="4,096 tokens a dp rank in place of a decode step")
    parser.add_argument("--small", action="store_true", help="DeepSeek-V3 on 16 dies, to be quick")
    options = parser.parse_args()
    rate = heap_per_s()
    scale = rate / HEAP_TARGET_PER_S
    print(f"heap loop, {PENDING:,} pending: {rate / 1e6:.1f} million turns a second")
    for engine in (CompiledCluster, Cluster):  # compiles what is compiled
        alone_on_each_card(engine)
    what = f"{CARDS} cards that share nothing"
    compare(what, alone_on_each_card(CompiledCluster), alone_on_each_card(Cluster), RATIO_ALONE)
    jobs = {engine: kimi_k3(engine, options) for engine in ("compiled", "simpy")}
    step_of(jobs["compiled"])
    fast, slow = step_of(jobs["compiled"]), step_of(jobs["simpy"])
    job, layout = jobs["simpy"].job, jobs["simpy"].plan.layout
    kind = "prefill" if options.prefill else "decode"
    what = f"{job.model}, {layout.cards} dies ({job.layout}), {kind} step, routing {job.routing}, unfolded"
    compare(what, fast, slow, RATIO_SHARED)
    loop_per_s = fast.activities / fast.loop_s
    print(f"  the loop alone: {loop_per_s:,.0f} a second (at least {TARGET_PER_S * scale:,.0f} here)")


if __name__ == "__main__":
    main()
