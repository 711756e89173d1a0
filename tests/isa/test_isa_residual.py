"""Attention residuals and SiTU by hand, and SiTU against torch."""

import math
from typing import Any

import numpy as np
import pytest

from siltwin.isa.errors import ProgramError

MIX = "residual_mix dst=%d snapshots=%s x=%x weight=%w query=%q eps=0.0"


def test_shares_are_a_softmax_of_scores_and_the_raw_values_are_summed(bench: Any) -> None:
    """Values (3, 3), (8, -8) and (1, 1): over their root mean squares (1, 1), (1, -1), (1, 1); the query is (2, 1)."""
    out = bench.run(
        MIX,
        {"s": [[3, 3, 8, -8]], "x": [[1, 1]], "w": [2, 0.5], "q": [1, 2]},
        d="fp32[1, 2]",
        s="fp32[1, 4]",
        x="fp32[1, 2]",
        w="fp32[2]",
        q="fp32[2]",
    )
    shares = [math.exp(3), math.exp(1), math.exp(3)]
    total = sum(shares)
    first = (3 * shares[0] + 8 * shares[1] + shares[2]) / total
    second = (3 * shares[0] - 8 * shares[1] + shares[2]) / total
    assert np.allclose(out["d"], [[first, second]], rtol=1e-6)


def test_equal_values_mix_to_themselves_whatever_the_weights(bench: Any) -> None:
    values = {"s": [[5, -2, 5, -2, 5, -2]], "x": [[5, -2]], "w": [7, 9], "q": [-1, 4]}
    out = bench.run(MIX, values, d="fp32[1, 2]", s="fp32[1, 6]", x="fp32[1, 2]", w="fp32[2]", q="fp32[2]")
    assert np.allclose(out["d"], [[5, -2]], rtol=1e-6)


def test_the_work_of_a_mix_counts_every_value_once(bench: Any) -> None:
    """Two snapshots and x, 3 tokens of 4 elements in bf16: 3 x 12 elements in, 2 weights of 4, 3 x 4 out."""
    work = bench.work(MIX, d="bf16[3, 4]", s="bf16[3, 8]", x="bf16[3, 4]", w="bf16[4]", q="bf16[4]")
    assert (work.ops, work.read_bytes, work.write_bytes) == (6 * 36, 2 * (36 + 8), 2 * 12)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"s": "fp32[3, 7]"}, "must hold whole rows of"),
        ({"s": "fp32[2, 8]"}, "must hold whole rows of"),
        ({"w": "fp32[3]"}, r"weight is fp32\[3\], must be \[4\]"),
        ({"q": "fp32[8]"}, r"query is fp32\[8\], must be \[4\]"),
        ({"d": "fp32[3, 8]"}, "must be"),
    ],
)
def test_a_mix_of_shapes_that_do_not_fit_is_refused(bench: Any, changes: dict[str, str], message: str) -> None:
    kinds = {"d": "fp32[3, 4]", "s": "fp32[3, 8]", "x": "fp32[3, 4]", "w": "fp32[4]", "q": "fp32[4]"}
    with pytest.raises(ProgramError, match=message):
        bench.program(MIX, **(kinds | changes))


def test_situ_by_hand(bench: Any) -> None:
    """Far out both factors level off: 4 * 1 * 1 * 25 = 100; near 0 it is SwiGLU: 0.01 / 2 * 0.02."""
    out = bench.run(
        "situ_gated dst=%d x=%x beta=4.0 linear_beta=25.0",
        {"x": [[1000, 0.01, 1000, 0.02], [-1000, 4, 5, 25]]},
        d="fp32[2, 2]",
        x="fp32[2, 4]",
    )
    swiglu = 0.01 / (1 + math.exp(-0.01)) * 0.02
    level = 4 * math.tanh(1) / (1 + math.exp(-4)) * 25 * math.tanh(1)
    assert np.allclose(out["d"], [[100, swiglu], [0, level]], rtol=1e-5)


def test_situ_is_torchs(bench: Any, torch: Any) -> None:
    x = np.random.default_rng(3).normal(size=(5, 24)) * 6
    out = bench.run("situ_gated dst=%d x=%x beta=2.5 linear_beta=7.0", {"x": x}, d="fp32[5, 12]", x="fp32[5, 24]")
    gate, up = torch.from_numpy(x).chunk(2, dim=1)
    want = 2.5 * torch.tanh(gate / 2.5) * torch.sigmoid(gate) * 7 * torch.tanh(up / 7)
    assert np.allclose(out["d"], want.numpy(), rtol=2e-6, atol=1e-6)


def test_grouped_situ_takes_the_rows_that_the_counts_say(bench: Any) -> None:
    out = bench.run(
        "grouped_situ_gated dst=%d x=%x counts=%c extent=q_lens at=1 experts=2 beta=1.0 linear_beta=1.0",
        {"d": [[9], [9], [9]], "x": [[1, 1], [2, -1], [3, 3]], "c": [5, 1, 1]},
        {"q_lens": (5, 1, 1)},
        d="fp32[3, 1]",
        x="fp32[3, 2]",
        c="int32[3]",
    )
    want = [[math.tanh(g) / (1 + math.exp(-g)) * math.tanh(u)] for g, u in ((1, 1), (2, -1))]
    assert np.allclose(out["d"], [*want, [9]], rtol=1e-5)


def test_betas_must_be_above_zero(bench: Any) -> None:
    with pytest.raises(ProgramError, match="must be above 0"):
        bench.program("situ_gated dst=%d x=%x beta=0.0 linear_beta=1.0", d="fp32[2, 2]", x="fp32[2, 4]")
