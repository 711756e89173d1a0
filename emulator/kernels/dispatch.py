"""Rows of experts on other cards: how many an exchange moves, and their order by member and by expert."""

# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

from .inline import kernel, rounded, value_of


@kernel
def tally(rows, counts, arriving, sizes, sent, received, local):
    """Sums of what leaves and what arrives."""
    experts = rows.size
    for e in range(experts):
        local[e] = 0
    for m in range(sizes.size):
        total = 0
        for e in range(experts):
            total += arriving[m * experts + e]
            local[e] += arriving[m * experts + e]
        received[m] = total
    for e in range(experts):
        rows[e] = local[e]
    at = 0
    for m in range(sizes.size):
        total = 0
        for e in range(at, at + sizes[m]):
            total += counts[e]
        sent[m] = total
        at += sizes[m]


@kernel
def order(places, arriving, members, experts):
    """places[row by expert] = row by member; the number of rows, or -1 - it when `places` is too short."""
    total = 0
    for cell in range(arriving.size):
        total += arriving[cell]
    if total > places.size:
        return -1 - total
    at = 0
    for e in range(experts):
        start = 0
        for m in range(members):
            for other in range(experts):
                count = arriving[m * experts + other]
                if other == e:
                    for row in range(count):
                        places[at + row] = start + row
                    at += count
                start += count
    return total


@kernel
def choose_replica(slots, slots0, counts, ids, ids0, top, table, table0, parts, total, shift):
    """slots of the chosen experts, and how many choices each slot gets of each part; the token of a bad id, or -1."""
    counts[:] = 0
    for t in range(ids.shape[0]):
        for j in range(top):
            expert = ids[t, ids0 + j]
            if expert < 0 or expert >= table.shape[0]:
                return t
            slot = table[expert, table0 + 1 + (t // parts + shift) % table[expert, table0]]
            slots[t, slots0 + j] = slot
            counts[t % parts * total + slot] += 1
    return -1


@kernel
def copy_choices(ids, ids0, weights, weights0, counts, chosen, chosen0, top, shares, shares0, table, table0, cuts):
    """ids and weights of every cut of the chosen experts, and how many each gets; the token of a bad id, or -1."""
    counts[:] = 0
    for t in range(chosen.shape[0]):
        for j in range(top):
            expert = chosen[t, chosen0 + j]
            if expert < 0 or expert >= table.shape[0]:
                return t
            share = value_of(shares[t, shares0 + j])
            for c in range(cuts):
                cut = table[expert, table0 + c]
                ids[t, ids0 + j * cuts + c] = cut
                weights[t, weights0 + j * cuts + c] = rounded(weights, share)
                counts[cut] += 1
    return -1
