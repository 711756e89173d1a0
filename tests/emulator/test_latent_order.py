"""Latent attention in a chosen order: kernels give the meaning in pieces too, and cards charge what they make."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from kernel_cases import Case, latent_case, partial_latent

from siltwin.emulator.spec import load_card
from siltwin.emulator.units.demand import demand
from siltwin.isa.dtype import BF16, FP32, DType
from siltwin.isa.work import LatentShape, Unit, Work

K3: dict[str, int] = {"num_heads": 12, "nope_dim": 128, "rope_dim": 64, "v_dim": 128, "latent_dim": 512}


def ordered(case: Case, order: str, piece: int) -> Case:
    return replace(case, instruction=replace(case.instruction, order=order, piece_tokens=piece))


@pytest.mark.parametrize("dtype", [FP32, BF16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("piece", [0, 1, 7, 40])
@pytest.mark.parametrize("order", ["absorbed", "expanded"])
def test_either_order_gives_the_meaning_whole_and_in_pieces(order: str, piece: int, dtype: DType) -> None:
    case = latent_case(np.random.default_rng(3), dtype, [70, 1, 0, 2], [133, 40, 9, 2], page_tokens=16)
    ordered(case, order, piece).check()


@pytest.mark.parametrize("piece", [0, 1, 5])
@pytest.mark.parametrize("order", ["absorbed", "expanded"])
@pytest.mark.parametrize(("m", "n"), [(5, 12)])
def test_parts_over_a_share_are_the_same_too(m: int, n: int, order: str, piece: int) -> None:
    ordered(partial_latent(np.random.default_rng(4), FP32, m, n), order, piece).check()


def asked(order: str, piece: int, lengths: tuple[int, int], card: str = "h100-sxm") -> dict[str, int]:
    shape = LatentShape(*((length,) for length in lengths), **K3, order=order, piece_tokens=piece)  # type: ignore[arg-type]
    found = demand(Work(Unit.TENSOR, 0, 0, 0, BF16, shape), load_card(card))
    return dict(found.amounts) | {"ps": found.alone_ps}


def test_what_is_expanded_goes_to_hbm_and_back_unless_a_piece_fits_the_l2() -> None:
    """4,096 new of 65,536 tokens: 12 heads x 320 x 2 bytes a token, and parts of 12 x 129 x 4 bytes a new one."""
    whole, pieces, small = (asked("expanded", piece, (4096, 65_536)) for piece in (0, 16_384, 2048))
    made, part = 65_536 * 12 * 320 * 2, 4096 * 12 * 129 * 4
    assert whole["hbm"] == 2 * made
    assert pieces["hbm"] == 2 * (made + 3 * part)
    # 2,048 tokens are 15.7 MB, and with the parts' 25.4 MB less than the 50 MB of L2
    assert "hbm" not in small
    # each of 32 pieces launches its kernels and starts its 384 tiles anew
    assert whole["ps"] < small["ps"] < whole["ps"] * 1.4


@pytest.mark.parametrize("lengths", [(4096, 65_536), (100, 3000), (1, 9000)])
def test_pieces_take_the_time_of_the_whole_and_of_their_merges(lengths: tuple[int, int]) -> None:
    whole, pieces = (asked("expanded", piece, lengths) for piece in (0, 2999))
    assert whole["tensor"] <= pieces["tensor"] * 1.01
    assert whole["ps"] * 0.9 <= pieces["ps"] <= whole["ps"] * 1.5


def test_a_decode_step_is_far_slower_expanded() -> None:
    """Each cached token is made anew: 512 x 256 products a head, beside the 1,088 that the absorbed order takes."""
    expanded, absorbed = (asked(order, 0, (1, 131_072)) for order in ("expanded", "absorbed"))
    assert expanded["ps"] > 5 * absorbed["ps"]
