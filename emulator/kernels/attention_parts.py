"""PAGED_SCORES, MASKED_SOFTMAX, PAGED_VALUES and HEADS_MATMUL: rows gathered a kv head, products by BLAS."""

# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import numpy as np

from .inline import exp, kernel, largest, rounded, value_of


@kernel
def _widen(out, source):
    for i in range(out.size):
        out[i] = value_of(source[i])


@kernel
def _gather(out, cache, at, table, page_tokens):
    """Columns from `at` on of the cache rows of a sequence's tokens."""
    for j in range(out.shape[0]):
        row = table[j // page_tokens] * page_tokens + j % page_tokens
        _widen(out[j], cache[row, at : at + out.shape[1]])


@kernel
def paged_scores(dst, add, q, q0, cache, first, page_tokens, tables, q_lens, kv_lens, heads, group, dim, scale,
                 begin, end):  # fmt: skip
    """Units begin..end of scores [tokens * heads, context]; a unit is one head of one sequence."""
    t = 0
    for b in range(q_lens.size):
        queries, length = q_lens[b], kv_lens[b]
        low, high = max(begin - b * heads, 0), min(end - b * heads, heads)
        if queries > 0 and low < high:
            keys, rows = np.empty((length, dim), np.float32), np.empty((queries, dim), np.float32)
            out, held = np.empty((queries, length), np.float32), -1
            for head in range(low, high):
                if head // group != held:
                    held = head // group
                    _gather(keys, cache, first + held * dim, tables[b], page_tokens)
                for r in range(queries):
                    _widen(rows[r], q[t + r, q0 + head * dim : q0 + (head + 1) * dim])
                np.dot(rows, keys.T, out)
                for r in range(queries):
                    line = dst[(t + r) * heads + head]
                    for j in range(length):
                        before = value_of(line[j]) if add else np.float32(0)
                        line[j] = rounded(dst, before + out[r, j] * scale)
                    for j in range(length, line.size):
                        line[j] = rounded(dst, np.float32(0))
        t += queries
    return -1


@kernel
def paged_values(dst, dst0, weights, cache, first, page_tokens, tables, q_lens, kv_lens, heads, group, dim, begin,
                 end):  # fmt: skip
    """Units begin..end of dst = weights @ values; a unit is one head of one sequence."""
    t = 0
    for b in range(q_lens.size):
        queries, length = q_lens[b], kv_lens[b]
        low, high = max(begin - b * heads, 0), min(end - b * heads, heads)
        if queries > 0 and low < high:
            values, rows = np.empty((length, dim), np.float32), np.empty((queries, length), np.float32)
            out, held = np.empty((queries, dim), np.float32), -1
            for head in range(low, high):
                if head // group != held:
                    held = head // group
                    _gather(values, cache, first + held * dim, tables[b], page_tokens)
                for r in range(queries):
                    _widen(rows[r], weights[(t + r) * heads + head, :length])
                np.dot(rows, values, out)
                for r in range(queries):
                    at = dst0 + head * dim
                    for i in range(dim):
                        dst[t + r, at + i] = rounded(dst, out[r, i])
        t += queries
    return -1


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
def masked_softmax(dst, x, positions, heads, window, chunk, sinks, chosen, begin, end):
    """Rows begin..end of [tokens * heads, context]; positions[t] is where query t stands in its sequence.

    Returns the row of whose chosen positions one is not there, or -1.
    """
    for row in range(begin, end):
        t = row // heads
        last = positions[t] + 1
        first = max(0, last - window) if window > 0 else 0
        if chunk > 0:
            first = max(first, positions[t] // chunk * chunk)
        narrow = 0 < chosen.shape[1] < last - first
        count = chosen.shape[1] if narrow else last - first
        places = np.empty(count, np.int64)
        for j in range(count):
            places[j] = chosen[t, j] if narrow else first + j
            if places[j] < 0 or places[j] >= x.shape[1]:
                return row
        run = np.empty(count, np.float32)
        for j in range(count):
            run[j] = value_of(x[row, places[j]])
        best = largest(run)
        if sinks.size > 0:
            best = max(best, value_of(sinks[row % heads]))
        total = _exponentials(run, best)
        if sinks.size > 0:
            total += exp(value_of(sinks[row % heads]) - best)
        out = dst[row]
        for j in range(out.size):
            out[j] = rounded(dst, np.float32(0))
        for j in range(count):
            out[places[j]] = rounded(dst, run[j] / total)
    return -1


@kernel
def heads_matmul(dst, dst0, a, a0, w, w0, first, rows, n, k, by_rows, begin, end):
    """Heads begin..end of dst = a @ w_h^T (or a @ w_h), w_h from row head * rows + first of w on."""
    tokens = a.shape[0]
    left, out = np.empty((tokens, k), np.float32), np.empty((tokens, n), np.float32)
    used, across = (n, k) if by_rows else (k, n)
    right = np.empty((used, across), np.float32)
    for head in range(begin, end):
        for t in range(tokens):
            _widen(left[t], a[t, a0 + head * k : a0 + (head + 1) * k])
        for r in range(used):
            _widen(right[r], w[head * rows + first + r, w0 : w0 + across])
        if by_rows:
            np.dot(left, right.T, out)
        else:
            np.dot(left, right, out)
        for t in range(tokens):
            for j in range(n):
                dst[t, dst0 + head * n + j] = rounded(dst, out[t, j])
    return -1
