"""The tile schedules of matrix products over a card's cores, in Numba."""

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

# Places in the array that describes the cores to `search` and to `attention_tiles.schedule`.
ROWS, COLUMNS, DEPTH, STEP, FILL, SLAB = range(6)
CORES, LOAD, OPERAND, ACCUMULATOR, MULTICAST, LANES, SYNC, EXPONENTIALS = range(6, 14)


@njit(cache=True)
def ceil_div(a, b):  # type: ignore[no-untyped-def]
    return (a + b - 1) // b


@njit(cache=True)
def search(rows, n, k, bits, out_bytes, hbm_ps, ps_per_cycle, ps_per_l2_byte, core, tiles, slabs):  # type: ignore[no-untyped-def]
    """The fastest tile, K slab and K split for products [rows[i], k] x [k, n] of `bits`-bit operands.

    The tiles of all products are dealt over the cores together; a tile holds rows of one product only.
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
    total_rows = np.int64(0)
    for i in range(rows.size):
        total_rows += rows[i]
    out_elements = total_rows * n
    for index in range(tiles.shape[0]):
        tm, tn = tiles[index, 0], tiles[index, 1]
        if tm * tn * ACCUMULATOR_BYTES > core[ACCUMULATOR]:
            continue
        down, across = np.int64(0), ceil_div(n, tn)
        for i in range(rows.size):
            down += ceil_div(rows[i], tm)
        grid = down * across
        array_steps = ceil_div(tm, core[ROWS]) * ceil_div(tn, core[COLUMNS]) * core[STEP]
        reads = k * (total_rows * across + n * down) * bits // 8 // core[MULTICAST]
        store = ceil_div(tm * tn * ceil_div(out_bytes, out_elements), core[LOAD])
        for s in range(slabs.shape[0]):
            tk = slabs[s]
            if 2 * (tm + tn) * tk * bits > 8 * core[OPERAND]:
                break
            split = 1
            while split <= MAX_SPLIT:
                part = ceil_div(ceil_div(k, split), tk) * tk if split > 1 else k
                parts = ceil_div(k, part)
                steps = array_steps * ceil_div(part, core[DEPTH]) + core[FILL] + core[SLAB] * ceil_div(part, tk)
                load = ceil_div((tm + tn) * part * bits, 8 * core[LOAD])
                waves = ceil_div(grid * parts, core[CORES])
                flow = waves * max(steps, load)
                exposed = ceil_div((tm + tn) * min(tk, part) * bits, 8 * core[LOAD]) + store
                l2 = reads + out_bytes
                if parts > 1:
                    l2 += 2 * out_elements * ACCUMULATOR_BYTES * parts
                    exposed += core[SYNC] + ceil_div(out_elements * parts, core[CORES] * core[LANES])
                time = max(max(flow * ps_per_cycle, hbm_ps), l2 * ps_per_l2_byte) + exposed * ps_per_cycle
                if time < best:
                    best = time
                    chosen = (tm, tn, tk, parts, waves, waves * steps, flow, l2, exposed)
                if part <= tk or grid * parts >= 2 * core[CORES]:
                    break
                split *= 2
    return (best,) + chosen


@njit(cache=True)
def search_lanes(rows, empty, n, k, bits, out_bytes, hbm_ps, ps_per_cycle, ps_per_l2_byte, core, tiles, slabs):  # type: ignore[no-untyped-def]
    """`search` for the products of many cards, rows [lanes, products], out_bytes and hbm_ps [lanes].

    Returns picoseconds [lanes], and [lanes, 4] of tile rows, tensor cycles, flow cycles and L2 bytes; 0 where `empty`.
    """
    times = np.zeros(rows.shape[0])
    plans = np.zeros((rows.shape[0], 4), np.int64)
    for lane in range(rows.shape[0]):
        if empty[lane]:
            continue
        found = search(
            rows[lane], n, k, bits, out_bytes[lane], hbm_ps[lane], ps_per_cycle, ps_per_l2_byte, core, tiles, slabs
        )
        times[lane] = found[0]
        plans[lane, 0] = found[1]
        plans[lane, 1], plans[lane, 2], plans[lane, 3] = found[6], found[7], found[8]
    return times, plans
