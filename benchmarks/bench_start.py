"""What starting costs: the help, the import, and the first run after an install against a warm one.

    python benchmarks/bench_start.py [--kernels]

The first run compiles every kernel it uses into a fresh cache folder; with --kernels it also lists which of them cost
most. Each measurement is a process of its own. `make run` installs the weights.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from numba.core.dispatcher import Dispatcher

from siltwin.cli import cli

MODEL = ("smollm2-135m-instruct", "--layout", "tp=3,pp=2", "--dtype", "bfloat16")
RUN = ("run", *MODEL, "--prompt", "What is the capital of France?", "--max-new-tokens", "8")
# Without numbers it is the compiled calendar that costs.
BARE = ("run", *MODEL, "--no-payload", "--batch", "1", "--input-len", "8", "--output-len", "8")
REPEATS, KERNELS_LISTED = 5, 15
HELP_LIMIT_S, FIRST_LIMIT_S = 0.4, 60


def seconds(command: Sequence[str], cache: str | None = None) -> float:
    """Wall time of a Python process that must succeed."""
    environment = os.environ | ({"NUMBA_CACHE_DIR": cache} if cache else {})
    begun = time.perf_counter()
    done = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with exit code {done.returncode}:\n{done.stderr}")
    return time.perf_counter() - begun


def best_s(*command: str) -> float:
    """The shortest of several runs."""
    return min(seconds(command) for _ in range(REPEATS))


def list_kernels() -> None:
    """Run in a fresh cache and print, function by function, how long compiling took, callees not counted."""
    with tempfile.TemporaryDirectory() as cache:
        os.environ["NUMBA_CACHE_DIR"] = cache
        subprocess.run([sys.executable, __file__, "--compile"], stdout=subprocess.DEVNULL, check=True)


def compile_and_tell() -> None:
    """A run whose compilations are timed; the list goes to stderr."""
    spent: dict[str, list[float]] = defaultdict(list)
    compile_one, within = Dispatcher.compile, [0.0]

    def timed(self: Any, signature: Any) -> Any:
        begun, before = time.perf_counter(), within[0]
        made = compile_one(self, signature)
        whole = time.perf_counter() - begun
        spent[f"{self.py_func.__module__}.{self.py_func.__name__}"].append(whole - (within[0] - before))
        within[0] = before + whole
        return made

    Dispatcher.compile = timed
    cli(RUN, standalone_mode=False)
    costs = sorted(((sum(each), len(each), name) for name, each in spent.items()), reverse=True)
    print(f"compiling: {within[0]:.1f} s, {len(costs)} functions", file=sys.stderr)
    for total, times, name in costs[:KERNELS_LISTED]:
        print(f"  {total:5.2f} s  {times} x  {name}", file=sys.stderr)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", action="store_true", help="list the kernels that take longest to compile")
    parser.add_argument("--compile", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.compile:
        return compile_and_tell()
    print(f"python alone: {best_s('-c', 'pass'):.2f} s; import siltwin: {best_s('-c', 'import siltwin'):.2f} s")
    print(f"siltwin --help: {best_s('-m', 'siltwin', '--help'):.2f} s (under {HELP_LIMIT_S} s)")
    for what, run in (("run", RUN), ("run without numbers", BARE)):
        with tempfile.TemporaryDirectory() as cache:
            first = seconds(("-m", "siltwin", *run), cache)
            warm = min(seconds(("-m", "siltwin", *run), cache) for _ in range(2))
        print(f"first {what}: {first:.1f} s, warm: {warm:.1f} s, {first - warm:.1f} s more (under {FIRST_LIMIT_S} s)")
    if given.kernels:
        list_kernels()


if __name__ == "__main__":
    main()
