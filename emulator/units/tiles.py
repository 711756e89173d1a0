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
SLABS = np.array([64, 32], dtype=np.int64)  # elements; the first that fits
MAX_SPLIT = 32
ACCUMULATOR_BYTES = 4

# Places in the array that describes the cores to `search` and to `attention_tiles.schedule`.
ROWS, COLUMNS, DEPTH, STEP, FILL, SLAB = range(6)
CORES, LOAD, OPERAND, ACCUMULATOR, MULTICAST, LANES, SYNC, EXPONENTIALS = range(6, 14)
# And in the array of a library's constants: picoseconds, then fields of `tuning.ProductTuning`.
WAIT_PS, SLABS_LOST, STORE, LOADED, SMOOTHING, SPILL, SPLIT_CYCLES, REREADS = range(8)


@njit(cache=True)
def ceil_div(a, b):  # type: ignore[no-untyped-def]
    return (a + b - 1) // b


@njit(cache=True)
def together(a, b, spill):  # type: ignore[no-untyped-def]
    """The time of two things that overlap but for `spill`: their maximum at 0, their sum at 1."""
    return (a + b + np.sqrt((a - b) * (a - b) + 4 * spill * a * b)) / 2


@njit(cache=True)
def waves_of(items, cores, smoothing):  # type: ignore[no-untyped-def]
    """Waves of so many equal items over the cores; of the idle part of a last one that is not the first, `smoothing`
    is filled."""
    whole = ceil_div(items, cores)
    return float(whole) if whole == 1 else whole - smoothing * (whole - items / cores)


@njit(cache=True)
def slab_of(tm, tn, bits, slabs, core):  # type: ignore[no-untyped-def]
    """The first slab of K of which a core holds two of a tile's operands, or 0."""
    for slab in slabs:
        if 2 * (tm + tn) * slab * bits <= 8 * core[OPERAND]:
            return slab
    return 0


@njit(cache=True)
def part_of(step, tk):  # type: ignore[no-untyped-def]
    """The lengths in which K may be cut: 4, 5, 6, 7, 8, 10, 12, 14, 16, 20 ... slabs.

    They are the same ones for any K, so that a longer K is never faster.
    """
    return (4 + step % 4 << step // 4) * tk


@njit(cache=True)
def first_step(k, tk):  # type: ignore[no-untyped-def]
    """The step of the longest part that is shorter than `k`; -1 where there is none."""
    slabs, octave = (k - 1) // tk, 0
    if slabs < 4:
        return -1
    while slabs >> octave >= 8:
        octave += 1
    return 4 * octave + (slabs >> octave) - 4


@njit(cache=True)
def search(rows, n, k, bits, out_bytes, hbm_ps, ps_per_cycle, ps_per_l2_byte, core, knobs, tiles, slabs):  # type: ignore[no-untyped-def]
    """The fastest tile and K split for products [rows[i], k] x [k, n] of `bits`-bit operands.

    The tiles of all products are dealt over the cores together; a tile holds rows of one product only.
    `out_bytes` are the bytes of all results, `hbm_ps` the time of the unavoidable HBM traffic, `core` and `knobs` the
    numbers named above. Returns (picoseconds, tile rows, tile columns, slab, parts of K, waves, tensor cycles, flow
    picoseconds, L2 bytes, exposed cycles, whether tiles wait for loads); tile rows are 0 when no tile fits the SRAM.
    Time is
        flow, L2 and HBM together + exposed cycles
    where flow is waves x (max(array steps with fill and buffer swaps, operand loads) + what a tile waits at its begin
    and its end), and exposed are the first slab's load, the last tile's store, and the sum over parts of K. Every tile
    is charged as a whole one, so time never falls as m or n grow. Ties go to the first candidate.
    """
    best = np.inf
    chosen = (0, 0, 0, 0, 0, 0, 0.0, 0, 0, False)
    total_rows = np.int64(0)
    for i in range(rows.size):
        total_rows += rows[i]
    out_elements = total_rows * n
    for index in range(tiles.shape[0]):
        tm, tn = tiles[index, 0], tiles[index, 1]
        tk = slab_of(tm, tn, bits, slabs, core)
        if tk == 0 or tm * tn * ACCUMULATOR_BYTES > core[ACCUMULATOR]:
            continue
        down, across = np.int64(0), ceil_div(n, tn)
        for i in range(rows.size):
            down += ceil_div(rows[i], tm)
        grid = down * across
        array_steps = ceil_div(tm, core[ROWS]) * ceil_div(tn, core[COLUMNS]) * core[STEP]
        reads = k * (total_rows * across + n * down) * bits // 8 // core[MULTICAST]
        store = ceil_div(tm * tn * ceil_div(out_bytes, out_elements), core[LOAD])
        step, part = first_step(k, tk), k
        while True:
            parts, swaps = ceil_div(k, part), core[SLAB] * ceil_div(part, tk)
            steps = array_steps * ceil_div(part, core[DEPTH]) + core[FILL]
            load = ceil_div((tm + tn) * part * bits, 8 * core[LOAD]) / knobs[LOADED]
            computing = steps + swaps * knobs[SLABS_LOST]
            waves = waves_of(grid * parts, core[CORES], knobs[SMOOTHING])
            flow = waves * ((max(computing, load) + knobs[STORE] * store) * ps_per_cycle + knobs[WAIT_PS])
            exposed = float(ceil_div((tm + tn) * min(tk, part) * bits, 8 * core[LOAD]) + store)
            l2 = reads + out_bytes
            if parts > 1:
                l2 += 2 * out_elements * ACCUMULATOR_BYTES * parts
                exposed += core[SYNC] + ceil_div(out_elements * parts, core[CORES] * core[LANES]) + knobs[SPLIT_CYCLES]
            on_chip = together(flow, l2 * knobs[REREADS] * ps_per_l2_byte, knobs[SPILL])
            time = together(on_chip, hbm_ps, knobs[SPILL]) + exposed * ps_per_cycle
            if time < best:
                best = time
                count = ceil_div(grid * parts, core[CORES])
                arrays, around = int(waves * (steps + swaps)), int(np.ceil(exposed))
                chosen = (tm, tn, tk, parts, count, arrays, flow, l2, around, load > computing)
            if step < 0 or grid * parts >= 2 * core[CORES] or parts >= MAX_SPLIT:
                break
            part, step = part_of(step, tk), step - 1
    return (best,) + chosen


@njit(cache=True)
def search_lanes(rows, empty, n, k, bits, out_bytes, hbm_ps, ps_per_cycle, ps_per_l2_byte, core, knobs, tiles, slabs):  # type: ignore[no-untyped-def]
    """`search` for the products of many cards, rows [lanes, products], out_bytes and hbm_ps [lanes].

    Returns picoseconds alone and of the flow [2, lanes], and [lanes, 4] of tile rows, tensor cycles, L2 bytes and
    whether tiles wait for loads; 0 where `empty`.
    """
    times = np.zeros((2, rows.shape[0]))
    plans = np.zeros((rows.shape[0], 4), np.int64)
    for lane in range(rows.shape[0]):
        if empty[lane]:
            continue
        found = search(
            rows[lane], n, k, bits, out_bytes[lane], hbm_ps[lane], ps_per_cycle, ps_per_l2_byte, core, knobs,
            tiles, slabs,
        )  # fmt: skip
        times[0, lane], times[1, lane] = found[0], found[7]
        plans[lane, 0], plans[lane, 1], plans[lane, 2], plans[lane, 3] = found[1], found[6], found[8], found[10]
    return times, plans
