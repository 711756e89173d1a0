"""The tile schedule of a matrix product over a card's cores, searched as a kernel library would choose it, in Numba."""

from __future__ import annotations

import numpy as np
from numba import njit

# (rows, columns) of output tiles and lengths of K slabs that kernel libraries are built of.
TILES = np.array(
    [
        (16, 16), (16, 64), (16, 128), (16, 256), (32, 32), (32, 64), (32, 128), (32, 256),
        (64, 64), (64, 128), (64, 256), (128, 64), (128, 128), (128, 256), (256, 64), (256, 128), (256, 256),
    ],
    dtype=np.int64,
)  # fmt: skip
SLABS = np.array([32, 64, 128, 256], dtype=np.int64)
MAX_SPLIT = 32
ACCUMULATOR_BYTES = 4

# Places in the array that describes the cores to `search`.
ROWS, COLUMNS, DEPTH, STEP, FILL, SLAB, CORES, LOAD, OPERAND, ACCUMULATOR, MULTICAST, LANES, SYNC, EXPONENTIALS = range(
    14
)


@njit(cache=True)
def _ceil(a, b):  # type: ignore[no-untyped-def]
    return (a + b - 1) // b


@njit(cache=True)
def search(m, n, k, batch, bits, out_bytes, hbm_ps, ps_per_cycle, ps_per_l2_byte, core, tiles, slabs):  # type: ignore[no-untyped-def]
    """The fastest tile, K slab and K split for `batch` products [m, k] x [k, n] of `bits`-bit operands.

    `out_bytes` are the bytes of all results, `hbm_ps` the time of the unavoidable HBM traffic, `core` the numbers named
    above. Returns (picoseconds, tile rows, tile columns, slab, parts of K, waves, tensor cycles, flow cycles, L2 bytes,
    exposed cycles); tile rows are 0 when no tile fits the SRAM. Time is
        max(flow cycles, HBM, L2) + exposed cycles
    where flow is waves x max(array steps with fill and buffer swaps, operand loads), and exposed are the first slab's
    load, the last tile's store, and the sum over parts of K. Every tile is charged as a whole one, so time never
    falls as m or n grow. Ties go to the first candidate.
    """
    best = np.inf
    chosen = (0, 0, 0, 0, 0, 0, 0, 0, 0)
    out_elements = batch * m * n
    for index in range(tiles.shape[0]):
        tm, tn = tiles[index, 0], tiles[index, 1]
        if tm * tn * ACCUMULATOR_BYTES > core[ACCUMULATOR]:
            continue
        down, across = _ceil(m, tm), _ceil(n, tn)
        grid = down * across * batch
        array_steps = _ceil(tm, core[ROWS]) * _ceil(tn, core[COLUMNS]) * core[STEP]
        reads = batch * k * (m * across + n * down) * bits // 8 // core[MULTICAST]
        store = _ceil(tm * tn * _ceil(out_bytes, out_elements), core[LOAD])
        for s in range(slabs.shape[0]):
            tk = slabs[s]
            if 2 * (tm + tn) * tk * bits > 8 * core[OPERAND]:
                break
            split = 1
            while split <= MAX_SPLIT:
                part = _ceil(_ceil(k, split), tk) * tk if split > 1 else k
                parts = _ceil(k, part)
                steps = array_steps * _ceil(part, core[DEPTH]) + core[FILL] + core[SLAB] * _ceil(part, tk)
                load = _ceil((tm + tn) * part * bits, 8 * core[LOAD])
                waves = _ceil(grid * parts, core[CORES])
                flow = waves * max(steps, load)
                exposed = _ceil((tm + tn) * min(tk, part) * bits, 8 * core[LOAD]) + store
                l2 = reads + out_bytes
                if parts > 1:
                    l2 += 2 * out_elements * ACCUMULATOR_BYTES * parts
                    exposed += core[SYNC] + _ceil(out_elements * parts, core[CORES] * core[LANES])
                time = max(max(flow * ps_per_cycle, hbm_ps), l2 * ps_per_l2_byte) + exposed * ps_per_cycle
                if time < best:
                    best = time
                    chosen = (tm, tn, tk, parts, waves, waves * steps, flow, l2, exposed)
                if part <= tk or grid * parts >= 2 * core[CORES]:
                    break
                split *= 2
    return (best,) + chosen
