"""Tests of extents that many ranks bind at once."""

import numpy as np
import pytest

from siltwin.isa.errors import ProgramError
from siltwin.isa.loads import RankExtents, Table, rank_extents


def test_a_rank_reads_its_own_row_of_a_table_and_what_all_share():
    table = Table(np.array([[5, 6], [7, 8]]), np.array([1, 0, 1]))
    extents = [RankExtents({"tokens": (3,)}, {"load": table}, rank) for rank in range(3)]
    assert [dict(own) for own in extents] == [
        {"load": (7, 8), "tokens": (3,)},
        {"load": (5, 6), "tokens": (3,)},
        {"load": (7, 8), "tokens": (3,)},
    ]
    assert all(type(value) is int for value in extents[0]["load"])
    assert "load" in extents[0] and "tokens" in extents[0] and "other" not in extents[0] and len(extents[0]) == 2
    with pytest.raises(KeyError):
        extents[0]["other"]


def test_ranks_with_equal_values_share_one_object():
    common, other = {"tokens": (3,)}, {"tokens": (4,)}
    load = Table(np.array([[1, 2], [1, 3], [1, 2]]), np.arange(3))
    tables = {"load": load}
    extents = rank_extents([common] * 3, [tables] * 3)
    assert extents[0] is extents[2] and extents[0] is not extents[1]
    apart = rank_extents([common, common, other], [tables] * 3)
    assert apart[0] is not apart[2]
    none: dict[str, Table] = {}
    found = rank_extents([common, other, common], [none] * 3)
    assert found[0] is common and found[1] is other and found[2] is common


def test_ranks_part_only_where_their_own_tables_differ():
    """Of four ranks the first two and the last two read other tables; of the last two the second table tells apart."""
    common = {"tokens": (3,)}
    same, other = (Table(np.array(values), np.array([0, 0, 0, 1])) for values in ([[4], [4]], [[4], [5]]))
    near, far = {"load": same}, {"load": same, "more": other}
    extents = rank_extents([common] * 4, [near, near, far, far])
    assert extents[0] is extents[1] and len({id(own) for own in extents}) == 3
    assert dict(extents[3]) == {"tokens": (3,), "load": (4,), "more": (5,)}


@pytest.mark.parametrize(
    ("values", "rows"),
    [
        (np.array([1, 2]), np.array([0])),
        (np.array([[1.0]]), np.array([0])),
        (np.array([[1]]), np.array([1])),
        (np.array([[1]]), np.array([-1])),
    ],
)
def test_tables_of_a_wrong_form_are_refused(values, rows):
    with pytest.raises(ProgramError, match="a table"):
        Table(values, rows)
