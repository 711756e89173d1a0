"""Instructions that scale rows, by hand: what they compute, and what they ask of a card."""

from typing import Any

import numpy as np

from siltwin.isa.dtype import BF16
from siltwin.isa.work import Unit, VectorShape, Work


def test_a_norm_without_weight_brings_every_head_to_unit_mean_square(bench: Any) -> None:
    out = bench.run("rms_unit dst=%d x=%x run=2 eps=0.0", {"x": [[3, 4, 0, 2]]}, d="fp32[1, 4]", x="fp32[1, 4]")
    root = np.sqrt([12.5, 12.5, 2, 2])
    np.testing.assert_allclose(out["d"], [np.array([3, 4, 0, 2]) / root], rtol=1e-6)


def test_queries_are_scaled_by_the_steps_that_their_position_has_passed(bench: Any) -> None:
    """Steps of 4: positions 0 to 2 have passed none, 3 to 6 one, 7 two; each adds to 1 half the log of steps + 1."""
    positions = [0, 2, 3, 6, 7]
    types = {"x": "fp32[5, 2]", "p": "int32[5]"}
    values = {"x": np.ones((5, 2)), "p": positions}
    out = bench.run("position_scale x=%x positions=%p step=4.0 strength=0.5", values, **types)
    want = 1 + 0.5 * np.log([1, 1, 2, 2, 3])
    np.testing.assert_allclose(out["x"], np.repeat(want[:, None], 2, axis=1), rtol=1e-6)


def test_a_soft_cap_bends_what_comes_near_it(bench: Any) -> None:
    out = bench.run("soft_cap dst=%d x=%x cap=2.0", {"x": [[0, 2, -1000]]}, d="fp32[1, 3]", x="fp32[1, 3]")
    np.testing.assert_allclose(out["d"], [[0, 2 * np.tanh(1.0), -2]], rtol=1e-6)


def test_a_routed_row_is_scaled_by_the_weight_of_its_choice(bench: Any) -> None:
    out = bench.run(
        "scale_routed x=%x slots=%s weights=%w extent=q_lens at=0 experts=2",
        {"x": [[1, 2], [3, 4], [5, 6]], "s": [[1, -1], [-1, 0]], "w": [[10, 7], [7, 0.5]]},
        {"q_lens": (1, 1)},
        x="fp32[3, 2]",
        s="int32[2, 2]",
        w="fp32[2, 2]",
    )
    assert out["x"].tolist() == [[0.5, 1], [30, 40], [5, 6]]


def test_experts_chosen_by_logits_count_their_sigmoid_even_where_it_is_level(bench: Any) -> None:
    """At logits of 30 and 40 the sigmoid is 1 in fp32 for both: the larger logit is chosen none the less."""
    out = bench.run(
        "route ids=%i weights=%w counts=%c logits=%l bias=- extent=q_lens parts=1 scoring=selected_sigmoid groups=1 "
        "top_groups=1 group_best=1 renormalise=no eps=0.0 scale=1.0",
        {"l": [[30, 40, 0], [-1, -2, -3]]},
        i="int32[2, 1]",
        w="fp32[2, 1]",
        c="int32[3]",
        l="fp32[2, 3]",
    )
    assert out["i"].tolist() == [[1], [0]]
    np.testing.assert_allclose(out["w"], [[1], [1 / (1 + np.e)]], rtol=1e-6)


def test_choices_without_weights_are_summed(bench: Any) -> None:
    out = bench.run(
        "combine dst=%d x=%x slots=%s weights=- extent=q_lens at=0 experts=2",
        {"x": [[1, 2], [3, 4]], "s": [[1, 0], [-1, 0]]},
        {"q_lens": (1, 1)},
        d="fp32[2, 2]",
        x="fp32[2, 2]",
        s="int32[2, 2]",
    )
    assert out["d"].tolist() == [[4, 6], [1, 2]]


def test_only_the_rows_of_own_experts_are_read_and_written(bench: Any) -> None:
    """Three rows of eight bf16 both ways, beside twelve slots and weights of four bytes."""
    line = "scale_routed x=%x slots=%s weights=%w extent=q_lens at=1 experts=2"
    types = {"x": "bf16[12, 8]", "s": "int32[4, 3]", "w": "fp32[4, 3]"}
    assert bench.work(line, extents={"q_lens": (9, 1, 2)}, **types) == Work(
        Unit.VECTOR, ops=24, read_bytes=48 + 96, write_bytes=48, dtype=BF16, shape=VectorShape(3, 8)
    )
