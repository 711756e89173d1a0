"""LATENT_ATTENTION: a sequence's latents are gathered once; each head then expands them or absorbs its queries."""

# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import numpy as np

from .inline import exp, kernel, largest, rounded, value_of

QUERY_BLOCK = 64


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
def latent_attention(dst, dst0, n, n0, p, p0, cache, cache0, page_tokens, w, w0, tables, q_lens, kv_lens, expands,
                     heads, nope, rope, v_dim, latent, scale, first, last):  # fmt: skip
    """Units first..last of a batch; a unit is one head of one sequence, so how they are cut changes nothing.

    n and p are the queries' own and rotated parts; `expands` says of every sequence which way it takes.
    """
    t = 0
    for b in range(q_lens.size):
        queries, length = q_lens[b], kv_lens[b]
        low, high = max(first - b * heads, 0), min(last - b * heads, heads)
        if queries > 0 and low < high:
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
                if expands[b]:
                    _expanded(own, turned, latents, shared, rows[:nope], rows[nope:], out, position, scale)
                else:
                    _absorbed(own, turned, latents, context, rows[:nope], rows[nope:], out, position, scale)
                for r in range(queries):
                    for i in range(v_dim):
                        dst[t + r, dst0 + head * v_dim + i] = rounded(dst, out[r, i])
        t += queries
    return -1
