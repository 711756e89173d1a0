"""How long one timing takes: the demand of matrix products on a card, none of which was asked before.

    python benchmarks/bench_demand.py [--card NAME|FILE.yaml ..] [--products N]

Random m, n and k from 1 to 16,384, their logarithms evenly spread, in bf16; the function behind the cache of `demand`
is asked once for each. Processor time, the best of several rounds. A card from `siltwin calibrate --fit full` adds what
was learned.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from siltwin.emulator.spec import CardSpec, load_card
from siltwin.emulator.units.demand import demand
from siltwin.isa.work import Work
from siltwin.runtime.calibration.works import gemm_works

TARGET_US = 20.0
ROUNDS = 5


def products(number: int, seed: int) -> list[Work]:
    """The Work of seeded random products."""
    sizes = np.exp(np.random.default_rng(seed).uniform(0, np.log(16384), (number, 3))).astype(int)
    return [gemm_works("bf16", *size)[0] for size in sizes.tolist()]


def microseconds(card: CardSpec, number: int) -> float:
    """Processor time of one timing, mean over `number`, the best round; other products each round."""
    ask = demand.__wrapped__
    ask(products(1, 0)[0], card)  # compiles, or loads what was compiled
    rounds = []
    for seed in range(1, ROUNDS + 1):
        asked = products(number, seed)
        begun = time.process_time()
        for work in asked:
            ask(work, card)
        rounds.append((time.process_time() - begun) / number * 1e6)
    return min(rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--card", nargs="+", default=["h100-sxm"])
    parser.add_argument("--products", type=int, default=2000)
    asked = parser.parse_args()
    for name in asked.card:
        took = microseconds(load_card(name), asked.products)
        verdict = "within" if took <= TARGET_US else "OVER"
        print(f"{name}: {took:.1f} us a product ({verdict} {TARGET_US:g})")


if __name__ == "__main__":
    main()
