"""The schedule of attention over a card's cores: query tiles against their own stretch of the cache, in Numba."""

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
)

QUERY_ROWS = 128  # rows of a query tile: the heads of one group times tokens
KV_BLOCK = 64  # tokens of the cache a tile advances by
SOFTMAX_OPS = 5  # lane operations a score beside its exponential: scale, maximum, subtract, sum, cast
CLASSES = 8  # tiles of one sequence are counted in at most this many sizes


@njit(cache=True)
def _ceil(a, b):  # type: ignore[no-untyped-def]
    return (a + b - 1) // b


@njit(cache=True)
def _item(rows, blocks, dims, bits, core):  # type: ignore[no-untyped-def]
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
    load = _ceil(tokens * (dims[0] + dims[1]) * bits, 8 * core[LOAD])
    return array, lanes, load, max(array + lanes, load)


@njit(cache=True)
def _tile(start, q_len, kv_len, group, window):  # type: ignore[no-untyped-def]
    """(rows, blocks) of the query tile that starts at row `start`: causal, and inside the window where there is one."""
    end = min(start + QUERY_ROWS, q_len * group)
    high = kv_len - q_len + (end - 1) // group + 1
    low = max(0, kv_len - q_len + start // group + 1 - window) if window else 0
    return end - start, _ceil(max(1, high), KV_BLOCK) - low // KV_BLOCK


@njit(cache=True)
def _makespan(costs, counts, total, cores):  # type: ignore[no-untyped-def]
    """The least time in which `cores` cores finish the items: by their sum, and by how many are at least each size.

    Exact for equal items, and never shorter for more or longer ones.
    """
    longest = _ceil(total, cores)
    seen = 0
    order = np.argsort(-costs)
    for index in order:
        seen += counts[index]
        longest = max(longest, _ceil(seen, cores) * costs[index])
    return longest


@njit(cache=True)
def _deal(q_lens, kv_lens, group, kv_heads, dims, window, bits, split, core):  # type: ignore[no-untyped-def]
    """(makespan; array, lane, load and all cycles summed; blocks loaded; items), every tile's cache cut in `split`."""
    costs = np.zeros(CLASSES * q_lens.size, dtype=np.int64)
    counts = np.zeros(CLASSES * q_lens.size, dtype=np.int64)
    arrays, lanes, loads, total, loaded, items = 0, 0, 0, 0, 0, 0
    for sequence in range(q_lens.size):
        q_len, kv_len = q_lens[sequence], kv_lens[sequence]
        tiles = _ceil(q_len * group, QUERY_ROWS)
        for tile in range(tiles):
            rows, blocks = _tile(tile * QUERY_ROWS, q_len, kv_len, group, window)
            chunk = _ceil(blocks, split)
            pieces = _ceil(blocks, chunk) * kv_heads
            array, lane, load, cost = _item(rows, chunk, dims, bits, core)
            arrays += array * pieces
            lanes += lane * pieces
            loads += load * pieces
            total += cost * pieces
            loaded += chunk * pieces
            items += pieces
            place = CLASSES * sequence + tile * CLASSES // max(tiles, CLASSES)
            counts[place] += pieces
            costs[place] = cost if costs[place] == 0 else min(costs[place], cost)
    return _makespan(costs, counts, total, core[CORES]), arrays, lanes, loads, total, loaded, items


@njit(cache=True)
def schedule(q_lens, kv_lens, group, kv_heads, qk_dim, v_dim, window, bits, hbm_ps, ps_cycle, ps_l2_byte, core):  # type: ignore[no-untyped-def]
    """Attention of sequences with `q_lens` new tokens over `kv_lens` cached ones, each kv head serving `group` heads.

    The cache of every tile is cut in as many parts (powers of two) as makes the whole fastest, as long as tiles are
    fewer than four a core. Returns (picoseconds, tensor cycles, vector cycles, flow cycles, L2 bytes, whether loads
    outlast array and lanes); the unit cycles are the makespan in proportion to what each did.
    """
    best = np.inf
    chosen = (0, 0, 0, 0, False)
    dims = (qk_dim, v_dim)
    rows_all = group * kv_heads * np.sum(q_lens)
    split = 1
    while split <= MAX_SPLIT:
        flow, arrays, lanes, loads, total, loaded, items = _deal(
            q_lens, kv_lens, group, kv_heads, dims, window, bits, split, core
        )
        l2 = (loaded * KV_BLOCK + rows_all) * (qk_dim + v_dim) * bits // 8
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
