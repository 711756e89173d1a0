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
DECODE_ROWS = 16  # rows that a tile of decode is filled up to
KV_BLOCK = 128  # tokens of the cache that a tile advances by: half of the last one is wasted on average
DECODED = 8  # new tokens of every sequence up to which the decode kernel takes them
SPLIT_FILL = 0.8  # the share of the cores that tiles may keep busy before caches are cut no further
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
    Tiles are laid from the last token back, so that one more never sees less.
    """
    most = float(kv_len)
    if window or chunk:
        most = min(most, (window or chunk) + step)
    if chunk:
        seen = 0.0
        for tile in range(tiles):
            end = kv_len - tile * step
            first = int(max(float(kv_len - q_len), end - step))
            seen += end - first // chunk * chunk
        return seen, most
    full = 0  # tiles that see a whole window
    if window:
        full = int(min(float(tiles), max(0.0, np.ceil((kv_len - window) / step) - 1)))
    growing = (tiles - full) * float(kv_len) - step * (tiles * (tiles - 1) - full * (full - 1)) / 2.0
    return growing + full * (window + step), most


@njit(cache=True)
def _seen_by_few(tiles, q_len, kv_len, window, chunk):  # type: ignore[no-untyped-def]
    """The same for tiles of a few new tokens, each of which sees what any of them does."""
    seen = float(kv_len)
    if window:
        seen = float(min(kv_len, window + q_len - 1))
    elif chunk:
        seen -= (kv_len - q_len) // chunk * chunk
    return tiles * seen, seen


@njit(cache=True)
def _prefill_rates(dims, capped, row_bytes, core, tuning):  # type: ignore[no-untyped-def]
    """Cycles of a tile's (start, token, loads of a token, array for a token, lanes for a token)."""
    array = _array_cycles(max(QUERY_ROWS, core[ROWS]), dims, core)
    lanes = _lane_cycles(max(QUERY_ROWS, core[ROWS]), tuning[P_SOFTMAX], capped, core)
    busy, load = array / tuning[P_MATRIX], row_bytes / core[LOAD]
    busy = max(busy, lanes) + (1.0 - tuning[P_OVERLAP]) * min(busy, lanes)
    return tuning[P_TILE] + 2 * core[FILL], max(busy, load), load, array, lanes


@njit(cache=True)
def _decode_rates(rows, dims, capped, row_bytes, core, tuning):  # type: ignore[no-untyped-def]
    """The same for a tile with as many rows in use: memory's, unless they are many."""
    filled = _ceil(min(rows, max(QUERY_ROWS, core[ROWS])), DECODE_ROWS) * DECODE_ROWS
    array, lanes = _array_cycles(filled, dims, core), _lane_cycles(filled, DECODE_SOFTMAX, capped, core)
    load = row_bytes / (core[LOAD] * tuning[D_PORT])
    return tuning[D_TILE] + 2 * core[FILL], max(array / tuning[D_MATRIX], lanes, load), load, array, lanes


@njit(cache=True)
def _ends(starts, wholes, shorts, even, total, imbalance, cores):  # type: ignore[no-untyped-def]
    """Cycles until all cores are done, (with caches whole, with caches cut as far as keeps every core busy).

    A tile starts and then takes as long as `wholes` say, or, cut, no less than `shorts`; `total` is the sum over tiles,
    and `even` what they would take without their starts if all of a sequence were as long as its longest.
    """
    fair = even / (SPLIT_FILL * cores)
    whole, cut = 0.0, 0.0
    for sequence in range(starts.size):
        whole = max(whole, starts[sequence] + wholes[sequence])
        cut = max(cut, starts[sequence] + max(shorts[sequence], min(wholes[sequence], fair)))
    return max(whole, total / cores + imbalance * whole), max(cut, total / cores + imbalance * cut)


@njit(cache=True)
def schedule(q_lens, kv_lens, group, kv_heads, dims, limits, row_bytes, core, tuning, decodes):  # type: ignore[no-untyped-def]
    """Attention of sequences with `q_lens` new tokens over `kv_lens` cached ones, each kv head serving `group` heads.

    `dims` are the elements of a key and of a value; `limits` are window, chunk, 1 where scores are softly capped, and
    1 where new tokens cost what they do beside. A tile reads `row_bytes` of each token of one kv head. `tuning` are the
    constants of decode or, unless `decodes`, of prefill. Returns cycles: (flow with caches whole, flow with caches cut,
    of the array, of the lanes), the last two shared by all cores; then the tokens that tiles read, those that kv heads
    do, and the part of the flow that waits for loads.

    A tile's time is that of its start and of every token it sees: array and lanes, which overlap in part, or loads
    where these outlast them. The flow is the longest tile's or, where that is more, all tiles' shared by the cores and
    the part of the longest by which the cores do not end together. Tiles of a few new tokens are memory's: a core draws
    a part of what its port could carry.
    """
    starts, wholes, shorts = np.zeros(q_lens.size), np.zeros(q_lens.size), np.zeros(q_lens.size)
    total, even, arrays, lanes, loads, read, rows_read = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    most_parts, query_rows = tuning[P_PARTS], max(QUERY_ROWS, core[ROWS])
    rates = _prefill_rates(dims, limits[2], row_bytes, core, tuning)
    for sequence in range(q_lens.size):
        q_len, kv_len = q_lens[sequence], kv_lens[sequence]
        if q_len == 0:
            continue
        tiles = _ceil(q_len * group, query_rows)
        if decodes:
            most_parts = tuning[D_PARTS] if q_len * group > 1 else tuning[D_LONE_PARTS]
            seen, most = _seen_by_few(tiles, q_len, kv_len, limits[0], limits[1])
            rates = _decode_rates(q_len * group, dims, limits[2], row_bytes, core, tuning)
        else:
            seen, most = _seen_by_tiles(tiles, q_len, kv_len, query_rows / group, limits[0], limits[1])
            seen, most = seen + tiles * KV_BLOCK / 2, most + KV_BLOCK / 2
            total += limits[3] * q_len * tuning[P_APPEND] * min(1.0, kv_heads * row_bytes / APPEND_BYTES)
        start, token, load, array, lane = rates
        read += kv_heads * seen
        rows_read += kv_heads * most
        total += kv_heads * (tiles * start + seen * token)
        even += kv_heads * tiles * most * token
        arrays += kv_heads * (seen * array + tiles * 2 * core[FILL])
        lanes += kv_heads * seen * lane
        loads += kv_heads * seen * token if load >= token else 0.0
        starts[sequence], wholes[sequence] = start, most * token
        shorts[sequence] = max(most / most_parts, min(most, KV_BLOCK)) * token
    cores = core[CORES]
    imbalance = tuning[D_IMBALANCE] if decodes else tuning[P_IMBALANCE]
    whole, cut = _ends(starts, wholes, shorts, even, total, imbalance, cores)
    return whole, cut, arrays / cores, lanes / cores, read, rows_read, loads / max(1.0, total)
