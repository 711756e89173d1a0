"""The tile schedules of matrix products and of attention over a card's cores, in Numba.

Both stand in one file because Numba's cache of compiled code does not see changes in another.
"""

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

# Places in the array that describes the cores to `search` and `schedule`.
ROWS, COLUMNS, DEPTH, STEP, FILL, SLAB = range(6)
CORES, LOAD, OPERAND, ACCUMULATOR, MULTICAST, LANES, SYNC, EXPONENTIALS = range(6, 14)

QUERY_ROWS = 128  # rows of a query tile: the heads of one group times tokens
KV_BLOCK = 64  # tokens of the cache a tile advances by
SOFTMAX_OPS = 5  # lane operations a score beside its exponential: scale, maximum, subtract, sum, cast
SOFT_CAP_OPS = 4  # and where scores are capped: divide, two for a tanh from one more exponential, multiply
CLASSES = 8  # tiles of one sequence are counted in at most this many sizes


@njit(cache=True)
def _ceil(a, b):  # type: ignore[no-untyped-def]
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
        down, across = np.int64(0), _ceil(n, tn)
        for i in range(rows.size):
            down += _ceil(rows[i], tm)
        grid = down * across
        array_steps = _ceil(tm, core[ROWS]) * _ceil(tn, core[COLUMNS]) * core[STEP]
        reads = k * (total_rows * across + n * down) * bits // 8 // core[MULTICAST]
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


@njit(cache=True)
def _item(rows, blocks, dims, bits, capped, core):  # type: ignore[no-untyped-def]
    """(array cycles, lane cycles, load cycles, all cycles) of `rows` query rows against `blocks` blocks of the cache.

    The softmax of a block waits for its scores, and its values wait for the softmax, so array and lanes take turns;
    operand loads hide behind both or bound both.
    """
    tokens = blocks * KV_BLOCK
    score = _ceil(tokens, core[COLUMNS]) * _ceil(dims[0], core[DEPTH])
    value = _ceil(dims[1], core[COLUMNS]) * _ceil(tokens, core[DEPTH])
    array = _ceil(rows, core[ROWS]) * (score + value) * core[STEP] + 2 * core[FILL] + core[SLAB] * blocks
    scores = rows * tokens
    lanes = _ceil(scores * SOFTMAX_OPS, core[LANES]) + _ceil(scores, core[EXPONENTIALS])
    if capped:
        lanes += _ceil(scores * SOFT_CAP_OPS, core[LANES]) + _ceil(scores, core[EXPONENTIALS])
    load = _ceil(tokens * dims[2] * bits, 8 * core[LOAD])
    return array, lanes, load, max(array + lanes, load)


@njit(cache=True)
def _tile(start, q_len, kv_len, group, window, chunk):  # type: ignore[no-untyped-def]
    """(rows, blocks) of the query tile that starts at row `start`: causal, inside window or chunk if there is one."""
    end = min(start + QUERY_ROWS, q_len * group)
    high = kv_len - q_len + (end - 1) // group + 1
    position = kv_len - q_len + start // group
    low = max(0, position + 1 - window) if window else position // chunk * chunk if chunk else 0
    return end - start, _ceil(max(1, high), KV_BLOCK) - low // KV_BLOCK


@njit(cache=True)
def _sort_longest_first(costs, counts):  # type: ignore[no-untyped-def]
    """Sort both arrays by falling costs, in place (Shell's sort: NumPy's takes seconds to compile)."""
    gap = costs.size // 2
    while gap > 0:
        for right in range(gap, costs.size):
            cost, count, left = costs[right], counts[right], right - gap
            while left >= 0 and costs[left] < cost:
                costs[left + gap], counts[left + gap] = costs[left], counts[left]
                left -= gap
            costs[left + gap], counts[left + gap] = cost, count
        gap //= 2


@njit(cache=True)
def _makespan(costs, counts, longest, total, cores):  # type: ignore[no-untyped-def]
    """The least time in which `cores` cores finish the items: by the longest one, their sum, and how many are at least
    each size.

    Exact for equal items, and never shorter for more or longer ones. Sorts the arrays.
    """
    _sort_longest_first(costs, counts)
    least = max(longest, _ceil(total, cores))
    seen = 0
    for index in range(costs.size):
        seen += counts[index]
        least = max(least, _ceil(seen, cores) * costs[index])
    return least


@njit(cache=True)
def _deal(q_lens, kv_lens, group, kv_heads, dims, limits, bits, split, core):  # type: ignore[no-untyped-def]
    """(makespan; array, lane, load and all cycles summed; blocks loaded; items), every tile's cache cut in `split`."""
    costs = np.zeros(CLASSES * q_lens.size, dtype=np.int64)
    counts = np.zeros(CLASSES * q_lens.size, dtype=np.int64)
    used, longest = 0, 0
    arrays, lanes, loads, total, loaded, items = 0, 0, 0, 0, 0, 0
    for sequence in range(q_lens.size):
        q_len, kv_len = q_lens[sequence], kv_lens[sequence]
        tiles = _ceil(q_len * group, QUERY_ROWS)
        for tile in range(tiles):
            rows, blocks = _tile(tile * QUERY_ROWS, q_len, kv_len, group, limits[0], limits[1])
            chunk = _ceil(blocks, split)
            pieces = _ceil(blocks, chunk) * kv_heads
            array, lane, load, cost = _item(rows, chunk, dims, bits, limits[2], core)
            arrays += array * pieces
            lanes += lane * pieces
            loads += load * pieces
            longest = max(longest, cost)
            total += cost * pieces
            loaded += chunk * pieces
            items += pieces
            place = used + tile * CLASSES // max(tiles, CLASSES)
            counts[place] += pieces
            costs[place] = cost if costs[place] == 0 else min(costs[place], cost)
        used += min(tiles, CLASSES)
    return (
        _makespan(costs[:used], counts[:used], longest, total, core[CORES]),
        arrays,
        lanes,
        loads,
        total,
        loaded,
        items,
    )


@njit(cache=True)
def schedule(q_lens, kv_lens, group, kv_heads, dims, limits, bits, hbm_ps, ps_cycle, ps_l2_byte, core):  # type: ignore[no-untyped-def]
    """Attention of sequences with `q_lens` new tokens over `kv_lens` cached ones, each kv head serving `group` heads.

    `dims` are the elements of a key, of a value, and of what is read of the cache for both: fewer than their sum where
    values are part of keys; `limits` are window, chunk, and 1 where scores are softly capped. The cache of every tile
    is cut in as many parts (powers of two) as makes the whole fastest, as long as tiles are fewer than four a core.
    Returns (picoseconds, tensor cycles, vector cycles, flow cycles, L2 bytes, whether loads outlast array and lanes);
    the unit cycles are the makespan in proportion to what each did.
    """
    best = np.inf
    chosen = (0, 0, 0, 0, False)
    v_dim = dims[1]
    rows_all = 0
    for q_len in q_lens:
        rows_all += group * kv_heads * q_len
    split = 1
    while split <= MAX_SPLIT:
        flow, arrays, lanes, loads, total, loaded, items = _deal(
            q_lens, kv_lens, group, kv_heads, dims, limits, bits, split, core
        )
        l2 = (loaded * KV_BLOCK * dims[2] + rows_all * (dims[0] + v_dim)) * bits // 8
        exposed = 0
        if split > 1:
            l2 += 2 * split * rows_all * v_dim * ACCUMULATOR_BYTES
            exposed = core[SYNC] + _ceil(rows_all * v_dim * split, core[CORES] * core[LANES])
        time = max(max(flow * ps_cycle, hbm_ps), l2 * ps_l2_byte) + exposed * ps_cycle
        if time < best:
            best = time
            share = flow / total
            chosen = (int(np.ceil(arrays * share)), int(np.ceil(lanes * share)), flow, l2, loads > arrays + lanes)
        if items >= 4 * core[CORES]:
            break
        split *= 2
    return best, chosen[0], chosen[1], chosen[2], chosen[3], chosen[4]
