"""Full size: how long a laptop takes to answer what trillion-parameter models do on 32 to 1,024 cards.

    python benchmarks/bench_full_size.py [NAME ..] [--repeats N]

Each run is a process of its own: what stays from one to the next is Numba's machine code and the file cache. `inside`
is the report's `host.wall_s` (config reading, lowering, folding, simulation, report), `command` all of it with Python's
start, and the best of several counts. NAME takes those whose name begins so. 1,024 dies are two supernodes of 512.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

K3 = ("Kimi-K3", "--card", "ascend-910c", "--weights", "mxfp4")
DIES_128 = (*K3, "--cluster", "cloudmatrix-384", "--layout", "tp=8,dp=16,ep=128")
DIES_1024 = (*K3, "--cluster", "supernodes-2x256", "--layout", "tp=8,dp=128,ep=128,edp=8")
V3 = ("DeepSeek-V3", "--card", "h100-sxm", "--cluster", "h100-4x8", "--layout", "tp=4,dp=8,ep=32")
PACKAGES_128 = (*K3, "--cluster", "cloudmatrix-384", "--batch", "32", "--input-len", "1048576")
ZIPF = ("--routing", "zipf:1.0")


def prefill(batch: int) -> tuple[str, ...]:
    """4,096 tokens for each sequence."""
    return ("--batch", str(batch), "--input-len", "4096")


def decode(batch: int) -> tuple[str, ...]:
    """One step at 32,768 cached tokens."""
    return ("--batch", str(batch), "--cached-len", "32768", "--input-len", "0", "--output-len", "1")


class Target(NamedTuple):
    """Seconds inside, seconds of the command, GiB of host memory; None where there is none."""

    inside_s: float | None
    command_s: float | None = None
    memory_gib: float | None = None


RUNS: dict[str, tuple[tuple[str, ...], Target]] = {
    "K3, 128 dies, prefill": ((*DIES_128, *prefill(16)), Target(1, 3, 1.5)),
    "K3, 128 dies, decode": ((*DIES_128, *decode(256)), Target(1, 3, 1.5)),
    "K3, 1,024 dies, prefill": ((*DIES_1024, *prefill(128)), Target(1, 3, 1.5)),
    "K3, 1,024 dies, decode": ((*DIES_1024, *decode(2048)), Target(1, 3, 1.5)),
    "V3, 32 h100, prefill": ((*V3, *prefill(8)), Target(1, 3, 1.5)),
    "V3, 32 h100, decode": ((*V3, *decode(128)), Target(1, 3, 1.5)),
    "zipf K3, 128 dies, prefill": ((*DIES_128, *prefill(16), *ZIPF), Target(3)),
    "zipf K3, 128 dies, decode": ((*DIES_128, *decode(256), *ZIPF), Target(3)),
    "zipf K3, 1,024 dies, prefill": ((*DIES_1024, *prefill(128), *ZIPF), Target(20, None, 2)),
    "zipf K3, 1,024 dies, decode": ((*DIES_1024, *decode(2048), *ZIPF), Target(20, None, 2)),
    "zipf V3, 32 h100, prefill": ((*V3, *prefill(8), *ZIPF), Target(3)),
    "1M tokens of K3, 256 dies": (
        (*PACKAGES_128, "--layout", "tp=8,dp=32,ep=128", "--chunk-tokens", "8192"),
        Target(20),
    ),
    "1M tokens of K3, 256 dies, cp=2": (
        (*PACKAGES_128[:-3], "16", *PACKAGES_128[-2:], "--layout", "tp=8,cp=2,dp=16,ep=128", "--chunk-tokens", "16384"),
        Target(20),
    ),
}


def measure(arguments: tuple[str, ...]) -> tuple[float, float]:
    """Seconds inside, and seconds of the command."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        command = [sys.executable, "-m", "siltwin", "run", *arguments, "--no-payload", "--json", str(report)]
        begun = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        _, errors = process.communicate()
        command_s = time.perf_counter() - begun
        if process.returncode:
            raise SystemExit(f"{' '.join(command)} ended with exit code {process.returncode}:\n{errors.decode()}")
        inside_s = json.loads(report.read_text())["host"]["wall_s"]
    return inside_s, command_s


def in_child(name: str) -> None:
    """Measure one run in this process, so that its children's memory is that run's alone; prints JSON."""
    times = measure(RUNS[name][0])
    print(json.dumps([*times, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20]))


def shown(value: float, target: float | None, unit: str) -> str:
    """A figure beside its target."""
    return f"{value:.2f} {unit}" + (
        "" if target is None else f" ({'within' if value <= target else 'OVER'} {target:g})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("names", nargs="*", help="runs whose names begin so; all of them if none is given")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        in_child(asked.child)
        return
    chosen = [name for name in RUNS if not asked.names or any(name.startswith(part) for part in asked.names)]
    if not chosen:
        raise SystemExit(f"no run's name begins with {', '.join(asked.names)}; there are {'; '.join(RUNS)}")
    for name in chosen:
        found = []
        for _ in range(asked.repeats):
            done = subprocess.run(
                [sys.executable, __file__, "--child", name], capture_output=True, text=True, check=False
            )
            if done.returncode:
                raise SystemExit(done.stderr)
            found.append(json.loads(done.stdout))
        inside_s, command_s, memory_gib = map(min, zip(*found, strict=True))
        target = RUNS[name][1]
        parts = (
            shown(inside_s, target.inside_s, "s inside"),
            shown(command_s, target.command_s, "s command"),
            shown(memory_gib, target.memory_gib, "GiB"),
        )
        print(f"{name:34} {', '.join(parts)}", flush=True)


if __name__ == "__main__":
    main()
