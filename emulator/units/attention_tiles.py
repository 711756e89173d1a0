"""The schedule of attention over a card's cores, in Numba: tiles of queries, and the parts their caches are cut into.

Sums over the tiles of a sequence are closed, so a long prompt takes no longer to schedule than a short one.
"""

from __future__ import annotations

import numpy as np
from numba import njit

# Places in the array that describes the cores, and in those of the constants of prefill and decode in `tuning`.
ROWS, COLUMNS, DEPTH, STEP, FILL, SLAB, CORES, LOAD, LANES, EXPONENTIALS = range(10)
P_TILE, P_MATRIX, P_SOFTMAX, P_OVERLAP, P_IMBALANCE, P_PARTS, P_APPEND = range(1, 8)
D_TILE, D_MATRIX, D_IMBALANCE, D_PARTS, D_LONE_PARTS, D_PORT = range(1, 7)

QUERY_ROWS = 128  # least rows of a query tile, which fills the array: the heads of one group times tokens
DECODE_ROWS = 64  # rows that a tile of decode is filled up to
KV_BLOCK = 128  # tokens of the cache that a tile advances by: half of the last one is wasted on average
DECODED = 8  # new tokens of a sequence up to which the decode kernel takes it
SPLIT_FILL = 0.8  # the share of the cores that tiles must leave idle before caches are cut
APPEND_BYTES = 2048  # of a cache row beyond which writing one takes a core no longer
DECODE_SOFTMAX = 5.0  # lane operations a score of decode, beside its exponential
SOFT_CAP_OPS = 4  # lane operations where scores are capped: divide, two for a tanh, multiply


@njit(cache=True)
def _ceil(a, b):  # type: ignore[no-untyped-def]
    return (a + b - 1) // b


@njit(cache=True)
def _array_cycles(rows, dims, core):  # type: ignore[no-untyped-def]
    """Cycles of the array for `rows` query rows against one token of the cache: its scores, and its part of values."""
    score = _ceil(dims[0], core[DEPTH]) / core[COLUMNS]
    value = _ceil(dims[1], core[COLUMNS]) / core[DEPTH]
    return _ceil(rows, core[ROWS]) * (score + value) * core[STEP] + core[SLAB] / KV_BLOCK


@njit(cache=True)
def _lane_cycles(rows, operations, capped, core):  # type: ignore[no-untyped-def]
    """Cycles of the lanes for the softmax of as many scores: operations, and an exponential or, capped, two."""
    if capped:
        return rows * ((operations + SOFT_CAP_OPS) / core[LANES] + 2.0 / core[EXPONENTIALS])
    return rows * (operations / core[LANES] + 1.0 / core[EXPONENTIALS])


@njit(cache=True)
def _seen_by_tiles(tiles, q_len, kv_len, step, window, chunk):  # type: ignore[no-untyped-def]
    """(Tokens of the cache that the tiles see, summed; those of the tile that sees most).

    A tile holds `step` new tokens, and sees all up to its own last one, inside the window or chunk if there is one.
    """
    past = kv_len - q_len
    most = min(float(kv_len), window + step if window else chunk + step if chunk else float(kv_len))
    if chunk:
        seen = 0.0
        for tile in range(tiles):
            first = past + int(tile * step)
            seen += min(past + (tile + 1) * step, float(kv_len)) - first // chunk * chunk
        return seen, most
    growing = tiles
    if window:  # tiles up to which all is seen
        growing = int(min(float(tiles), max(0.0, np.floor((window - past) / step) + 1)))
    seen = growing * past + step * growing * (growing + 1) / 2.0
    if growing == tiles:
        seen -= tiles * step - q_len  # the last tile may hold fewer tokens
    return seen + (tiles - growing) * (window + step), most


@njit(cache=True)
def _seen_by_row(q_len, kv_len, window, chunk):  # type: ignore[no-untyped-def]
    """Tokens of the cache that any of a few new tokens sees."""
    if window:
        return min(kv_len, window + q_len - 1)
    return kv_len - (kv_len - q_len) // chunk * chunk if chunk else kv_len


@njit(cache=True)
def schedule(q_lens, kv_lens, group, kv_heads, dims, limits, row_bytes, core, prefill, decode):  # type: ignore[no-untyped-def]
    """Attention of sequences with `q_lens` new tokens over `kv_lens` cached ones, each kv head serving `group` heads.

    `dims` are the elements of a key and of a value; `limits` are window, chunk, and 1 where scores are softly capped.
    A tile reads `row_bytes` of each token of one kv head. Returns cycles: (flow with caches whole, flow with caches
    cut, of the array, of the lanes), the last two shared by all cores; then tile-tokens read, tokens read by decoding
    sequences, the share of the flow that loads outlast, and whether sequences of either kind are there.

    A tile's time is that of its start and of every token it sees: array and lanes, which overlap in part, or loads
    where these outlast them. The flow is the longest tile's or, where that is more, all tiles' shared by the cores and
    the part of the longest by which the cores do not end together. Tiles of a few new tokens are memory's: a core draws
    a part of what its port could carry. Caches are cut where tiles leave cores idle, and shorten the longest tile.
    """
    query_rows = max(QUERY_ROWS, core[ROWS])
    p_array = _array_cycles(query_rows, dims, core)
    p_lanes = _lane_cycles(query_rows, prefill[P_SOFTMAX], limits[2], core)
    p_busy, p_load = p_array / prefill[P_MATRIX], row_bytes / core[LOAD]
    p_busy = max(p_busy, p_lanes) + (1.0 - prefill[P_OVERLAP]) * min(p_busy, p_lanes)
    p_token = max(p_busy, p_load)
    d_load = row_bytes / (core[LOAD] * decode[D_PORT])
    append = prefill[P_APPEND] * min(1.0, kv_heads * row_bytes / APPEND_BYTES)
    step = query_rows / group
    items, most_rows = 0, min(query_rows, DECODED * group)
    for sequence in range(q_lens.size):
        items += _ceil(q_lens[sequence] * group, query_rows) * kv_heads
    idle = SPLIT_FILL * core[CORES] / max(1, items)
    total, arrays, lanes, loads, read, d_read = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    longest = np.zeros(2)
    slack = np.zeros(2)
    prefills, decodes = False, False
    for sequence in range(q_lens.size):
        q_len, kv_len = q_lens[sequence], kv_lens[sequence]
        if q_len == 0:
            continue
        tiles = _ceil(q_len * group, query_rows)
        if q_len > DECODED:
            prefills = True
            seen, most = _seen_by_tiles(tiles, q_len, kv_len, step, limits[0], limits[1])
            seen, most = seen + tiles * KV_BLOCK / 2, most + KV_BLOCK / 2
            start, token, load, parts = prefill[P_TILE] + 2 * core[FILL], p_token, p_load, prefill[P_PARTS]
            array, lane, late = p_array, p_lanes, prefill[P_IMBALANCE]
            total += q_len * append
        else:
            decodes = True
            rows = _ceil(min(q_len * group, most_rows), DECODE_ROWS) * DECODE_ROWS
            most = float(_seen_by_row(q_len, kv_len, limits[0], limits[1]))
            seen = tiles * most
            array, lane = _array_cycles(rows, dims, core), _lane_cycles(rows, DECODE_SOFTMAX, limits[2], core)
            start, load = decode[D_TILE] + 2 * core[FILL], d_load
            token = max(array / decode[D_MATRIX], lane, d_load)
            parts = decode[D_PARTS] if q_len * group > 1 else decode[D_LONE_PARTS]
            late = decode[D_IMBALANCE]
            d_read += kv_heads * most
        read += kv_heads * seen
        total += kv_heads * (tiles * start + seen * token)
        arrays += kv_heads * (seen * array + tiles * 2 * core[FILL])
        lanes += kv_heads * seen * lane
        if load >= token:
            loads += kv_heads * seen * token
        cut = max(1.0, min(idle, parts, most / KV_BLOCK))
        for place, length in enumerate((start + most * token, start + most / cut * token)):
            longest[place] = max(longest[place], length)
            slack[place] = max(slack[place], late * length)
    whole = max(longest[0], total / core[CORES] + slack[0])
    shortened = max(longest[1], total / core[CORES] + slack[1])
    cores = core[CORES]
    return whole, shortened, arrays / cores, lanes / cores, read, d_read, loads / max(1.0, total), prefills, decodes
