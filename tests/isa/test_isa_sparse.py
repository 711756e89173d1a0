"""Sparse attention: which keys are chosen, by hand; attention over chosen tokens; Work counts what is gathered."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kernel_cases import chosen_case, latent_case, select_case

from siltwin.isa.dtype import FP32
from siltwin.isa.errors import ProgramError
from siltwin.isa.work import IndexShape, LatentShape

SELECT = (
    "select_keys dst=%d q=%q weights=%w cache=%c tables=%p q_lens=%l kv_lens=%k q_extent=q_lens kv_extent=kv_lens "
    "heads={heads} dim={dim} scale=0.5"
)


def select(bench: Any, q: Any, weights: Any, keys: Any, queries: int, top_k: int) -> list[list[int]]:
    """Positions chosen by the last `queries` tokens of one sequence, whose keys stand in one page."""
    heads, (length, dim) = len(weights[0]), np.shape(keys)
    extents = {"t": (queries,), "n": (1,), "q_lens": (queries,), "kv_lens": (length,)}
    found = bench.run(
        SELECT.format(heads=heads, dim=dim),
        {"q": q, "w": weights, "c": [keys], "p": [[0]], "l": [queries], "k": [length]},
        extents,
        d=f"int32[t, {top_k}]",
        q=f"fp32[t, {heads * dim}]",
        w=f"fp32[t, {heads}]",
        c=f"fp32[1, {length}, {dim}]",
        p="int32[n, 1]",
        l="int32[n]",
        k="int32[n]",
    )
    return found["d"].tolist()


def test_scores_are_weighted_sums_of_what_each_head_gives_above_zero(bench: Any) -> None:
    # head 0 sees the first number of a key, head 1 the second; the weights are 1 and -2:
    # 4 - 0, 2 - 2, 0 - 0 (a negative product counts nothing), 3 - 0
    keys = [[4, -9], [2, 1], [-8, -8], [3, 0]]
    assert select(bench, [[1, 0, 0, 1]], [[1, -2]], keys, queries=1, top_k=1) == [[0]]
    assert select(bench, [[1, 0, 0, 1]], [[1, -2]], keys, queries=1, top_k=2) == [[0, 3]]
    assert select(bench, [[-1, 0, 0, 1]], [[1, 0]], keys, queries=1, top_k=1) == [[2]]


def test_a_query_looks_no_further_than_itself_and_takes_all_when_they_are_few(bench: Any) -> None:
    keys = [[1], [5], [2], [9]]
    chosen = select(bench, [[1], [1], [1]], [[1], [1], [1]], keys, queries=3, top_k=2)
    assert chosen == [[0, 1], [1, 2], [1, 3]]
    assert select(bench, [[1], [1], [1], [1]], [[1]] * 4, keys, queries=4, top_k=3)[:2] == [[0, -1, -1], [0, 1, -1]]
    assert select(bench, [[1]], [[1]], keys, queries=1, top_k=6) == [[0, 1, 2, 3, -1, -1]]


def test_the_earlier_key_wins_a_tie_and_nan_loses_to_all(bench: Any) -> None:
    assert select(bench, [[1]], [[1]], [[-1], [2], [-3], [-1], [2]], queries=1, top_k=3) == [[0, 1, 4]]
    assert select(bench, [[1]], [[-1]], [[np.nan], [2], [-3], [0]], queries=1, top_k=3) == [[1, 2, 3]]


def test_attention_over_chosen_tokens_is_attention_over_a_cache_of_these_alone() -> None:
    rng = np.random.default_rng(4)
    case = chosen_case(rng, FP32, [1], [11], 4, page_tokens=11)
    page = int(case.arrays["t"][0, 0])
    case.instruction.execute(case.memory(case.arrays))
    few = latent_case(rng, FP32, [1], [4], page_tokens=4)
    few.arrays |= {name: case.arrays[name] for name in ("n", "p", "w")}
    few.arrays["c"][few.arrays["t"][0, 0]] = case.arrays["c"][page, case.arrays["i"][0]]
    few.instruction.execute(few.memory(few.arrays))
    np.testing.assert_allclose(case.arrays["o"], few.arrays["o"], atol=1e-6)


@pytest.mark.parametrize("row", [[0, 1, 1, 2], [3, 1, 4, 5], [-1, 0, 1, 2], [0, 1, 2, 9]])
def test_positions_that_do_not_ascend_within_the_sequence_are_refused(row: list[int]) -> None:
    case = chosen_case(np.random.default_rng(4), FP32, [2], [10], 4)
    case.arrays["i"][0] = row
    with pytest.raises(ProgramError, match="query 0 of a sequence sees 9 tokens.*must ascend from 0 to 8"):
        case.instruction.execute(case.memory(case.arrays))


def test_what_is_chosen_by_hand() -> None:
    # 3 new of 6 see 4, 5 and 6; with 4 chosen two of them choose, from 5 + 6 tokens; the second sequence sees 3
    shape = IndexShape((3, 1, 0), (6, 3, 9), 2, 8, 4)
    assert shape.scored == ((2, 11, 6),)


def test_work_of_the_choice_counts_what_is_scored(bench: Any) -> None:
    extents = {"t": (4,), "n": (2,), "q_lens": (3, 1), "kv_lens": (6, 3)}
    found = bench.work(
        SELECT.format(heads=2, dim=8),
        extents=extents,
        d="int32[t, 4]",
        q="bf16[t, 16]",
        w="fp32[t, 2]",
        c="bf16[9, 16, 8]",
        p="int32[n, 1]",
        l="int32[n]",
        k="int32[n]",
    )
    assert found.ops == 11 * (2 * (2 * 8 + 3) + 4)
    assert found.read_bytes == 2 * (2 * 16 + 4 * 2) + 6 * 2 * 8
    assert found.write_bytes == 4 * 4 * 4
    assert found.shape == IndexShape((3, 1), (6, 3), 2, 8, 4, 16)


def test_attention_over_chosen_tokens_gathers_no_more_than_these() -> None:
    shape = LatentShape((1, 1), (100, 7), 2, 8, 4, 6, 16, top_k=10)
    assert (shape.pairs(1, 100), shape.rows(1, 100), shape.rows(1, 7)) == (10, 10, 7)
    # one head: absorbed 16 * 14, and 10 chosen tokens of 20 + 16
    assert shape.taken_ops(1, 100) == 4 * (224 + 10 * 36)
    # 4 new of 12 see 9, 10, 11 and 12, and meet 9 + 3 * 10; together they may need every row
    assert (shape.pairs(4, 12), shape.rows(4, 12)) == (39, 12)
    assert not shape.expands(4, 12) and shape.expands(7, 7)
    assert shape.pairs(0, 50) == shape.rows(0, 50) == 0


def test_work_of_attention_reads_chosen_rows_alone() -> None:
    case = chosen_case(np.random.default_rng(0), FP32, [1, 2], [40, 5], 6)
    found = case.instruction.work(case.memory(case.arrays))
    # three heads of 8 + 6 with values of 5 over latents of 12; rows of 6 chosen tokens and of 5
    assert found.read_bytes == 4 * (3 * 3 * 14 + 3 * 13 * 12 + (6 + 5) * 18) + 4 * 3 * 6


def test_a_choice_may_be_of_nothing_but_ties() -> None:
    case = select_case(np.random.default_rng(1), FP32, [1], [40], top_k=7)
    case.arrays["w"][:] = 0
    case.instruction.execute(case.memory(case.arrays))
    assert case.arrays["o"].tolist() == [list(range(7))]
