"""Latent attention: its meaning against attention over keys and values made in float64, its Work by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kernel_cases import Case, latent_case

from siltwin.isa.dtype import FP32
from siltwin.isa.errors import ProgramError
from siltwin.isa.work import LatentShape, Unit

HEADS, NOPE, ROPE, VALUE, LATENT = 3, 8, 6, 5, 12


def meant(case: Case) -> np.ndarray:
    """The definition, a head and a query at a time, in float64."""
    a = {name: array.astype(np.float64) for name, array in case.arrays.items()}
    rows = a["c"].reshape(-1, LATENT + ROPE)
    out, t = np.zeros((len(a["n"]), HEADS * VALUE)), 0
    for b, (queries, length) in enumerate(zip(case.arrays["ql"], case.arrays["kl"], strict=True)):
        places = [case.arrays["t"][b, j // 4] * 4 + j % 4 for j in range(length)]
        for q in range(queries):
            for h in range(HEADS):
                w = a["w"][h * (NOPE + VALUE) : (h + 1) * (NOPE + VALUE)]
                seen = rows[places[: length - queries + q + 1]]
                keys = np.hstack([seen[:, :LATENT] @ w[:NOPE].T, seen[:, LATENT:]])
                query = np.hstack([a["n"][t, h * NOPE : (h + 1) * NOPE], a["p"][t, h * ROPE : (h + 1) * ROPE]])
                scores = keys @ query * case.instruction.scale
                weights = np.exp(scores - scores.max())
                out[t, h * VALUE : (h + 1) * VALUE] = weights / weights.sum() @ (seen[:, :LATENT] @ w[NOPE:].T)
            t += 1
    return out


@pytest.mark.parametrize("lengths", [([5], [5]), ([1, 1], [9, 2]), ([3, 0, 1, 7], [8, 4, 17, 7])])
def test_the_meaning_is_attention_over_keys_and_values_of_each_head(lengths: tuple[list[int], list[int]]) -> None:
    case = latent_case(np.random.default_rng(1), FP32, *lengths)
    want = meant(case)
    case.instruction.execute(case.memory(case.arrays))
    np.testing.assert_allclose(case.arrays["o"], want, atol=2e-6)


SHAPE = LatentShape((4, 1), (4, 100), 2, 8, 4, 6, 16)


def test_operations_of_both_orders_by_hand() -> None:
    # one head, 4 new of 4: 10 pairs; expanded 4 * 16 * 14 + 10 * (12 + 6), absorbed 4 * 16 * 14 + 10 * (20 + 16)
    assert SHAPE.ops(4, 4) == (2 * 2 * (896 + 180), 2 * 2 * (896 + 360))
    # 1 new of 100: expanded 100 * 224 + 100 * 18, absorbed 224 + 100 * 36
    assert SHAPE.ops(1, 100) == (4 * (22400 + 1800), 4 * (224 + 3600))
    assert SHAPE.ops(0, 9) == (0, 0)


def test_prefill_expands_and_decode_absorbs() -> None:
    assert SHAPE.expands(4, 4) and not SHAPE.expands(1, 100)


def work(bench: Any, q_lens: tuple[int, ...], kv_lens: tuple[int, ...]) -> Any:
    extents = {"t": (sum(q_lens),), "n": (len(q_lens),), "q_lens": q_lens, "kv_lens": kv_lens}
    return bench.work(
        "latent_attention dst=%d q_nope=%q q_rope=%r cache=%c w=%w tables=%p q_lens=%l kv_lens=%k q_extent=q_lens "
        "kv_extent=kv_lens heads=2 nope_dim=8 rope_dim=4 v_dim=6 scale=0.5 chosen=-",
        extents=extents,
        d="bf16[t, 12]",
        q="bf16[t, 16]",
        r="bf16[t, 8]",
        c="bf16[100, 16, 20]",
        w="bf16[28, 16]",
        p="int32[n, 50]",
        l="int32[n]",
        k="int32[n]",
    )


def test_work_by_hand(bench: Any) -> None:
    found = work(bench, (4, 1, 0), (4, 100, 7))
    assert found.unit is Unit.TENSOR
    assert found.ops == 4 * (896 + 180) + 4 * (224 + 3600)
    # 5 queries of 24, the matrix, and the rows of 104 tokens; the third sequence asks nothing
    assert found.read_bytes == 2 * (5 * 24 + 28 * 16 + 104 * 20)
    assert found.write_bytes == 2 * 5 * 12
    assert found.shape == LatentShape((4, 1, 0), (4, 100, 7), 2, 8, 4, 6, 16, 16)


@pytest.mark.parametrize(("q_lens", "kv_lens", "message"), [((5,), (4,), "5 new tokens in a cache of 4")])
def test_lengths_that_cannot_be_are_refused(
    bench: Any, q_lens: tuple[int, ...], kv_lens: tuple[int, ...], message: str
) -> None:
    with pytest.raises(ProgramError, match=message):
        work(bench, q_lens, kv_lens)
