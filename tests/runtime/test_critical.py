"""What held each instant: hand-made columns whose shares are worked out by hand, alone and standing for others."""

import numpy as np
import pytest

from siltwin.emulator.span import BOUNDS
from siltwin.emulator.span_columns import CardColumns, alike_all_along, by_standing
from siltwin.runtime.critical import critical


def card(*spans: tuple[int, int, str], ranks: tuple[int, ...] = (0,)) -> CardColumns:
    """A card of one queue that did these (start, end, bound)."""
    rows = enumerate((start, end, BOUNDS.index(bound)) for start, end, bound in spans)
    table = [(0, 0, row, row, start, start, end, bound, -1) for row, (start, end, bound) in rows]
    columns = np.array(table, np.int64).reshape(-1, 9).T
    return CardColumns(ranks, None, (), ("tensor",), *columns)  # type: ignore[arg-type]


def test_each_instant_goes_to_what_started_first_and_the_rest_is_dependency() -> None:
    one, other = card((0, 10, "compute"), (12, 20, "hbm")), card((5, 14, "link"), (14, 14, "sram"))
    found = critical([one, other], 0, 25).bounds
    # 0-10 compute, 10-14 link (its first five instants are covered), 14-20 hbm, 20-25 nobody
    assert (found.compute, found.link, found.hbm, found.dependency, found.sram) == (10, 4, 6, 5, 0)
    assert found.total_ps == 25


def test_what_waited_for_others_holds_nothing() -> None:
    assert critical([card((0, 10, "dependency"))], 0, 10).bounds.dependency == 10
    assert critical([], 3, 10).bounds.dependency == 7


def test_time_before_the_stretch_is_not_counted() -> None:
    assert critical([card((0, 10, "compute"))], 4, 10).bounds.compute == 6


def test_of_instructions_that_start_together_the_last_to_end_holds_the_time() -> None:
    found = critical([card((0, 4, "hbm"), (4, 9, "sram")), card((0, 6, "compute"), ranks=(1,))], 0, 10).bounds
    assert (found.compute, found.sram, found.hbm, found.dependency) == (6, 3, 0, 1)


def test_of_equal_instructions_that_of_the_lowest_card_counts() -> None:
    first, second = card((0, 10, "hbm")), card((0, 10, "compute"), ranks=(1,))
    assert critical([first, second], 0, 10).bounds.hbm == 10
    ((held, rows, own),) = critical([first, second], 0, 10).held
    assert (held is first, rows.tolist(), own.tolist()) == (True, [0], [10])


@pytest.mark.parametrize("seed", range(20))
def test_a_card_that_stands_for_others_holds_what_all_of_them_together_do(seed: int) -> None:
    draw = np.random.default_rng(seed)
    kinds = []
    for _ in range(3):
        starts = np.cumsum(draw.integers(0, 9, 30))
        kinds.append([(int(s), int(s + draw.integers(0, 9)), BOUNDS[draw.integers(7)]) for s in starts])
    ranks = draw.permutation(8)
    standing = {int(rank): int(min(ranks[ranks % 3 == rank % 3])) for rank in ranks}
    alone = [card(*kinds[rank % 3], ranks=(rank,)) for rank in range(8)]
    folded = [card(*kinds[first % 3], ranks=own) for first, own in by_standing(range(8), standing).items()]
    assert [one.ranks for one in folded] == [(0, 3, 6), (1, 4, 7), (2, 5)]
    assert critical(folded, 0, 400).bounds == critical(alone, 0, 400).bounds


def test_ranks_are_alike_only_where_they_were_in_every_step() -> None:
    first = [card(ranks=(0, 1, 2)), card(ranks=(3,))]
    second = [card(ranks=(0, 2)), card(ranks=(1, 3))]
    found = alike_all_along([first, second], 5)
    assert [ranks for ranks, _ in found] == [[0, 2], [1], [3]]  # rank 4 did nothing
    assert found[1][1] == (first[0], second[1])
