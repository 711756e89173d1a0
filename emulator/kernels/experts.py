"""Expert layers: choosing experts, sorting rows by them, products and gates by expert, and the weighted sum back."""

# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import numpy as np

from .inline import REORDER, exp, kernel, largest, rounded, value_of

SOFTMAX, SIGMOID, SELECTED_SOFTMAX, SELECTED_SIGMOID = 0, 1, 2, 3
SCORINGS = {
    "softmax": SOFTMAX,
    "sigmoid": SIGMOID,
    "selected_softmax": SELECTED_SOFTMAX,
    "selected_sigmoid": SELECTED_SIGMOID,
}


@kernel(fastmath={"reassoc", "nsz"})
def _softmax(run):
    best = largest(run)
    total = np.float32(0)
    for i in range(run.size):
        weight = exp(run[i] - best)
        run[i] = weight
        total += weight
    for i in range(run.size):
        run[i] /= total


@kernel
def _take_best(values, taken):
    """The first index of the largest value that is not taken; minus infinity counts, so there always is one."""
    best = -1
    for i in range(values.size):
        if taken[i] == 0 and (best < 0 or values[i] > values[best]):
            best = i
    taken[best] = 1
    return best


@kernel
def _limit(choice, groups, top_groups, group_best):
    """Minus infinity in the experts outside the best groups, by the sum of each group's best scores."""
    size = choice.size // groups
    totals = np.empty(groups, np.float32)
    for g in range(groups):
        run, taken = choice[g * size : (g + 1) * size], np.zeros(size, np.uint8)
        total = np.float32(0)
        for _ in range(group_best):
            total += run[_take_best(run, taken)]
        totals[g] = total
    kept = np.zeros(groups, np.uint8)
    for _ in range(top_groups):
        _take_best(totals, kept)
    for g in range(groups):
        if kept[g] == 0:
            choice[g * size : (g + 1) * size] = np.float32(-np.inf)


@kernel
def route(ids, ids0, weights, weights0, top, logits, logits0, experts, bias, scoring, groups, top_groups, group_best,
          renormalise, eps, scale, first, last):  # fmt: skip
    """Tokens first..last: the `top` experts of each and their weights; `bias` is empty when there is none."""
    scores, choice = np.empty(experts, np.float32), np.empty(experts, np.float32)
    chosen = np.empty(top, np.float32)
    one = np.float32(1)
    for t in range(first, last):
        row = logits[t, logits0 : logits0 + experts]
        for e in range(experts):
            scores[e] = value_of(row[e])
        if scoring == SOFTMAX:
            _softmax(scores)
        elif scoring == SIGMOID:
            for e in range(experts):
                scores[e] = one / (one + exp(-scores[e]))
        for e in range(experts):
            value = scores[e] + value_of(bias[e]) if bias.size > 0 else scores[e]
            choice[e] = value if value == value else np.float32(-np.inf)
        if groups > 1:
            _limit(choice, groups, top_groups, group_best)
        taken = np.zeros(experts, np.uint8)
        for j in range(top):
            expert = _take_best(choice, taken)
            ids[t, ids0 + j] = expert
            chosen[j] = scores[expert]
        if scoring == SELECTED_SOFTMAX:
            _softmax(chosen)
        elif scoring == SELECTED_SIGMOID:
            for j in range(top):
                chosen[j] = one / (one + exp(-chosen[j]))
        if renormalise:
            total = np.float32(0)
            for j in range(top):
                total += chosen[j]
            for j in range(top):
                chosen[j] /= total + eps
        for j in range(top):
            weights[t, weights0 + j] = rounded(weights, chosen[j] * scale)
    return -1


@kernel
def count(counts, ids, ids0, top, experts, parts):
    """counts[p * experts + e] = choices of expert e by the tokens of part p."""
    counts[:] = 0
    for t in range(ids.shape[0]):
        for j in range(top):
            counts[t % parts * experts + ids[t, ids0 + j]] += 1


@kernel
def place(slots, slots0, tokens, ids, ids0, top, first, experts, part, parts):
    """slots of this card's choices, expert by expert in token order, -1 for others; tokens[row] fills row.

    Returns the rows there are, or -1 - their number when `tokens` is too short for them.
    """
    starts = np.zeros(experts + 1, np.int64)
    for t in range(part, ids.shape[0], parts):
        for j in range(top):
            expert = ids[t, ids0 + j] - first
            if 0 <= expert < experts:
                starts[expert + 1] += 1
    for e in range(experts):
        starts[e + 1] += starts[e]
    rows = starts[experts]
    if rows > tokens.size:
        return -1 - rows
    for t in range(ids.shape[0]):
        for j in range(top):
            expert = ids[t, ids0 + j] - first
            if t % parts == part and 0 <= expert < experts:
                slots[t, slots0 + j] = starts[expert]
                tokens[starts[expert]] = t
                starts[expert] += 1
            else:
                slots[t, slots0 + j] = -1
    return rows


@kernel(fastmath=REORDER)
def _dot(w, a):
    total = np.float32(0)
    for i in range(w.size):
        total += value_of(w[i]) * a[i]
    return total


@kernel
def _values(out, source):
    for i in range(out.size):
        out[i] = value_of(source[i])


@kernel
def few_rows(dst, dst0, a, a0, w, w0, n, k, bias, counts, at, experts, most, first, last):
    """Output columns first..last of every expert with 1 to `most` rows; `bias` is empty when there is none."""
    values = np.empty((most, k), np.float32)
    start = 0
    for e in range(experts):
        rows = counts[at + e]
        if 0 < rows <= most:
            for r in range(rows):
                _values(values[r], a[start + r, a0 : a0 + k])
            for j in range(first, last):
                weights = w[e * n + j, w0 : w0 + k]
                shift = value_of(bias[e * n + j]) if bias.size > 0 else np.float32(0)
                for r in range(rows):
                    dst[start + r, dst0 + j] = rounded(dst, _dot(weights, values[r]) + shift)
        start += rows
    return -1


@kernel(fastmath={"contract"})
def _add_scaled(out, weight, row):
    for i in range(out.size):
        out[i] += weight * value_of(row[i])


@kernel
def combine(dst, dst0, x, x0, cols, slots, slots0, top, weights, weights0, first, last):
    """Tokens first..last: the weighted sum of their rows (`weights` empty: each counts 1).

    Returns the token whose slot is out of range, or -1.
    """
    total = np.empty(cols, np.float32)
    for t in range(first, last):
        total[:] = np.float32(0)
        for j in range(top):
            slot = slots[t, slots0 + j]
            if slot >= x.shape[0]:
                return t
            if slot >= 0:
                weight = value_of(weights[t, weights0 + j]) if weights.size > 0 else np.float32(1)
                _add_scaled(total, weight, x[slot, x0 : x0 + cols])
        out = dst[t, dst0 : dst0 + cols]
        for i in range(cols):
            out[i] = rounded(dst, total[i])
    return -1
