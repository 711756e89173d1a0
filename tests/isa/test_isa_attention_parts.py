"""The parts of attention: together they mean attention, and their Work is counted by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from siltwin.isa.dtype import BF16
from siltwin.isa.errors import ProgramError
from siltwin.isa.work import GroupedShape, MatmulShape, Unit, VectorShape

EXTENTS = {"t": (5,), "n": (3,), "q_lens": (4, 0, 1), "kv_lens": (4, 7, 9)}
LENGTHS = "q_lens=%l kv_lens=%k q_extent=q_lens kv_extent=kv_lens"
CACHE = {"c": "bf16[20, 16, 24]", "p": "int32[n, 2]", "l": "int32[n]", "k": "int32[n]"}


def test_scores_are_padded_products_of_each_sequence_and_kv_head(bench: Any) -> None:
    text = f"paged_scores dst=%z q=%q cache=%c onto=- tables=%p {LENGTHS} heads=4 kv_heads=2 first=8 dim=8 scale=0.5"
    found = bench.work(text, extents=EXTENTS, z="fp32[t, 4, 16]", q="bf16[t, 32]", **CACHE)
    assert (found.unit, found.dtype) == (Unit.TENSOR, BF16)
    # 4 and 1 queries of two heads a kv head, twice; 16 columns for contexts of up to 9
    assert found.shape == GroupedShape((8, 2, 8, 2), 16, 8)
    assert found.ops == 2 * (8 + 2 + 8 + 2) * 16 * 8
    assert found.read_bytes == 2 * 5 * 32 + (4 + 9) * 2 * 8 * 2  # the sequence without new tokens asks nothing
    assert found.write_bytes == 4 * 5 * 4 * 16


def test_scores_added_to_others_read_those_too(bench: Any) -> None:
    text = f"paged_scores dst=%z q=%q cache=%c onto=%z tables=%p {LENGTHS} heads=4 kv_heads=1 first=0 dim=8 scale=1"
    found = bench.work(text, extents=EXTENTS, z="fp32[t, 4, 16]", q="bf16[t, 32]", **CACHE)
    assert found.read_bytes == 2 * 5 * 32 + (4 + 9) * 8 * 2 + 4 * 5 * 4 * 16
    assert found.shape == GroupedShape((16, 4), 16, 8)


def test_values_read_the_padded_weights(bench: Any) -> None:
    text = f"paged_values dst=%o weights=%z cache=%c tables=%p {LENGTHS} heads=4 kv_heads=2 first=8 dim=8"
    found = bench.work(text, extents=EXTENTS, z="fp32[t, 4, 16]", o="bf16[t, 32]", **CACHE)
    assert found.shape == GroupedShape((8, 2, 8, 2), 8, 16)
    assert found.read_bytes == 4 * 5 * 4 * 16 + (4 + 9) * 2 * 8 * 2
    assert found.write_bytes == 2 * 5 * 32


def test_a_masked_softmax_goes_over_its_rows_three_times(bench: Any) -> None:
    text = f"masked_softmax dst=%z x=%z {LENGTHS} window=0 chunk=0 sinks=%s chosen=-"
    found = bench.work(text, extents=EXTENTS, z="fp32[t, 4, 16]", s="bf16[4]", l="int32[n]", k="int32[n]")
    assert found.shape == VectorShape(20, 16, 3)
    assert (found.read_bytes, found.write_bytes) == (4 * 320 + 2 * 4, 4 * 320)


def test_a_product_a_head_reads_the_rows_it_uses(bench: Any) -> None:
    text = "heads_matmul dst=%d a=%a w=%w heads=3 first=2 outputs=rows"
    found = bench.work(text, extents=EXTENTS, d="bf16[t, 12]", a="bf16[t, 15]", w="bf16[21, 5]")
    assert found.shape == MatmulShape(5, 4, 5, 3)
    assert found.read_bytes == 2 * (5 * 15 + 3 * 4 * 5)


def softmax(x: np.ndarray) -> np.ndarray:
    weights = np.exp(x - x.max())
    return weights / weights.sum()


@pytest.mark.parametrize(("window", "chunk"), [(0, 0), (2, 0), (0, 3)])
def test_the_parts_together_are_attention(bench: Any, window: int, chunk: int) -> None:
    """Two heads on one kv head of 3 and 2 elements, two queries after three cached tokens in pages of 2, in float64."""
    rng = np.random.default_rng(7)
    arrays = {
        "q": rng.standard_normal((2, 6)).astype(np.float32),
        "c": rng.standard_normal((4, 2, 5)).astype(np.float32),
        "p": np.array([[3, 0, 1]], np.int32),
        "l": np.array([2], np.int32),
        "k": np.array([5], np.int32),
        "s": np.array([0.5, -1.0], np.float32),
        "z": np.zeros((2, 2, 6), np.float32),
        "o": np.zeros((2, 4), np.float32),
    }
    text = (
        f"paged_scores dst=%z q=%q cache=%c onto=- tables=%p {LENGTHS} heads=2 kv_heads=1 first=0 dim=3 scale=0.5\n"
        f"masked_softmax dst=%z x=%z {LENGTHS} window={window} chunk={chunk} sinks=%s chosen=-\n"
        f"paged_values dst=%o weights=%z cache=%c tables=%p {LENGTHS} heads=2 kv_heads=1 first=3 dim=2"
    )
    kinds = {"q": "fp32[2, 6]", "c": "fp32[4, 2, 5]", "p": "int32[1, 3]", "l": "int32[1]", "k": "int32[1]"}
    kinds |= {"s": "fp32[2]", "z": "fp32[2, 2, 6]", "o": "fp32[2, 4]"}
    given = bench.run(text, arrays, extents={"t": (2,), "n": (1,), "q_lens": (2,), "kv_lens": (5,)}, **kinds)
    rows = arrays["c"].astype(np.float64)[[3, 0, 1]].reshape(-1, 5)[:5]
    for t, position in enumerate((3, 4)):
        for h in range(2):
            first = max(0, position + 1 - window) if window else position // chunk * chunk if chunk else 0
            seen = rows[first : position + 1]
            scores = seen[:, :3] @ arrays["q"][t, 3 * h : 3 * h + 3].astype(np.float64) * 0.5
            weights = softmax(np.append(scores, arrays["s"][h]))[:-1]
            np.testing.assert_allclose(given["o"][t, 2 * h : 2 * h + 2], weights @ seen[:, 3:], atol=1e-6)


def test_scores_narrower_than_the_context_are_refused(bench: Any) -> None:
    text = f"paged_scores dst=%z q=%q cache=%c onto=- tables=%p {LENGTHS} heads=4 kv_heads=2 first=8 dim=8 scale=0.5"
    with pytest.raises(ProgramError, match="8 columns for 9 cached tokens"):
        bench.work(text, extents=EXTENTS, z="fp32[t, 4, 8]", q="bf16[t, 32]", **CACHE)
    with pytest.raises(ProgramError, match="columns 16 to 32 are not all of a cache row of 24"):
        wide = text.replace("first=8", "first=16")
        bench.work(wide, extents=EXTENTS, z="fp32[t, 4, 16]", q="bf16[t, 32]", **CACHE)


def test_a_head_s_matrix_may_be_turned(bench: Any) -> None:
    a, w = np.arange(6, dtype=np.float32).reshape(1, 6), np.arange(12, dtype=np.float32).reshape(6, 2)
    kinds = {"a": "fp32[1, 6]", "w": "fp32[6, 2]", "d": "fp32[1, 4]"}
    text = "heads_matmul dst=%d a=%a w=%w heads=2 first=0 outputs=columns"
    given = bench.run(text, {"a": a, "w": w}, **kinds)
    # head 0: (0, 1, 2) times rows (0 1), (2 3), (4 5); head 1: (3, 4, 5) times rows (6 7), (8 9), (10 11)
    assert given["d"].tolist() == [[10, 13, 100, 112]]


def test_a_query_that_sees_more_than_are_chosen_sees_these_alone(bench: Any) -> None:
    """Queries at positions 1 and 2 with two chosen each: the first sees both of its tokens, the second 0 and 2."""
    text = f"masked_softmax dst=%z x=%z {LENGTHS} window=0 chunk=0 sinks=- chosen=%i"
    kinds = {"z": "fp32[2, 1, 4]", "l": "int32[1]", "k": "int32[1]", "i": "int32[2, 2]"}
    values = {"z": np.zeros((2, 1, 4)), "l": [2], "k": [3], "i": [[1, 3], [0, 2]]}
    found = bench.run(text, values, extents={"q_lens": (2,), "kv_lens": (3,)}, **kinds)
    assert found["z"][:, 0].tolist() == [[0.5, 0.5, 0, 0], [0.5, 0, 0.5, 0]]
