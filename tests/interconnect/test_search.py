"""The compiled search finds what scipy's finds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

from siltwin.interconnect.search import cheapest


def _table(nodes: int, links: dict[tuple[int, int], int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Links by their beginning: (first of every node, ends, weights)."""
    pairs = sorted(links)
    first = np.searchsorted(np.array([start for start, _ in pairs], np.int64), np.arange(nodes + 1))
    return first, np.array([end for _, end in pairs], np.int64), np.array([links[pair] for pair in pairs], float)


def test_the_cheaper_way_round_is_taken() -> None:
    first, ends, weights = _table(4, {(0, 1): 5, (0, 2): 1, (2, 1): 3, (1, 0): 1})
    assert cheapest(first, ends, weights, np.array([0, 1])).tolist() == [[0, 4, 1, np.inf], [1, 0, 2, np.inf]]


def test_a_node_without_links_reaches_itself_alone() -> None:
    first, ends, weights = _table(2, {})
    assert cheapest(first, ends, weights, np.array([1])).tolist() == [[np.inf, 0]]


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 12), st.data())
def test_random_graphs_cost_what_scipy_says(nodes: int, data: st.DataObject) -> None:
    node = st.integers(0, nodes - 1)
    links = data.draw(st.dictionaries(st.tuples(node, node), st.integers(1, 30), max_size=60))
    first, ends, weights = _table(nodes, links)
    starts = np.array(data.draw(st.lists(node, min_size=1, max_size=4)))
    theirs = dijkstra(csr_array((weights, ends, first), shape=(nodes, nodes)), indices=starts)
    assert cheapest(first, ends, weights, starts).tolist() == theirs.tolist()


@pytest.mark.parametrize("side", [30])
def test_a_torus_of_nine_hundred_is_as_far_as_its_steps(side: int) -> None:
    links = {}
    for node in range(side * side):
        row, column = divmod(node, side)
        for step in (-1, 1):
            links[node, (row + step) % side * side + column] = 1
            links[node, row * side + (column + step) % side] = 1
    first, ends, weights = _table(side * side, links)
    away = np.minimum(np.arange(side), side - np.arange(side))
    assert (cheapest(first, ends, weights, np.array([0]))[0] == np.add.outer(away, away).reshape(-1)).all()
