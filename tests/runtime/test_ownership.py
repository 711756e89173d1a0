"""Every position of a context has one owner; shares are even, and a share's rows are counted as they stand."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from siltwin.runtime.context import seen_of
from siltwin.runtime.ownership import Ownership, ownership, pieces


def owner_of(own: Ownership, position: int, shares: int) -> int:
    (owner,) = [share for share in range(shares) if own.spans(share, position, position + 1)]
    return owner


def test_pieces_of_causal_attention_pair_the_first_with_the_last() -> None:
    """17 tokens in four pieces of 5, 4, 4 and 4 on two shares, of which the second is the first one's home."""
    assert pieces(10, 17, 2, 0, False) == [(10, 15, 0), (15, 19, 1), (19, 23, 1), (23, 27, 0)]
    assert pieces(0, 1, 4, 3, False)[0] == (0, 1, 3)


def test_pieces_of_a_recurrence_go_round_the_ring_and_end_at_home() -> None:
    assert pieces(4, 10, 3, 1, True) == [(4, 7, 2), (7, 10, 0), (10, 14, 1)]
    assert pieces(0, 2, 4, 0, True) == [(0, 0, 1), (0, 0, 2), (0, 1, 3), (1, 2, 0)]


@pytest.mark.parametrize("shares", [2, 3, 4])
@pytest.mark.parametrize("states", [False, True])
@pytest.mark.parametrize("cuts", [[], [(0, 1)], [(0, 70)], [(0, 7), (7, 7), (14, 3)], [(0, 200), (200, 40)]])
def test_every_position_has_one_owner_who_counts_it_in_its_row(
    shares: int, states: bool, cuts: list[tuple[int, int]]
) -> None:
    own = ownership(tuple(cuts), 300, shares, 1, states, 16)
    rows: Counter[int] = Counter()
    for position in range(300):
        owner = owner_of(own, position, shares)
        assert own.count(owner, position) == rows[owner]
        rows[owner] += 1
    for share in range(shares):
        assert own.count(share, 300) == rows[share]
        positions = np.arange(301)
        held = [sum(len(span) for span in own.spans(share, 0, position)) for position in positions.tolist()]
        assert own.counts(share, positions).tolist() == held


def test_generated_tokens_take_turns_by_pages_or_stay_with_the_state() -> None:
    own = ownership(((0, 8),), 8 + 50, 2, 1, False, 16)
    assert [owner_of(own, position, 2) for position in (8, 23, 24, 39, 40, 56)] == [1, 1, 0, 0, 1, 0]
    kept = ownership(((0, 8),), 58, 2, 1, True, 16)
    assert {owner_of(kept, position, 2) for position in range(8, 58)} == {1}


def test_a_long_context_is_even_to_a_token() -> None:
    """Pieces of 8 of 100003 tokens differ by one token at most, two of them make a share."""
    own = ownership(((0, 100003),), 100003, 4, 0, False, 16)
    held = [own.count(share, 100003) for share in range(4)]
    assert sum(held) == 100003 and max(held) - min(held) <= 2


def test_what_queries_see_is_counted_once_for_keys_and_each_time_for_pairs() -> None:
    assert seen_of(np.array([[0, 0], [0, 2], [1, 4], [6, 7]])) == (3, 6, 5)
    assert seen_of(np.zeros((0, 2), int)) == (0, 0, 0)
