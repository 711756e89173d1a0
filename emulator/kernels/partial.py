"""Parts of attention: a share's keys are gathered by sequence and head, each query sees a range of them; and the merge.

The LSE of every head stands behind the outputs of all heads.
"""

# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import math

import numpy as np

from .inline import exp, kernel, largest, rounded, value_of

QUERY_BLOCK = 64

LENGTHS, TABLE_SHORT, PAGE, TOKENS, RANGE = 1, 2, 3, 4, 5  # what check_share finds wrong


@kernel
def check_share(q_lens, kv_lens, tables, visible, pages, page_tokens, tokens):
    """(0, 0, 0), or what is wrong, with which sequence (or query), and where.

    With page_tokens 0 the share is one run of `pages` rows.
    """
    total = 0
    for b in range(q_lens.size):
        queries, length = q_lens[b], kv_lens[b]
        if queries < 0 or length < 0:
            return LENGTHS, b, 0
        total += queries
        if queries == 0 or length == 0:
            continue
        if page_tokens == 0:
            if tables[b, 0] < 0 or tables[b, 0] + length > pages:
                return PAGE, b, 0
            continue
        needed = (length + page_tokens - 1) // page_tokens
        if needed > tables.shape[1]:
            return TABLE_SHORT, b, 0
        for entry in range(needed):
            if tables[b, entry] < 0 or tables[b, entry] >= pages:
                return PAGE, b, entry
    if total != tokens:
        return TOKENS, 0, total
    t = 0
    for b in range(q_lens.size):
        for _ in range(q_lens[b]):
            if visible[t, 0] < 0 or visible[t, 0] > visible[t, 1] or visible[t, 1] > kv_lens[b]:
                return RANGE, b, t
            t += 1
    return 0, 0, 0


@kernel
def seen_of(q_lens, visible, out):
    """out[b] = how many queries of a sequence see anything, in how many pairs."""
    t = 0
    for b in range(q_lens.size):
        out[b, 0] = 0
        out[b, 1] = 0
        for _ in range(q_lens[b]):
            pairs = visible[t, 1] - visible[t, 0]
            out[b, 0] += 1 if pairs > 0 else 0
            out[b, 1] += pairs
            t += 1


@kernel
def _span(visible, t, queries):
    """First and last row (exclusive) that any of the queries from t on sees; (0, 0) when none sees any."""
    first, last, some = 0, 0, False
    for r in range(t, t + queries):
        if visible[r, 1] > visible[r, 0]:
            first = min(first, visible[r, 0]) if some else visible[r, 0]
            last = max(last, visible[r, 1]) if some else visible[r, 1]
            some = True
    return first, last


@kernel
def _widen(out, source):
    for i in range(out.size):
        out[i] = value_of(source[i])


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
def _attend(queries, keys, values, visible, t, oldest, scale, cap, nothing, out, lse):
    """out and lse of one head's queries, of which query r sees keys visible[t + r] - oldest."""
    for start in range(0, queries.shape[0], QUERY_BLOCK):
        stop = min(start + QUERY_BLOCK, queries.shape[0])
        first, last = _span(visible, t + start, stop - start)
        out[start:stop, :] = np.float32(0)
        lse[start:stop] = nothing
        if first == last:
            continue
        low, high = first - oldest, last - oldest
        scores = np.empty((stop - start, high - low), np.float32)
        np.dot(queries[start:stop], keys[low:high].T, scores)
        totals = np.ones(stop - start, np.float32)
        for r in range(stop - start):
            row = scores[r]
            one, end = visible[t + start + r, 0] - first, visible[t + start + r, 1] - first
            if one == end:
                row[:] = np.float32(0)
                continue
            for j in range(one, end):
                row[j] *= scale
            if cap > 0:
                for j in range(one, end):
                    row[j] = cap * np.float32(math.tanh(row[j] / cap))
            best = largest(row[one:end])
            totals[r] = _exponentials(row[one:end], best)
            lse[start + r] = best + np.float32(math.log(totals[r]))
            row[:one] = np.float32(0)
            row[end:] = np.float32(0)
        np.dot(scores, values[low:high], out[start:stop])
        for r in range(stop - start):
            for i in range(out.shape[1]):
                out[start + r, i] /= totals[r]


@kernel
def _join(out, lse, other, other_lse):
    """One head's part, merged in place with another of the same queries."""
    for r in range(out.shape[0]):
        best = max(lse[r], other_lse[r])
        mine, theirs = exp(lse[r] - best), exp(other_lse[r] - best)
        total = mine + theirs
        for i in range(out.shape[1]):
            out[r, i] = (out[r, i] * mine + other[r, i] * theirs) / total
        lse[r] = best + np.float32(math.log(total))


@kernel
def expanded_in_pieces(queries, latents, shared, k_rows, v_rows, visible, t, oldest, cut, piece, scale, nothing, out,
                       lse):  # fmt: skip
    """out and lse of one head's queries over latents of which a piece at a time is expanded, the first up to `cut`."""
    count, nope, length = queries.shape[0], k_rows.shape[0], latents.shape[0]
    seen = np.empty((count, 2), np.int64)
    part, part_lse = np.empty(out.shape, np.float32), np.empty(count, np.float32)
    out[:, :] = np.float32(0)
    lse[:] = nothing
    start, stop = 0, cut
    while start < length:
        stop = min(stop, length)
        keys = np.empty((stop - start, queries.shape[1]), np.float32)
        keys[:, :nope] = np.dot(latents[start:stop], k_rows.T)
        keys[:, nope:] = shared[start:stop]
        for r in range(count):
            seen[r, 0] = min(max(visible[t + r, 0] - oldest - start, 0), stop - start)
            seen[r, 1] = min(max(visible[t + r, 1] - oldest - start, 0), stop - start)
        values = np.dot(latents[start:stop], v_rows.T)
        _attend(queries, keys, values, seen, 0, 0, scale, np.float32(0), nothing, part, part_lse)
        _join(out, lse, part, part_lse)
        start, stop = stop, stop + piece


@kernel
def _store(dst, dst0, before, before0, t, head, heads, out, lse):
    """One head's part of queries t.. into dst, merged with the part before where there is one."""
    v_dim = out.shape[1]
    at, lse_at = head * v_dim, heads * v_dim + head
    for r in range(out.shape[0]):
        if before.size > 0:
            other = before[t + r, before0 + lse_at]
            best = max(other, lse[r])
            theirs, mine = exp(other - best), exp(lse[r] - best)
            total = theirs + mine
            for i in range(v_dim):
                held = before[t + r, before0 + at + i]
                dst[t + r, dst0 + at + i] = (held * theirs + out[r, i] * mine) / total
            dst[t + r, dst0 + lse_at] = best + np.float32(math.log(total))
        else:
            for i in range(v_dim):
                dst[t + r, dst0 + at + i] = out[r, i]
            dst[t + r, dst0 + lse_at] = lse[r]


@kernel
def _gather(out, cache, at, table, page_tokens, oldest):
    for j in range(out.shape[0]):
        row = oldest + j
        row = table[row // page_tokens] * page_tokens + row % page_tokens if page_tokens > 0 else table[0] + row
        _widen(out[j], cache[row, at : at + out.shape[1]])


@kernel
def partial_attention(dst, dst0, q, q0, before, before0, cache, cache0, page_tokens, tables, q_lens, visible, heads,
                      kv_heads, qk_dim, v_dim, scale, cap, nothing, first, last):  # fmt: skip
    """Units first..last of a batch; a unit is one query head of one sequence, so how they are cut changes nothing."""
    group, t, values_at = heads // kv_heads, 0, cache0 + kv_heads * qk_dim
    for b in range(q_lens.size):
        count = q_lens[b]
        low, high = max(first - b * heads, 0), min(last - b * heads, heads)
        if count > 0 and low < high:
            oldest, newest = _span(visible, t, count)
            keys = np.empty((newest - oldest, qk_dim), np.float32)
            values = np.empty((newest - oldest, v_dim), np.float32)
            queries, out = np.empty((count, qk_dim), np.float32), np.empty((count, v_dim), np.float32)
            lse = np.empty(count, np.float32)
            held = -1
            for head in range(low, high):
                if head // group != held:
                    held = head // group
                    _gather(keys, cache, cache0 + held * qk_dim, tables[b], page_tokens, oldest)
                    _gather(values, cache, values_at + held * v_dim, tables[b], page_tokens, oldest)
                for r in range(count):
                    at = q0 + head * qk_dim
                    _widen(queries[r], q[t + r, at : at + qk_dim])
                _attend(queries, keys, values, visible, t, oldest, scale, cap, nothing, out, lse)
                _store(dst, dst0, before, before0, t, head, heads, out, lse)
        t += count
    return -1


@kernel
def partial_latent(dst, dst0, n, n0, p, p0, before, before0, cache, cache0, page_tokens, w, w0, tables, q_lens, visible,
                   expands, cuts, piece, heads, nope, rope, v_dim, latent, scale, nothing, first, last):  # fmt: skip
    """The same of latents: one head at a time expands them, or absorbs its queries where `expands` is false.

    A sequence with more latents than `cuts` says is expanded in pieces, the first of which ends there.
    """
    t, no_cap = 0, np.float32(0)
    for b in range(q_lens.size):
        count = q_lens[b]
        low, high = max(first - b * heads, 0), min(last - b * heads, heads)
        if count > 0 and low < high:
            oldest, newest = _span(visible, t, count)
            length = newest - oldest
            context = np.empty((length, latent + rope), np.float32)
            _gather(context, cache, cache0, tables[b], page_tokens, oldest)
            latents = context[:, :latent].copy()
            rows = np.empty((nope + v_dim, latent), np.float32)
            own, turned = np.empty((count, nope), np.float32), np.empty((count, rope), np.float32)
            out, lse = np.empty((count, v_dim), np.float32), np.empty(count, np.float32)
            wide = nope if expands[b] else latent
            queries = np.empty((count, wide + rope), np.float32)
            in_pieces = expands[b] and cuts[b] < length
            shared = context[:, latent:].copy()
            keys = np.empty((0 if in_pieces else length, wide + rope), np.float32)
            if not in_pieces:
                keys[:, wide:] = shared
            for head in range(low, high):
                for r in range(nope + v_dim):
                    _widen(rows[r], w[head * (nope + v_dim) + r, w0 : w0 + latent])
                for r in range(count):
                    _widen(own[r], n[t + r, n0 + head * nope : n0 + (head + 1) * nope])
                    _widen(turned[r], p[t + r, p0 + head * rope : p0 + (head + 1) * rope])
                queries[:, wide:] = turned
                if in_pieces:
                    queries[:, :wide] = own
                    expanded_in_pieces(queries, latents, shared, rows[:nope], rows[nope:], visible, t, oldest, cuts[b],
                                       piece, scale, nothing, out, lse)  # fmt: skip
                elif expands[b]:
                    queries[:, :wide] = own
                    keys[:, :wide] = np.dot(latents, rows[:nope].T)
                    made = np.dot(latents, rows[nope:].T)
                    _attend(queries, keys, made, visible, t, oldest, scale, no_cap, nothing, out, lse)
                else:
                    queries[:, :wide] = np.dot(own, rows[:nope])
                    keys[:, :wide] = latents
                    summed = np.empty((count, latent), np.float32)
                    _attend(queries, keys, latents, visible, t, oldest, scale, no_cap, nothing, summed, lse)
                    np.dot(summed, rows[nope:].T, out)
                _store(dst, dst0, before, before0, t, head, heads, out, lse)
        t += count
    return -1


@kernel
def merge_parts(dst, dst0, parts, parts0, sinks, heads, v_dim, count, tokens, first, last):
    """Rows first..last of dst from the rows t, tokens + t, ... of parts."""
    weights = np.empty(count, np.float32)
    for t in range(first, last):
        for head in range(heads):
            lse_at = parts0 + heads * v_dim + head
            best = parts[t, lse_at]
            for k in range(1, count):
                best = max(best, parts[k * tokens + t, lse_at])
            if sinks.size > 0:
                best = max(best, value_of(sinks[head]))
            total = exp(value_of(sinks[head]) - best) if sinks.size > 0 else np.float32(0)
            for k in range(count):
                weights[k] = exp(parts[k * tokens + t, lse_at] - best)
                total += weights[k]
            at = head * v_dim
            for i in range(v_dim):
                summed = np.float32(0)
                for k in range(count):
                    summed += parts[k * tokens + t, parts0 + at + i] * weights[k]
                dst[t, dst0 + at + i] = rounded(dst, summed / total)
    return -1
