"""The tile schedules of attention over a card's cores, in Numba."""

from __future__ import annotations

import numpy as np
from numba import njit

from .tiles import (
    ACCUMULATOR_BYTES,
    COLUMNS,
    CORES,
    DEPTH,
    EXPONENTIALS,
    FILL,
    LANES,
    LOAD,
    MAX_SPLIT,
    ROWS,
    SLAB,
    STEP,
    SYNC,
    ceil_div,
)

QUERY_ROWS = 128  # rows of a query tile: the heads of one group times tokens
KV_BLOCK = 64  # tokens of the cache a tile advances by
SOFTMAX_OPS = 5  # lane operations a score beside its exponential: scale, maximum, subtract, sum, cast
SOFT_CAP_OPS = 4  # and where scores are capped: divide, two for a tanh from one more exponential, multiply
CLASSES = 8  # tiles of one sequence are counted in at most this many sizes


@njit(cache=True)
def _item(rows, blocks, dims, bits, capped, core):  # type: ignore[no-untyped-def]
    """(array cycles, lane cycles, load cycles, all cycles) of `rows` query rows against `blocks` blocks of the cache.

    The softmax of a block waits for its scores, and its values wait for the softmax, so array and lanes take turns;
    operand loads hide behind both or bound both.
    """
    tokens = blocks * KV_BLOCK
    score = ceil_div(tokens, core[COLUMNS]) * ceil_div(dims[0], core[DEPTH])
    value = ceil_div(dims[1], core[COLUMNS]) * ceil_div(tokens, core[DEPTH])
    array = ceil_div(rows, core[ROWS]) * (score + value) * core[STEP] + 2 * core[FILL] + core[SLAB] * blocks
    scores = rows * tokens
    lanes = ceil_div(scores * SOFTMAX_OPS, core[LANES]) + ceil_div(scores, core[EXPONENTIALS])
    if capped:
        lanes += ceil_div(scores * SOFT_CAP_OPS, core[LANES]) + ceil_div(scores, core[EXPONENTIALS])
    load = ceil_div(tokens * dims[2] * bits, 8 * core[LOAD])
    return array, lanes, load, max(array + lanes, load)


@njit(cache=True)
def _tile(start, q_len, kv_len, group, window, chunk):  # type: ignore[no-untyped-def]
    """(rows, blocks) of the query tile that starts at row `start`: causal, inside window or chunk if there is one."""
    end = min(start + QUERY_ROWS, q_len * group)
    high = kv_len - q_len + (end - 1) // group + 1
    position = kv_len - q_len + start // group
    low = max(0, position + 1 - window) if window else position // chunk * chunk if chunk else 0
    return end - start, ceil_div(max(1, high), KV_BLOCK) - low // KV_BLOCK


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
    least = max(longest, ceil_div(total, cores))
    seen = 0
    for index in range(costs.size):
        seen += counts[index]
        least = max(least, ceil_div(seen, cores) * costs[index])
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
        tiles = ceil_div(q_len * group, QUERY_ROWS)
        for tile in range(tiles):
            rows, blocks = _tile(tile * QUERY_ROWS, q_len, kv_len, group, limits[0], limits[1])
            chunk = ceil_div(blocks, split)
            pieces = ceil_div(blocks, chunk) * kv_heads
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
            exposed = core[SYNC] + ceil_div(rows_all * v_dim * split, core[CORES] * core[LANES])
        time = max(max(flow * ps_cycle, hbm_ps), l2 * ps_l2_byte) + exposed * ps_cycle
        if time < best:
            best = time
            share = flow / total
            chosen = (int(np.ceil(arrays * share)), int(np.ceil(lanes * share)), flow, l2, loads > arrays + lanes)
        if items >= 4 * core[CORES]:
            break
        split *= 2
    return best, chosen[0], chosen[1], chosen[2], chosen[3], chosen[4]
