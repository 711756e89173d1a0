"""Latent attention on a card: both orders give the meaning, and its time is that of the products it is made of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kernel_cases import FLOATS, latent_case

from siltwin.emulator.kernels.registry import KERNELS, set_host_threads
from siltwin.emulator.spec import load_card
from siltwin.emulator.units.demand import demand
from siltwin.isa.dtype import BF16, FP32, DType
from siltwin.isa.errors import ProgramError
from siltwin.isa.work import AttentionShape, LatentShape, MatmulShape, Unit, Work

# DeepSeek-V3: 128 heads of 128 + 64 over latents of 512, values of 128
V3: dict[str, int] = {"num_heads": 128, "nope_dim": 128, "rope_dim": 64, "v_dim": 128, "latent_dim": 512}


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize(
    ("q_lens", "kv_lens", "options"),
    [
        ([1], [300], {}),
        ([200], [200], {}),
        ([70, 1, 0, 2], [133, 40, 9, 2], {"page_tokens": 16}),
        ([65, 1], [65, 30], {"heads": 5, "dims": (16, 4, 20, 40)}),
        ([3, 1], [40, 7], {"cache_dtype": FP32}),
    ],
)
def test_kernel_equals_meaning(q_lens: list[int], kv_lens: list[int], options: dict[str, Any], dtype: DType) -> None:
    latent_case(np.random.default_rng(3), dtype, q_lens, kv_lens, **options).check()


def test_host_threads_change_no_bit() -> None:
    found = []
    for threads in (1, 2):
        set_host_threads(threads)
        case = latent_case(np.random.default_rng(5), FP32, [90, 1], [150, 200], heads=16, dims=(32, 16, 32, 64))
        KERNELS["latent_attention"](case.instruction, case.memory(case.arrays))()
        found.append(case.arrays["o"])
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize(
    ("name", "index", "value", "message"),
    [
        ("kl", 0, 2, "latent_attention: sequence 0 has q_len 5 and kv_len 2; 0 <= q_len <= kv_len must hold"),
        ("t", (1, 0), -1, r"tables\[1, 0\] is -1, must be 0 to"),
        ("ql", 1, 2, "q_lens add up to 7 new tokens, q has 6 rows"),
    ],
)
def test_lengths_and_pages_that_do_not_fit_are_refused(name: str, index: Any, value: int, message: str) -> None:
    case = latent_case(np.random.default_rng(10), FP32, [5, 1], [9, 6])
    case.arrays[name][index] = value
    with pytest.raises(ProgramError, match=message):
        KERNELS["latent_attention"](case.instruction, case.memory(case.arrays))()


def latent_work(q_lens: tuple[int, ...], kv_lens: tuple[int, ...]) -> Work:
    shape = LatentShape(q_lens, kv_lens, **V3)
    ops = sum(min(shape.ops(*pair)) for pair in zip(q_lens, kv_lens, strict=True))
    weights, rows = 128 * 256 * 512, sum(kv_lens) * 576
    return Work(Unit.TENSOR, ops, 2 * (weights + rows), 2 * sum(q_lens) * 128 * 128, BF16, shape)


def test_decode_reads_latents_once_and_is_faster_than_expanding() -> None:
    card = load_card("h100-sxm")
    found = demand(latent_work((1,) * 64, (4096,) * 64), card)
    amounts = dict(found.amounts)
    assert amounts["hbm"] == 2 * (128 * 256 * 512 + 64 * 4096 * 576) + 2 * 64 * 128 * 128
    expanded = AttentionShape((1,) * 64, (4096,) * 64, 128, 128, 192, 128)
    other = demand(Work(Unit.TENSOR, 0, 64 * 4096 * 128 * 320 * 2, 0, BF16, expanded), card)
    assert found.alone_ps < other.alone_ps / 5


def test_prefill_takes_the_time_of_its_two_steps() -> None:
    card = load_card("h100-sxm")
    found = demand(latent_work((4096,), (4096,)), card)
    product = demand(Work(Unit.TENSOR, 0, 0, 0, BF16, MatmulShape(4096, 128 * 256, 512)), card)
    attention = demand(Work(Unit.TENSOR, 0, 0, 0, BF16, AttentionShape((4096,), (4096,), 128, 128, 192, 128)), card)
    steps = product.alone_ps + attention.alone_ps
    assert steps * 0.98 <= found.alone_ps <= steps * 1.2
    # keys of 192 and values of 128 of 4,096 tokens are more than the L2 holds, and so make a trip to HBM and back
    made = 2 * 4096 * 128 * 320
    assert dict(found.amounts)["hbm"] == 2 * made + 2 * (128 * 256 * 512 + 4096 * 576) + 2 * 4096 * 128 * 128


def test_more_tokens_never_take_less_time() -> None:
    card = load_card("h100-sxm")
    times = [demand(latent_work((1,) * 8, (length,) * 8), card).alone_ps for length in range(100, 3000, 97)]
    assert times == sorted(times)
    assert not demand(latent_work((0,), (0,)), card).alone_ps > 30_000_000


@pytest.mark.parametrize("lengths", [((1, 1), (5,)), ((6,), (5,))])
def test_lengths_that_do_not_pair_are_refused(lengths: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    work = Work(Unit.TENSOR, 0, 0, 0, BF16, LatentShape(*lengths, **V3))
    with pytest.raises(ProgramError, match="latent attention over"):
        demand(work, load_card("h100-sxm"))
