"""The orders of latent attention's products: which sequence takes which, what pieces see, and the workspace."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from siltwin.isa.dtype import BF16, FP32
from siltwin.isa.work import LatentShape, Order, Stretch, Unit, Work

K3 = {"nope_dim": 128, "rope_dim": 64, "v_dim": 128, "latent_dim": 512}
MILLION = 1_048_576


def shape_of(q_lens: tuple[int, ...], kv_lens: tuple[int, ...], heads: int = 96, **options) -> LatentShape:
    return LatentShape(q_lens, kv_lens, heads, **K3, **options)


@pytest.mark.parametrize(
    ("order", "expands"), [("auto", (True, False)), ("absorbed", (False,) * 2), ("expanded", (True,) * 2)]
)
def test_the_order_that_is_asked_for_is_taken(order: Order, expands: tuple[bool, bool]) -> None:
    shape = shape_of((8192, 1), (8192, 40_000), order=order)
    assert (shape.expands(8192, 8192), shape.expands(1, 40_000)) == expands
    assert shape.taken_ops(1, 40_000) == shape.ops(1, 40_000)[not expands[1]]


def test_queries_that_choose_are_absorbed_whatever_is_asked_for() -> None:
    shape = shape_of((1, 1), (3000, 2000), order="expanded", top_k=2048)
    assert shape.by_order == ([(1, 2000)], [(1, 3000)])


def test_keys_and_values_of_a_million_tokens_take_64_gigabytes_and_a_share_of_heads_its_part() -> None:
    """One layer: 1,048,576 tokens x 96 heads x (192 + 128) elements x 2 bytes."""
    whole = shape_of((8192,), (MILLION,), order="expanded")
    assert whole.workspace_bytes(BF16) == 64_424_509_440
    assert shape_of((8192,), (MILLION,), 96 // 8, order="expanded").workspace_bytes(BF16) == 8_053_063_680


def test_pieces_bound_the_workspace_and_add_the_parts_that_they_leave() -> None:
    """64 Ki tokens of 12 heads, and 8,192 queries x 12 heads x (128 + 1) floats of 4 bytes."""
    shape = shape_of((8192,), (MILLION,), 12, order="expanded", piece_tokens=65_536)
    assert shape.workspace_bytes(BF16) == 65_536 * 12 * 320 * 2 + 8192 * 12 * 129 * 4 == 554_041_344
    assert len(shape.pieces) == 16
    # one piece: no parts are merged
    assert shape_of((8192,), (65_536,), 12, order="expanded", piece_tokens=65_536).workspace_bytes(BF16) == 503_316_480


def test_absorbed_queries_and_what_they_sum_stand_in_the_workspace() -> None:
    """32 new tokens x 12 heads x (512 + 64 and 512) x 2 bytes; the length is nothing to it."""
    shape = shape_of((1,) * 32, (MILLION,) * 32, 12)
    assert shape.workspace_bytes(BF16) == 32 * 12 * 1088 * 2
    assert Work(Unit.TENSOR, dtype=FP32, shape=shape).workspace_bytes == 32 * 12 * 1088 * 4
    assert Work(Unit.VECTOR, dtype=FP32).workspace_bytes == 0


def seen_by_hand(queries: int, length: int, start: int, stop: int) -> Stretch:
    mask = np.arange(start, stop)[None, :] <= np.arange(length - queries, length)[:, None]
    return Stretch(int(mask.any(axis=1).sum()), int(mask.sum()), stop - start)


@pytest.mark.parametrize("piece", [1, 3, 4, 5, 16, 100])
def test_pieces_cut_the_tokens_of_all_sequences_in_a_row(piece: int) -> None:
    """Every new token of three sequences sees each cached token up to its own exactly once."""
    q_lens, kv_lens = (4, 1, 6), (9, 3, 6)
    shape = shape_of(q_lens, kv_lens, order="expanded", piece_tokens=piece)
    tokens = [sum(stretch.tokens for stretch in one) for one in shape.pieces]
    assert tokens == [piece] * (18 // piece) + [18 % piece] * bool(18 % piece)
    cuts = sorted({*range(0, 18, piece), 0, 9, 12, 18})
    wanted = []
    for start, stop in itertools.pairwise(cuts):
        first = max(begin for begin in (0, 9, 12) if begin <= start)
        at = (0, 9, 12).index(first)
        wanted.append(seen_by_hand(q_lens[at], kv_lens[at], start - first, stop - first))
    found = [stretch for one in shape.pieces for stretch in one]
    assert found == wanted
    assert sum(stretch.pairs for stretch in found) == sum(
        shape.pairs(*pair) for pair in zip(q_lens, kv_lens, strict=True)
    )


def test_a_million_tokens_expanded_in_chunks_are_at_the_physical_floor_and_a_twentieth_above() -> None:
    """24 layers, 96 heads: each query meets each key in 2 x 320 operations; chunks of 8,192 make keys and values of
    their whole context again. With the other weights' 2 x 104.19e9 a token this is the 1.03e18 of the whole model."""
    chunk = 8192
    lengths = range(chunk, MILLION + 1, chunk)
    counted = 24 * sum(shape_of((chunk,), (length,), order="expanded").taken_ops(chunk, length) for length in lengths)
    met = 24 * 96 * 2 * 320 * MILLION * (MILLION + 1) // 2
    made = 24 * 96 * 2 * 512 * 256 * sum(lengths)
    assert counted == met + made
    assert 8.10e17 < met < 8.11e17 and 4.0e16 < made < 4.1e16
    assert 1.02e18 < met + 2 * 104.19e9 * MILLION < 1.04e18


def test_auto_goes_over_to_the_absorbed_order_where_making_keys_again_costs_more() -> None:
    """8,192 new tokens expand at any length of a million; 64 absorb once their context is long."""
    assert all(shape_of((8192,), (n,)).expands(8192, n) for n in (8192, 65_536, MILLION))
    assert shape_of((64,), (64,)).expands(64, 64) and not shape_of((64,), (MILLION,)).expands(64, MILLION)
