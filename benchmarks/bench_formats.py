"""How fast packed weights become float32 rows, in elements a second on one thread, by scheme.

python benchmarks/bench_formats.py [ROWS COLS]
"""

import sys
import time

import numpy as np

from siltwin.emulator.kernels.formats import RowDecoder, row_decoder
from siltwin.isa.formats.quantise import quantise
from siltwin.isa.formats.scheme import SCHEMES

STRIPE = 16  # rows at a time, so that what is decoded stays in cache as a matmul's panel does
REPEATS = 20


def seconds(decoder: RowDecoder, rows: int, cols: int) -> float:
    """The best of some passes over all rows."""
    out = np.empty((STRIPE, cols), np.float32)
    best = float("inf")
    for _ in range(REPEATS):
        start = time.perf_counter()
        for first in range(0, rows - STRIPE + 1, STRIPE):
            decoder(out, first)
        best = min(best, time.perf_counter() - start)
    return best


def main(rows: int = 512, cols: int = 4096) -> None:
    values = np.random.default_rng(0).standard_normal((rows, cols)).astype(np.float32)
    for name, scheme in SCHEMES.items():
        decoder = row_decoder(quantise(values, scheme))
        decoder(np.empty((STRIPE, cols), np.float32), 0)
        rate = rows // STRIPE * STRIPE * cols / seconds(decoder, rows, cols)
        print(f"{name:32} {rate / 1e9:6.2f} G elements/s")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
