"""LATENT_ATTENTION: a sequence's latents are gathered once; each head then expands them or absorbs its queries.

Where queries attend to chosen tokens alone, each gathers its own and meets them with all its heads at once.
"""

# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import numpy as np

from ...isa.share import NOTHING
from .inline import exp, kernel, largest, rounded, value_of
from .partial import expanded_in_pieces

QUERY_BLOCK = 64
CHOICE_BLOCK = 16  # queries whose heads are absorbed together
ABSORBED, EXPANDED, CHOSEN = 0, 1, 2  # the ways that a sequence may take
NO_KEYS = np.float32(NOTHING)


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
def _attend(queries, keys, values, out, position, scale):
    """out = softmax(queries @ keys^T * scale) @ values, causal; the first query stands at `position`."""
    for start in range(0, queries.shape[0], QUERY_BLOCK):
        stop = min(start + QUERY_BLOCK, queries.shape[0])
        seen = position + stop
        scores = np.empty((stop - start, seen), np.float32)
        totals = np.empty(stop - start, np.float32)
        np.dot(queries[start:stop], keys[:seen].T, scores)
        for r in range(stop - start):
            own = position + start + r + 1
            row = scores[r]
            for j in range(own):
                row[j] *= scale
            totals[r] = _exponentials(row[:own], largest(row[:own]))
            row[own:] = np.float32(0)
        np.dot(scores, values[:seen], out[start:stop])
        for r in range(stop - start):
            for i in range(out.shape[1]):
                out[start + r, i] /= totals[r]


@kernel
def _expanded(q_nope, q_rope, latents, shared, k_rows, v_rows, out, position, scale):
    """Keys and values of one head made of every latent, then attention over them."""
    nope, length = q_nope.shape[1], latents.shape[0]
    dim = nope + q_rope.shape[1]
    queries, keys = np.empty((q_nope.shape[0], dim), np.float32), np.empty((length, dim), np.float32)
    queries[:, :nope] = q_nope
    queries[:, nope:] = q_rope
    keys[:, :nope] = np.dot(latents, k_rows.T)
    keys[:, nope:] = shared
    _attend(queries, keys, np.dot(latents, v_rows.T), out, position, scale)


@kernel
def _pieces(q_nope, q_rope, latents, shared, k_rows, v_rows, out, position, scale, cut, piece):
    """The same with keys and values of a piece of the latents at a time."""
    nope, count = q_nope.shape[1], q_nope.shape[0]
    queries = np.empty((count, nope + q_rope.shape[1]), np.float32)
    queries[:, :nope] = q_nope
    queries[:, nope:] = q_rope
    visible, lse = np.zeros((count, 2), np.int64), np.empty(count, np.float32)
    visible[:, 1] = np.arange(position + 1, position + count + 1)
    expanded_in_pieces(queries, latents, shared, k_rows, v_rows, visible, 0, 0, cut, piece, scale, NO_KEYS, out, lse)


@kernel
def _absorbed(q_nope, q_rope, latents, context, k_rows, v_rows, out, position, scale):
    """One head's queries turned into queries of latents, and its values made of the latents' weighted sum."""
    latent = latents.shape[1]
    queries = np.empty((q_nope.shape[0], context.shape[1]), np.float32)
    queries[:, :latent] = np.dot(q_nope, k_rows)
    queries[:, latent:] = q_rope
    summed = np.empty((q_nope.shape[0], latent), np.float32)
    _attend(queries, context, latents, summed, position, scale)
    np.dot(summed, v_rows.T, out)


@kernel
def latent_attention(dst, dst0, n, n0, p, p0, cache, cache0, page_tokens, w, w0, tables, q_lens, kv_lens, ways,
                     cuts, piece, heads, nope, rope, v_dim, latent, scale, first, last):  # fmt: skip
    """Units first..last of a batch; a unit is one head of one sequence, so how they are cut changes nothing.

    n and p are the queries' own and rotated parts; `ways` says of every sequence which way it takes; one that is
    expanded and longer than `cuts` says goes in pieces, the first of which ends there. Those that choose are left to
    `chosen_attention`.
    """
    t = 0
    for b in range(q_lens.size):
        queries, length = q_lens[b], kv_lens[b]
        low, high = max(first - b * heads, 0), min(last - b * heads, heads)
        if queries > 0 and low < high and ways[b] != CHOSEN:
            context = np.empty((length, latent + rope), np.float32)
            for j in range(length):
                row = tables[b, j // page_tokens] * page_tokens + j % page_tokens
                _widen(context[j], cache[row, cache0 : cache0 + latent + rope])
            latents = context[:, :latent].copy()
            shared = context[:, latent:].copy()
            rows = np.empty((nope + v_dim, latent), np.float32)
            own, turned = np.empty((queries, nope), np.float32), np.empty((queries, rope), np.float32)
            out = np.empty((queries, v_dim), np.float32)
            for head in range(low, high):
                for r in range(nope + v_dim):
                    _widen(rows[r], w[head * (nope + v_dim) + r, w0 : w0 + latent])
                for r in range(queries):
                    _widen(own[r], n[t + r, n0 + head * nope : n0 + (head + 1) * nope])
                    _widen(turned[r], p[t + r, p0 + head * rope : p0 + (head + 1) * rope])
                position = length - queries
                if ways[b] == EXPANDED and cuts[b] < length:
                    _pieces(
                        own, turned, latents, shared, rows[:nope], rows[nope:], out, position, scale, cuts[b], piece
                    )
                elif ways[b] == EXPANDED:
                    _expanded(own, turned, latents, shared, rows[:nope], rows[nope:], out, position, scale)
                else:
                    _absorbed(own, turned, latents, context, rows[:nope], rows[nope:], out, position, scale)
                for r in range(queries):
                    for i in range(v_dim):
                        dst[t + r, dst0 + head * v_dim + i] = rounded(dst, out[r, i])
        t += queries
    return -1


@kernel
def _absorb(queries, n, n0, p, p0, w, w0, t, nope, v_dim, latent):
    """queries[r, head] = the head's own part of query t + r turned into one of latents, then its rotated part."""
    count, heads, rope = queries.shape[0], queries.shape[1], queries.shape[2] - latent
    rows, own = np.empty((nope, latent), np.float32), np.empty((count, nope), np.float32)
    for head in range(heads):
        for r in range(nope):
            _widen(rows[r], w[head * (nope + v_dim) + r, w0 : w0 + latent])
        for r in range(count):
            _widen(own[r], n[t + r, n0 + head * nope : n0 + (head + 1) * nope])
        made = np.dot(own, rows)
        for r in range(count):
            queries[r, head, :latent] = made[r]
            _widen(queries[r, head, latent:], p[t + r, p0 + head * rope : p0 + (head + 1) * rope])


@kernel
def _gather_chosen(context, cache, cache0, table, page_tokens, positions, sees):
    """The rows of a query's chosen tokens, or of all that it sees if those are no more; -1 where they do not ascend."""
    count, before = min(sees, positions.size), -1
    for j in range(count):
        at = positions[j] if sees > positions.size else j
        if at <= before or at >= sees:
            return -1
        before = at
        row = table[at // page_tokens] * page_tokens + at % page_tokens
        _widen(context[j], cache[row, cache0 : cache0 + context.shape[1]])
    return count


@kernel
def _meet(queries, context, scale):
    """Softmax-weighted sums of the context's rows, one a head."""
    scores = np.dot(queries, context.T)
    totals = np.empty(scores.shape[0], np.float32)
    for h in range(scores.shape[0]):
        row = scores[h]
        for j in range(row.size):
            row[j] *= scale
        totals[h] = _exponentials(row, largest(row))
    summed = np.dot(scores, context)
    for h in range(scores.shape[0]):
        for i in range(summed.shape[1]):
            summed[h, i] /= totals[h]
    return summed


@kernel
def chosen_attention(dst, dst0, n, n0, p, p0, cache, cache0, page_tokens, w, w0, tables, q_lens, kv_lens, ways,
                     cuts, piece, heads, nope, rope, v_dim, latent, scale, chosen, chosen0, top_k, first,
                     last):  # fmt: skip
    """Units first..last of the sequences that choose; a unit is a block of new tokens of one sequence.

    Returns the token whose chosen positions do not ascend within what it sees, or -1.
    """
    context = np.empty((top_k, latent + rope), np.float32)
    t, unit = 0, 0
    for b in range(q_lens.size):
        queries, length = q_lens[b], kv_lens[b]
        blocks = (queries + CHOICE_BLOCK - 1) // CHOICE_BLOCK if ways[b] == CHOSEN else 0
        for block in range(max(first - unit, 0), min(last - unit, blocks)):
            start = block * CHOICE_BLOCK
            count = min(CHOICE_BLOCK, queries - start)
            absorbed = np.empty((count, heads, latent + rope), np.float32)
            _absorb(absorbed, n, n0, p, p0, w, w0, t + start, nope, v_dim, latent)
            summed = np.empty((heads, count, latent), np.float32)
            for r in range(count):
                token, sees = t + start + r, length - queries + start + r + 1
                positions = chosen[token, chosen0 : chosen0 + top_k]
                held = _gather_chosen(context, cache, cache0, tables[b], page_tokens, positions, sees)
                if held < 0:
                    return token
                summed[:, r, :] = _meet(absorbed[r], context[:held], scale)[:, :latent]
            rows = np.empty((v_dim, latent), np.float32)
            for head in range(heads):
                for r in range(v_dim):
                    _widen(rows[r], w[head * (nope + v_dim) + nope + r, w0 : w0 + latent])
                out = np.dot(summed[head], rows.T)
                for r in range(count):
                    for i in range(v_dim):
                        dst[t + start + r, dst0 + head * v_dim + i] = rounded(dst, out[r, i])
        unit += blocks
        t += queries
    return -1
