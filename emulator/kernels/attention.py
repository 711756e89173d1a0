"""ATTENTION over a paged cache: decode reads the cache's own bytes, prefill gathers a head and calls BLAS by blocks."""

# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import numpy as np

from .inline import REORDER, exp, kernel, largest, rounded, value_of

DECODE_QUERIES = 2  # up to so many new tokens a sequence is read in place instead of gathered
QUERY_BLOCK = 128
KEY_BLOCK = 512

LENGTHS, TABLE_SHORT, PAGE, TOKENS = 1, 2, 3, 4  # what check_attention finds wrong


@kernel
def check_attention(q_lens, kv_lens, tables, pages, page_tokens, tokens):
    """(0, 0, 0), or what is wrong, with which sequence, at which entry of its table."""
    total = 0
    for b in range(q_lens.size):
        queries, length = q_lens[b], kv_lens[b]
        if queries < 0 or length < queries:
            return LENGTHS, b, 0
        needed = (length + page_tokens - 1) // page_tokens
        if needed > tables.shape[1]:
            return TABLE_SHORT, b, 0
        for entry in range(needed):
            if tables[b, entry] < 0 or tables[b, entry] >= pages:
                return PAGE, b, entry
        total += queries
    return (TOKENS, 0, total) if total != tokens else (0, 0, 0)


@kernel(fastmath=REORDER)
def _score(query, key):
    total = np.float32(0)
    for i in range(query.size):
        total += query[i] * value_of(key[i])
    return total


@kernel
def _values(out, source, factor):
    for i in range(out.size):
        out[i] = value_of(source[i]) * factor


@kernel
def _round_row(out, row):
    for i in range(out.size):
        out[i] = rounded(out, row[i])


@kernel(fastmath={"contract"})
def _add_scaled(out, weight, value):
    for i in range(out.size):
        out[i] += weight * value_of(value[i])


@kernel(fastmath={"reassoc", "nsz"})
def _exponentials(scores, best):
    """Scores become exp(score - best), unnormalised; returns their sum."""
    total = np.float32(0)
    for j in range(scores.size):
        weight = exp(scores[j] - best)
        scores[j] = weight
        total += weight
    return total


@kernel
def _oldest(position, window, chunk):
    """The first key that a query at `position` sees."""
    if chunk > 0:
        return position // chunk * chunk
    return max(0, position - window + 1) if window > 0 else 0


@kernel
def _cap(scores, soft_cap):
    """Scores become soft_cap * tanh(score / soft_cap)."""
    for j in range(scores.size):
        scores[j] = soft_cap * np.tanh(scores[j] / soft_cap)


@kernel
def _decode(dst, dst0, q, q0, cache, keys_at, values_at, table, page_tokens, first_key, position, t, low, high, group,
            qk_dim, v_dim, scale, sinks, soft_cap):  # fmt: skip
    """One query, heads low..high, over keys first_key..position; a token's cache row is read from end to end."""
    heads = high - low
    queries = np.empty((heads, qk_dim), np.float32)
    for h in range(heads):
        at = q0 + (low + h) * qk_dim
        _values(queries[h], q[t, at : at + qk_dim], np.float32(1))
    scores = np.empty((heads, position + 1 - first_key), np.float32)
    for j in range(first_key, position + 1):
        row = table[j // page_tokens] * page_tokens + j % page_tokens
        for h in range(heads):
            at = keys_at + (low + h) // group * qk_dim
            scores[h, j - first_key] = _score(queries[h], cache[row, at : at + qk_dim]) * scale
    totals = np.empty(heads, np.float32)
    for h in range(heads):
        if soft_cap > 0:
            _cap(scores[h], soft_cap)
        best = largest(scores[h])
        if sinks.size > 0:
            best = max(best, value_of(sinks[low + h]))
        totals[h] = _exponentials(scores[h], best)
        if sinks.size > 0:
            totals[h] += exp(value_of(sinks[low + h]) - best)
    out = np.zeros((heads, v_dim), np.float32)
    for j in range(first_key, position + 1):
        row = table[j // page_tokens] * page_tokens + j % page_tokens
        for h in range(heads):
            at = values_at + (low + h) // group * v_dim
            _add_scaled(out[h], scores[h, j - first_key], cache[row, at : at + v_dim])
    for h in range(heads):
        for i in range(v_dim):
            dst[t, dst0 + (low + h) * v_dim + i] = rounded(dst, out[h, i] / totals[h])


@kernel
def _gather(out, cache, at, table, page_tokens, first_key, last_key):
    for j in range(first_key, last_key):
        row = table[j // page_tokens] * page_tokens + j % page_tokens
        _values(out[j - first_key], cache[row, at : at + out.shape[1]], np.float32(1))


@kernel
def _softmax_block(scores, r, first, last, highest, totals):
    """Online softmax of one row of a block whose visible keys are first..last; returns what older sums shrink by."""
    row = scores[r]
    row[:first] = np.float32(0)
    row[max(last, 0) :] = np.float32(0)
    if last <= first:
        return np.float32(1)
    best = max(highest[r], largest(row[first:last]))
    shrink = exp(highest[r] - best)
    totals[r] = totals[r] * shrink + _exponentials(row[first:last], best)
    highest[r] = best
    return shrink


@kernel
def _query_block(queries, keys, values, out, position, first_key, window, chunk, sinks, head, soft_cap):
    """out = softmax(queries @ keys^T) @ values for a block whose first query stands at `position`.

    keys[0] stands at first_key. Key blocks follow one another with a running maximum (online softmax).
    """
    rows, v_dim = queries.shape[0], values.shape[1]
    highest = np.full(rows, np.float32(-np.inf))
    totals = np.zeros(rows, np.float32)
    if sinks.size > 0:  # a key before all others, whose value is nothing
        highest[:] = value_of(sinks[head])
        totals[:] = np.float32(1)
    out[:, :] = np.float32(0)
    room = np.empty(rows * KEY_BLOCK, np.float32)
    part = np.empty((rows, v_dim), np.float32)
    start = max(first_key, _oldest(position, window, chunk))
    for low in range(start, position + rows, KEY_BLOCK):
        high = min(low + KEY_BLOCK, position + rows)
        scores = room[: rows * (high - low)].reshape(rows, high - low)
        np.dot(queries, keys[low - first_key : high - first_key].T, scores)
        for r in range(rows):
            seen = position + r
            first = min(max(low, _oldest(seen, window, chunk)), high) - low
            last = min(high, seen + 1) - low
            if soft_cap > 0 and first < last:
                _cap(scores[r, first:last], soft_cap)
            shrink = _softmax_block(scores, r, first, last, highest, totals)
            if shrink != np.float32(1):
                for i in range(v_dim):
                    out[r, i] *= shrink
        np.dot(scores, values[low - first_key : high - first_key], part)
        for r in range(rows):
            for i in range(v_dim):
                out[r, i] += part[r, i]
    for r in range(rows):
        for i in range(v_dim):
            out[r, i] /= totals[r]


@kernel
def _prefill(dst, dst0, q, q0, keys, values, length, count, t, head, window, chunk, scale, first_key, sinks, soft_cap):
    """All `count` new tokens of one head of one sequence, a block of queries at a time."""
    qk_dim, v_dim = keys.shape[1], values.shape[1]
    for block in range(0, count, QUERY_BLOCK):
        rows = min(QUERY_BLOCK, count - block)
        queries = np.empty((rows, qk_dim), np.float32)
        out = np.empty((rows, v_dim), np.float32)
        for r in range(rows):
            at = q0 + head * qk_dim
            _values(queries[r], q[t + block + r, at : at + qk_dim], scale)
        position = length - count + block
        _query_block(queries, keys, values, out, position, first_key, window, chunk, sinks, head, soft_cap)
        for r in range(rows):
            at = dst0 + head * v_dim
            _round_row(dst[t + block + r, at : at + v_dim], out[r])


@kernel
def attention(dst, dst0, q, q0, cache, cache0, page_tokens, tables, q_lens, kv_lens, heads, kv_heads, qk_dim, v_dim,
              scale, window, sinks, chunk, soft_cap, first, last):  # fmt: skip
    """Units first..last of a batch; a unit is one query head of one sequence, so how they are cut changes nothing.

    `sinks` is empty when there are none.
    """
    group, t, values_at = heads // kv_heads, 0, cache0 + kv_heads * qk_dim
    for b in range(q_lens.size):
        queries, length = q_lens[b], kv_lens[b]
        low, high = max(first - b * heads, 0), min(last - b * heads, heads)
        oldest = _oldest(length - queries, window, chunk)
        if 0 < queries <= DECODE_QUERIES and low < high:
            for n in range(queries):
                position = length - queries + n
                first_key = _oldest(position, window, chunk)
                _decode(dst, dst0, q, q0, cache, cache0, values_at, tables[b], page_tokens, first_key, position, t + n,
                        low, high, group, qk_dim, v_dim, scale, sinks, soft_cap)  # fmt: skip
        elif queries > 0 and low < high:
            keys = np.empty((length - oldest, qk_dim), np.float32)
            values = np.empty((length - oldest, v_dim), np.float32)
            held = -1
            for head in range(low, high):
                if head // group != held:
                    held = head // group
                    _gather(keys, cache, cache0 + held * qk_dim, tables[b], page_tokens, oldest, length)
                    _gather(values, cache, values_at + held * v_dim, tables[b], page_tokens, oldest, length)
                _prefill(dst, dst0, q, q0, keys, values, length, queries, t, head, window, chunk, scale, oldest, sinks,
                         soft_cap)  # fmt: skip
        t += queries
    return -1
