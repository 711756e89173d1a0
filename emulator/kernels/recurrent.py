"""CAUSAL_CONV and GATED_DELTA: a sequence's short convolution and its delta rule, from and into its state."""

# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import math

import numpy as np

from .inline import REORDER, exp, kernel, rounded, value_of

LENGTHS, SLOT, TOKENS, START = 1, 2, 3, 4  # what check_sequences finds wrong


@kernel
def check_sequences(q_lens, kv_lens, slots, starts, apart, rows, tokens):
    """(0, 0), or what is wrong and with which sequence (with how many tokens in all).

    `apart` says that `starts` counts, and that rows may be nobody's.
    """
    total = 0
    for b in range(q_lens.size):
        if q_lens[b] < 0 or kv_lens[b] < q_lens[b]:
            return LENGTHS, b
        if q_lens[b] > 0 and (slots[b] < 0 or slots[b] >= rows):
            return SLOT, b
        if apart and q_lens[b] > 0 and (starts[b] < 0 or starts[b] + q_lens[b] > tokens):
            return START, b
        total += q_lens[b]
    return (TOKENS, total) if total > tokens or (total < tokens and not apart) else (0, 0)


@kernel
def causal_conv(dst, dst0, x, x0, channels, weight, weight0, taps, state, state0, slots, q_lens, kv_lens, starts,
                first, last):  # fmt: skip
    """Sequences first..last: rows of dst from rows of x and the state, which then holds the last taps - 1 inputs."""
    one, follow = np.float32(1), 0
    for b in range(first):
        follow += q_lens[b]
    total = np.empty(channels, np.float32)
    for b in range(first, last):
        new = q_lens[b]
        start = starts[b] if starts.size > 0 else follow
        follow += new
        if new == 0:
            continue
        tail = state[slots[b]][state0 : state0 + (taps - 1) * channels]
        if kv_lens[b] == new:
            tail[:] = 0
        for t in range(new):
            total[:] = np.float32(0)
            for j in range(taps):
                at = t - taps + 1 + j
                if at >= 0:
                    for c in range(channels):
                        total[c] += value_of(weight[c, weight0 + j]) * value_of(x[start + at, x0 + c])
                else:
                    from_tail = (taps - 1 + at) * channels
                    for c in range(channels):
                        total[c] += value_of(weight[c, weight0 + j]) * value_of(tail[from_tail + c])
            for c in range(channels):
                dst[start + t, dst0 + c] = rounded(dst, total[c] / (one + exp(-total[c])))
        for j in range(taps - 1):
            at = new - taps + 1 + j
            for c in range(channels):
                if at >= 0:
                    tail[j * channels + c] = rounded(state, value_of(x[start + at, x0 + c]))
                else:
                    tail[j * channels + c] = tail[(j + new) * channels + c]
    return -1


@kernel(fastmath=REORDER)
def _normalise(out, row, factor, eps):
    total = np.float32(0)
    for i in range(out.size):
        value = value_of(row[i])
        out[i] = value
        total += value * value
    scale = factor / np.float32(math.sqrt(total + eps))
    for i in range(out.size):
        out[i] *= scale


@kernel
def _kept(decay, dt_bias, rate, lower_bound):
    """What a step keeps of the state: exp(g)."""
    shifted = decay + dt_bias
    one = np.float32(1)
    if lower_bound < 0:
        return exp(lower_bound * (one / (one + exp(-rate * shifted))))
    soft = shifted
    if shifted < np.float32(20):
        soft = np.float32(math.log1p(exp(shifted)))
    return exp(-rate * soft)


@kernel(fastmath={"contract"})
def _read(out, s, key):
    """out = key @ s."""
    out[:] = np.float32(0)
    for i in range(key.size):
        weight = key[i]
        for j in range(out.size):
            out[j] += weight * s[i, j]


@kernel(fastmath={"contract"})
def _decayed_read(out, s, key, kept):
    """s *= kept, row by row; out = key @ s."""
    out[:] = np.float32(0)
    for i in range(key.size):
        weight, share = key[i], kept[i]
        for j in range(out.size):
            value = s[i, j] * share
            s[i, j] = value
            out[j] += weight * value


@kernel(fastmath={"contract"})
def _write(s, key, change):
    """s += key change^T."""
    for i in range(key.size):
        weight = key[i]
        for j in range(change.size):
            s[i, j] += weight * change[j]


@kernel
def gated_delta(dst, dst0, q, q0, k, k0, v, v0, decay, decay0, per_channel, beta, beta0, a_log, dt_bias, state, state0,
                slots, q_lens, kv_lens, starts, heads, group, key_dim, value_dim, lower_bound, eps, first,
                last):  # fmt: skip
    """Units first..last of a batch; a unit is one head of one sequence, so how they are cut changes nothing."""
    one = np.float32(1)
    query, key, kept = np.empty(key_dim, np.float32), np.empty(key_dim, np.float32), np.empty(key_dim, np.float32)
    change, out = np.empty(value_dim, np.float32), np.empty(value_dim, np.float32)
    scale = np.float32(1 / math.sqrt(key_dim))
    follow = 0
    for b in range(q_lens.size):
        new = q_lens[b]
        start = starts[b] if starts.size > 0 else follow
        follow += new
        low, high = max(first - b * heads, 0), min(last - b * heads, heads)
        if new > 0 and low < high:
            for h in range(low, high):
                size = key_dim * value_dim
                row = state0 + h * size
                s = state[slots[b]][row : row + size].reshape(key_dim, value_dim)
                if kv_lens[b] == new:
                    s[:, :] = np.float32(0)
                at, rate = h // group * key_dim, exp(value_of(a_log[h]))
                for t in range(start, start + new):
                    _normalise(query, q[t, q0 + at : q0 + at + key_dim], scale, eps)
                    _normalise(key, k[t, k0 + at : k0 + at + key_dim], one, eps)
                    if per_channel:
                        for i in range(key_dim):
                            column = h * key_dim + i
                            kept[i] = _kept(
                                value_of(decay[t, decay0 + column]), value_of(dt_bias[column]), rate, lower_bound
                            )
                    else:
                        kept[:] = _kept(value_of(decay[t, decay0 + h]), value_of(dt_bias[h]), rate, lower_bound)
                    share = one / (one + exp(-value_of(beta[t, beta0 + h])))
                    _decayed_read(change, s, key, kept)
                    for j in range(value_dim):
                        change[j] = (value_of(v[t, v0 + h * value_dim + j]) - change[j]) * share
                    _write(s, key, change)
                    _read(out, s, query)
                    for j in range(value_dim):
                        dst[t, dst0 + h * value_dim + j] = rounded(dst, out[j])
    return -1
