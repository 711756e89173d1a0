"""Sparse attention on a card: the choice is exact, chosen tokens alone are met, and time follows what is chosen."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kernel_cases import FLOATS, chosen_case, select_case

from siltwin.emulator.kernels.registry import KERNELS, set_host_threads
from siltwin.emulator.spec import load_card
from siltwin.emulator.units.demand import demand
from siltwin.isa.dtype import BF16, FP32, DType
from siltwin.isa.errors import ProgramError
from siltwin.isa.work import IndexShape, LatentShape, Unit, Work

V3: dict[str, int] = {"num_heads": 128, "nope_dim": 128, "rope_dim": 64, "v_dim": 128, "latent_dim": 512}
LENGTHS: list[tuple[list[int], list[int]]] = [([1], [300]), ([40], [40]), ([35, 1, 0, 2], [80, 40, 9, 2])]


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("lengths", LENGTHS)
def test_the_kernel_chooses_what_the_meaning_does(lengths: Any, dtype: DType) -> None:
    for top_k in (1, 16, 39, 40, 70):
        select_case(np.random.default_rng(top_k), dtype, *lengths, top_k=top_k, page_tokens=16).check()


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("lengths", LENGTHS)
def test_attention_over_chosen_tokens_equals_its_meaning(lengths: Any, dtype: DType) -> None:
    for top_k in (1, 16, 40):
        chosen_case(np.random.default_rng(top_k), dtype, *lengths, top_k, page_tokens=16).check()


def test_nan_scores_lose_to_all_in_the_kernel_too() -> None:
    case = select_case(np.random.default_rng(2), FP32, [1], [30], top_k=20)
    case.arrays["c"][case.arrays["t"][0, 0]] = np.nan
    case.check()


def test_host_threads_change_no_bit() -> None:
    for make, mnemonic in ((select_case, "select_keys"), (chosen_case, "latent_attention")):
        found = []
        for threads in (1, 2):
            set_host_threads(threads)
            sizes: dict[str, Any] = {"heads": 64, "dim": 64} if make is select_case else {"heads": 16}
            case = make(np.random.default_rng(5), FP32, [90, 1], [150, 200], top_k=50, **sizes)
            if make is select_case:
                case.arrays["x"] = np.random.default_rng(6).standard_normal(case.arrays["x"].shape, np.float32)
            KERNELS[mnemonic](case.instruction, case.memory(case.arrays))()
            found.append(case.arrays["o"])
        np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("row", [[0, 1, 1, 2], [3, 1, 4, 5], [-1, 0, 1, 2], [0, 1, 2, 9]])
def test_positions_that_do_not_ascend_within_the_sequence_are_refused(row: list[int]) -> None:
    case = chosen_case(np.random.default_rng(4), FP32, [1, 2], [3, 10], 4)
    case.arrays["i"][1] = row
    with pytest.raises(ProgramError, match="query 0 of a sequence sees 9 tokens.*must ascend from 0 to 8"):
        KERNELS["latent_attention"](case.instruction, case.memory(case.arrays))()


def attention(q_lens: tuple[int, ...], kv_lens: tuple[int, ...], top_k: int) -> Work:
    shape = LatentShape(q_lens, kv_lens, **V3, top_k=top_k)
    pairs = list(zip(q_lens, kv_lens, strict=True))
    read = 2 * (128 * 256 * 512 + sum(shape.rows(*pair) for pair in pairs) * 576)
    ops = sum(shape.taken_ops(*pair) for pair in pairs)
    return Work(Unit.TENSOR, ops, read, 2 * sum(q_lens) * 128 * 128, BF16, shape)


def choice(q_lens: tuple[int, ...], kv_lens: tuple[int, ...]) -> Work:
    shape = IndexShape(q_lens, kv_lens, 64, 128, 2048)
    read = sum(2 * queries * 64 * 128 + 2 * length * 128 for queries, _, length in shape.scored)
    return Work(Unit.TENSOR, 1, read, 4 * sum(q_lens) * 2048, BF16, shape)


def test_decode_over_chosen_tokens_takes_the_same_time_at_any_length() -> None:
    card = load_card("h100-sxm")
    short, long = (demand(attention((1,) * 32, (length,) * 32, 2048), card) for length in (4096, 131072))
    assert short == long
    assert dict(long.amounts)["hbm"] == 2 * (128 * 256 * 512 + 32 * 2048 * 576) + 2 * 32 * 128 * 128
    dense = demand(attention((1,) * 32, (131072,) * 32, 0), card)
    assert long.alone_ps < dense.alone_ps / 20


def test_sequences_no_longer_than_the_budget_take_the_time_of_dense_attention() -> None:
    card = load_card("h100-sxm")
    lengths = (512, 1, 1), (2048, 2048, 100)
    assert demand(attention(*lengths, 2048), card) == demand(attention(*lengths, 0), card)
    assert demand(choice(*lengths), card).alone_ps <= 10**12 * 4 * 514 * 2048 // card.hbm.attainable_bytes_per_s + 1


def test_choosing_reads_every_index_key_and_grows_with_length() -> None:
    card = load_card("h100-sxm")
    found = demand(choice((1,) * 32, (131072,) * 32), card)
    read = 32 * (2 * 64 * 128 + 2 * 131072 * 128)
    # the scores of 4,194,272 pairs, 16.8 MB, stay in L2
    assert dict(found.amounts)["hbm"] == read + 4 * 32 * 2048
    times = [demand(choice((1,) * 8, (length,) * 8), card).alone_ps for length in range(1000, 30000, 997)]
    assert times == sorted(times)
    times = [demand(attention((n,), (8192,), 2048), card).alone_ps for n in range(1, 4000, 331)]
    assert times == sorted(times)


def test_scores_that_l2_cannot_hold_make_a_trip_to_hbm() -> None:
    card = load_card("h100-sxm")
    found = demand(choice((4096,), (32768,)), card)
    pairs = 4096 * 32768 - 4096 * 4095 // 2
    read = 2 * 4096 * 64 * 128 + 2 * 32768 * 128
    assert dict(found.amounts)["hbm"] == read + 4 * 4096 * 2048 + 8 * pairs


def test_latents_that_l2_cannot_hold_are_gathered_again_by_each_query() -> None:
    card = load_card("h100-sxm")
    small, large = (attention((64,), (length,), 2048) for length in (8192, 131072))
    made = 2 * 64 * 128 * 512 * 2  # the absorbed queries and the sums of latents are 16.8 MB, in L2
    assert made < card.l2.capacity_bytes  # type: ignore[union-attr]
    assert dict(demand(small, card).amounts)["hbm"] == small.read_bytes + small.write_bytes
    assert large.read_bytes == 2 * (128 * 256 * 512 + 64 * 2048 * 576)
    assert dict(demand(large, card).amounts)["hbm"] == large.read_bytes + large.write_bytes
    wide = attention((128,), (131072,), 2048)
    again = 2 * 576 * (128 * 2048 - 131072)
    assert dict(demand(wide, card).amounts)["hbm"] == wide.read_bytes + wide.write_bytes + again
