"""Operators of decoder layers, measured and emulated, by operator and as whole layers.

    python benchmarks/layers.py CARD FILE [FILE ..] [--every N]

A FILE is a table of one model's layers as Vidur profiles them: `num_tokens`, `num_tensor_parallel_workers`, the sizes
of the model, and `time_stats.<operator>.median` in milliseconds. `--every N` takes every Nth row.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from siltwin.emulator.spec import CardSpec, load_card
from siltwin.runtime.fidelity.layers import OPERATORS, emulated_layers, measured_layers

LAYER = "all of them"


def errors(path: Path, card: CardSpec, every: int) -> dict[str, list[float]]:
    """Relative errors of every row by operator, and of the sum of a row's operators."""
    rows = measured_layers(path)[::every]
    found: dict[str, list[float]] = {own: [] for own in (*OPERATORS, LAYER)}
    for row, emulated in zip(rows, emulated_layers(rows, card), strict=True):
        for own in OPERATORS:
            found[own].append(emulated[own] / row.ms[own] - 1)
        found[LAYER].append(sum(emulated.values()) / sum(row.ms.values()) - 1)
    return found


def main() -> None:
    """Print a line an operator."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("card")
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--every", type=int, default=1)
    asked = parser.parse_args()
    tables = [errors(path, load_card(asked.card), asked.every) for path in asked.files]
    print(f"{asked.card}: {len(tables)} tables\n{'operator':<18} {'rows':>6} {'mean':>8} {'median':>8} {'bias':>8}")
    for own in (*OPERATORS, LAYER):
        all_ = np.concatenate([table[own] for table in tables])
        mean, median, bias = np.abs(all_).mean(), np.median(np.abs(all_)), np.median(all_)
        print(f"{own:<18} {len(all_):>6} {mean:>8.1%} {median:>8.1%} {bias:>+8.1%}")


if __name__ == "__main__":
    main()
