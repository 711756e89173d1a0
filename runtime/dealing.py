"""Dealing: choices of experts shared out without a draw, so evenly that cards with equal parts get equal loads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..isa.instruction import split_even

Ints = np.ndarray[Any, np.dtype[Any]]


def dealt(start: Ints, count: Ints, ways: Ints | int, place: Ints) -> Ints:
    """How many of the deals start, start + 1, ... (`count` of them) fall to `place` of `ways`."""
    return (start + count - place + ways - 1) // ways - (start - place + ways - 1) // ways


def deal_evenly(choices: Ints, cards: int, experts: int) -> Ints:
    """Loads int64 [copies, senders, experts] of the choices [copies, senders] of those that send to a copy of experts.

    The experts stand on `cards` cards. Where each has as many, a sender gives every card as many choices, and the r
    that are left to cards evenly apart, from its number among those that send on; a card deals what it gets, sender
    after sender, to its experts in turn. Else the experts are dealt to in turn by all senders, first experts of all
    cards first. No sender gives an expert more than its choices over the number of experts, rounded up: tokens choose
    distinct experts.
    """
    known: dict[bytes, Ints] = {}
    for row in choices:
        if row.tobytes() not in known:
            deal = _in_turn if experts % cards else _by_card
            known[row.tobytes()] = deal(row, cards, experts)
    return np.stack([known[row.tobytes()] for row in choices])


def _by_card(choices: Ints, cards: int, experts: int) -> Ints:
    """Loads [senders, experts] where every card has as many experts."""
    own, senders = experts // cards, len(choices)
    each, left = choices // cards, choices % cards
    lucky = np.arange(cards) * cards // np.maximum(left, 1)[:, None]  # of which the first `left` of a sender count
    got = np.repeat(each[:, None], cards, axis=1)
    sender, turn = np.nonzero(np.arange(cards) < left[:, None])
    number = np.cumsum(choices > 0) - 1
    got[sender, (number[sender] + lucky[sender, turn]) % cards] += 1
    start = np.cumsum(got, axis=0) - got
    return dealt(start[:, :, None], got[:, :, None], own, np.arange(own)).reshape(senders, experts)


def _in_turn(choices: Ints, cards: int, experts: int) -> Ints:
    """Loads [senders, experts] where cards have one expert more or less."""
    shares = split_even(experts, cards)
    order = [first + turn for turn in range(shares[0][1]) for first, size in shares if turn < size]
    start = np.cumsum(choices) - choices
    loads = np.empty((len(choices), experts), np.int64)
    loads[:, order] = dealt(start[:, None], choices[:, None], experts, np.arange(experts))
    return loads


def deal_slots(loads: Ints, placement: Sequence[int], senders: int) -> Ints:
    """Loads of slots [holders, parts, slots] where those of an expert are dealt, sender after sender, to its slots.

    `placement` names the expert of each slot; `senders` parts of holders send to one copy of the slots.
    """
    seen: Counter[int] = Counter()
    turns = []
    for expert in placement:
        turns.append(seen[expert])
        seen[expert] += 1
    experts = np.array(placement)
    by_copy = loads.reshape(-1, senders, loads.shape[-1]).astype(np.int64)[:, :, experts]
    start = np.cumsum(by_copy, axis=1) - by_copy
    return dealt(start, by_copy, np.bincount(experts)[experts], np.array(turns)).reshape(*loads.shape[:-1], -1)
