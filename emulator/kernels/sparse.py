"""SELECT_KEYS: a query's index scores over the keys it sees, and the positions of the best of them."""

# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import numpy as np

from .inline import kernel, value_of


@kernel
def _widen(out, source):
    for i in range(out.size):
        out[i] = value_of(source[i])


@kernel
def _add_head(scores, products, weight, scale):
    """scores += weight * relu(products * scale)."""
    for j in range(scores.size):
        x = products[j] * scale
        scores[j] += weight * (np.float32(0) if x < np.float32(0) else x)


@kernel
def _count(ranks, least):
    found = 0
    for j in range(ranks.size):
        found += 1 if ranks[j] >= least else 0
    return found


@kernel
def _choose(out, scores, ranks):
    """Positions of the out.size best scores, ascending; the earlier wins a tie.

    Ranks are integers that order as the scores do, so that the least rank among the best is found by halving.
    """
    for j in range(scores.size):
        scores[j] = -np.float32(np.inf) if scores[j] != scores[j] else scores[j] + np.float32(0)  # one zero of the two
    bits = scores.view(np.int32)
    for j in range(scores.size):
        ranks[j] = np.int64(bits[j]) if bits[j] >= 0 else -np.int64(bits[j] & 0x7FFFFFFF)
    low, high = -np.int64(1 << 31), np.int64(1 << 31)
    while high - low > 1:
        middle = (low + high) // 2
        if _count(ranks, middle) >= out.size:
            low = middle
        else:
            high = middle
    ties, at = out.size - _count(ranks, low + 1), 0
    for j in range(scores.size):
        if ranks[j] > low or (ranks[j] == low and ties > 0):
            ties -= 1 if ranks[j] == low else 0
            out[at] = j
            at += 1


@kernel
def select_keys(dst, dst0, top_k, q, q0, weights, w0, cache, cache0, page_tokens, tables, q_lens, kv_lens, heads, dim,
                scale, first, last):  # fmt: skip
    """New tokens first..last of a batch; each is scored by itself, so how they are cut changes nothing."""
    query, t = np.empty((heads, dim), np.float32), 0
    for b in range(q_lens.size):
        queries, length = q_lens[b], kv_lens[b]
        low, high = max(first - t, 0), min(last - t, queries)
        held = length - queries + high if low < high and length - queries + high > top_k else 0
        keys = np.empty((held, dim), np.float32)
        for j in range(held):
            row = tables[b, j // page_tokens] * page_tokens + j % page_tokens
            _widen(keys[j], cache[row, cache0 : cache0 + dim])
        scores, ranks = np.empty(held, np.float32), np.empty(held, np.int64)
        for n in range(low, high):
            sees = length - queries + n + 1
            out = dst[t + n, dst0 : dst0 + top_k]
            if sees <= top_k:
                for j in range(top_k):
                    out[j] = j if j < sees else -1
                continue
            for h in range(heads):
                _widen(query[h], q[t + n, q0 + h * dim : q0 + (h + 1) * dim])
            products = np.dot(query, keys[:sees].T)
            scores[:sees] = np.float32(0)
            for h in range(heads):
                _add_head(scores[:sees], products[h], value_of(weights[t + n, w0 + h]), scale)
            _choose(out, scores[:sees], ranks[:sees])
        t += queries
    return -1
