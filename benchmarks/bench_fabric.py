"""How long the emulation of very large collectives takes: `python benchmarks/bench_fabric.py`.

Wall time from nothing (topology, plans, amounts, programs, one run), beside a loop of the same machine in the same run,
so that a slow machine can be told from slow code.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from siltwin.emulator.cluster import Cluster
from siltwin.emulator.spec import load_card
from siltwin.emulator.ticket import Submission
from siltwin.interconnect.cluster import make_cluster
from siltwin.isa.program import Binding
from siltwin.isa.text import assemble

RATE, LATENCY_PS = 50 * 10**9, 500_000


def taken_s(work: Callable[[], object]) -> float:
    """Wall time of one call."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def bare_loop() -> int:
    """Ten million additions: what a second of this machine is worth."""
    total = 0
    for number in range(10_000_000):
        total += number
    return total


def all_reduce() -> None:
    """1 GiB over a ring of 1,024 cards."""
    size, part = 1024, 1 << 20
    cluster = Cluster(load_card("reference-npu"), make_cluster("ring", size, RATE, LATENCY_PS).topology())
    text = f"program p\nqueue link\ngroup g {size}\nbuffer x : bf16[512, {part}] activation\nblock b\n"
    program = assemble(text + f"param x : bf16[512, {part}]\nlink | all_reduce x=%x group=g\nend\ncall b x\n")
    ranks = tuple(range(size))
    cluster.run_until(cluster.submit([Submission(r, program, Binding({}, {"g": r}), {"g": ranks}) for r in ranks]))


def all_to_all(kind: str) -> None:
    """Uneven rows between 512 cards, every pair its own count."""
    size = 512
    cluster = Cluster(load_card("reference-npu"), make_cluster(kind, size, RATE, LATENCY_PS).topology())
    counts = np.random.default_rng(3).integers(0, 2000, (size, size))
    shape = "bf16[1000000, 512]"
    program = assemble(
        f"program p\nqueue link\nextent to[]\nextent fro[]\ngroup g {size}\nbuffer x : {shape} activation\n"
        f"buffer y : {shape} activation\nblock b\nparam x : {shape}\nparam y : {shape}\n"
        "link | all_to_all dst=%y src=%x group=g send_counts=to recv_counts=fro\nend\ncall b x y\n"
    )
    ranks = tuple(range(size))
    made = [
        Submission(
            r,
            program,
            Binding({"to": tuple(counts[r].tolist()), "fro": tuple(counts[:, r].tolist())}, {"g": r}),
            {"g": ranks},
        )
        for r in ranks
    ]
    cluster.run_until(cluster.submit(made))


def main() -> None:
    """Measure and print."""
    bare = taken_s(bare_loop)
    print(f"bare loop of ten million additions: {bare:.2f} s")
    for name, target_s, work in (
        ("ring all-reduce of 1 GiB, 1,024 cards", 1.0, all_reduce),
        ("uneven all-to-all, 512 cards, one switch", 2.0, lambda: all_to_all("switch")),
        ("uneven all-to-all, 512 cards, fat tree", 2.0, lambda: all_to_all("fat_tree")),
    ):
        took = taken_s(work)
        print(f"{name}: {took:.2f} s, {took / bare:.1f} bare loops (target {target_s:.0f} s on a quiet machine)")


if __name__ == "__main__":
    main()
