"""Expert layers by hand and against torch: who is chosen, what counts, where rows go, and what each step asks for."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from siltwin.isa.binary import decode_program, encode_program
from siltwin.isa.check import check_program
from siltwin.isa.errors import ProgramError
from siltwin.isa.meaning import run_program
from siltwin.isa.program import Binding, Program
from siltwin.isa.text import assemble, disassemble
from siltwin.isa.work import GroupedShape, MoveShape, VectorShape

ROUTE = (
    "route ids=%i weights=%w counts=%c logits=%l bias={bias} extent=q_lens parts={parts} scoring={scoring} "
    "groups={groups} top_groups={top_groups} group_best={best} renormalise={renormalise} eps={eps} scale={scale}"
)
PLAIN = {
    "bias": "-",
    "parts": 1,
    "scoring": "softmax",
    "groups": 1,
    "top_groups": 1,
    "best": 1,
    "renormalise": "no",
    "eps": 0.0,
    "scale": 1.0,
}


def route(bench: Any, logits: Any, top: int, bias: Any = None, **rules: Any) -> dict[str, np.ndarray]:
    logits = np.asarray(logits, np.float32)
    tokens, experts = logits.shape
    rules = PLAIN | rules | ({} if bias is None else {"bias": "%b"})
    out: dict[str, np.ndarray] = bench.run(
        ROUTE.format(**rules),
        {"l": logits, **({} if bias is None else {"b": bias})},
        i=f"int32[{tokens}, {top}]",
        w=f"fp32[{tokens}, {top}]",
        c=f"int32[{rules['parts'] * experts}]",
        l=f"fp32[{tokens}, {experts}]",
        b=f"fp32[{experts}]",
    )
    return out


def test_softmax_then_top_differs_from_top_then_softmax(bench: Any) -> None:
    logits = [[0.0, 2.0, 1.0, 2.0]]
    whole = np.exp([2.0, 2.0]) / np.exp(logits[0]).sum()
    before, after = (route(bench, logits, 2, scoring=s) for s in ("softmax", "selected_softmax"))
    assert before["i"].tolist() == after["i"].tolist() == [[1, 3]], "the lower index wins a tie"
    np.testing.assert_allclose(before["w"][0], whole, rtol=1e-6)
    np.testing.assert_allclose(after["w"][0], [0.5, 0.5], rtol=1e-6)
    again = route(bench, logits, 2, renormalise="yes", scale=2.5)
    np.testing.assert_allclose(again["w"][0], [1.25, 1.25], rtol=1e-6)


def test_the_bias_chooses_and_never_weighs(bench: Any) -> None:
    logits = [[0.0, 1.0, -1.0, 3.0]]
    score = 1 / (1 + np.exp(-np.array(logits[0])))
    out = route(bench, logits, 2, bias=[0, 0, 5, -5], scoring="sigmoid")
    assert out["i"].tolist() == [[2, 1]]
    np.testing.assert_allclose(out["w"][0], [score[2], score[1]], rtol=1e-6)


def test_groups_are_ranked_by_the_sum_of_their_best_two(bench: Any) -> None:
    """Group 0 has the single best expert, group 1 the best pair."""
    logits = [[4.0, -9.0, -9.0, 2.0, 2.0, -9.0]]
    pair = {"scoring": "sigmoid", "groups": 2, "top_groups": 1}
    assert route(bench, logits, 2, best=2, **pair)["i"].tolist() == [[3, 4]]
    assert route(bench, logits, 2, best=1, **pair)["i"].tolist() == [[0, 1]]


def test_a_masked_group_loses_even_to_negative_scores(bench: Any) -> None:
    """All biased scores are below 0: with zeros for masked experts, group 1 would be chosen."""
    out = route(bench, [[0.0, 0.0, -5.0, -5.0]], 2, bias=[-1] * 4, scoring="sigmoid", groups=2, top_groups=1, best=2)
    assert out["i"].tolist() == [[0, 1]]


def test_routing_is_torchs(bench: Any, torch: Any) -> None:
    logits = np.random.default_rng(2).normal(size=(50, 16)).astype(np.float32)
    out = route(bench, logits, 4, renormalise="yes")
    weights, ids = torch.topk(torch.softmax(torch.from_numpy(logits), -1), 4)
    assert out["i"].tolist() == ids.tolist()
    np.testing.assert_allclose(out["w"], (weights / weights.sum(-1, keepdim=True)).numpy(), rtol=1e-6)
    assert out["c"].tolist() == np.bincount(ids.numpy().ravel(), minlength=16).tolist()


def test_counts_are_kept_by_part(bench: Any) -> None:
    """Tokens 0 and 2 are of part 0, token 1 of part 1."""
    out = route(bench, [[9, 0, 0], [0, 9, 0], [0, 0, 9]], 1, parts=2)
    assert out["c"].tolist() == [1, 0, 1, 0, 1, 0]


def test_a_nan_loses_to_every_number(bench: Any) -> None:
    out = route(bench, [[np.nan, -30.0, 1.0]], 2, scoring="selected_softmax")
    assert out["i"].tolist() == [[2, 1]]


BUFFERS = {
    "x": "fp32[3, 2]",
    "i": "int32[3, 2]",
    "s": "int32[3, 2]",
    "d": "fp32[6, 2]",
    "w": "fp32[3, 2]",
    "o": "fp32[3, 2]",
}
PERMUTE = "permute dst=%d slots=%s x=%x ids=%i extent=q_lens first={first} experts={experts} part={part} parts={parts}"


def permute(bench: Any, ids: Any, **rules: int) -> dict[str, np.ndarray]:
    rules = {"first": 0, "experts": 3, "part": 0, "parts": 1} | rules
    types = {name: BUFFERS[name] for name in "xisd"}
    values = {"x": [[1, 10], [2, 20], [3, 30]], "i": ids, "d": np.full((6, 2), -7)}
    out: dict[str, np.ndarray] = bench.run(PERMUTE.format(**rules), values, {"q_lens": (0,) * 3}, **types)
    return out


IDS = [[2, 0], [0, 1], [2, 1]]


def test_rows_go_by_expert_and_keep_the_order_of_their_tokens(bench: Any) -> None:
    out = permute(bench, IDS)
    assert out["d"][:, 0].tolist() == [1, 2, 2, 3, 1, 3]
    assert out["s"].tolist() == [[4, 0], [1, 2], [5, 3]]


def test_only_the_experts_and_the_part_of_this_card_count(bench: Any) -> None:
    out = permute(bench, IDS, first=1, experts=2)
    assert out["d"][:, 0].tolist() == [2, 3, 1, 3, -7, -7]
    assert out["s"].tolist() == [[2, -1], [-1, 0], [3, 1]]
    odd = permute(bench, IDS, part=1, parts=2)
    assert odd["d"][:, 0].tolist() == [2, 2, -7, -7, -7, -7]
    assert odd["s"].tolist() == [[-1, -1], [0, 1], [-1, -1]]


def test_grouped_products_use_each_expert_for_its_rows(bench: Any) -> None:
    out = bench.run(
        "grouped_matmul dst=%d a=%a w=%w bias=%b counts=%c extent=q_lens at=1",
        {"a": [[1], [2], [3], [4]], "w": [[[10]], [[100]], [[1000]]], "b": [[1], [2], [3]], "c": [9, 1, 0, 2, 9]},
        {"q_lens": (9, 1, 0, 2, 9)},
        d="fp32[4, 1]",
        a="fp32[4, 1]",
        w="fp32[3, 1, 1]",
        b="fp32[3, 1]",
        c="int32[5]",
    )
    assert out["d"].ravel().tolist() == [11, 2003, 3003, 0]


def test_combine_sums_what_is_here_and_skips_what_is_elsewhere(bench: Any) -> None:
    out = bench.run(
        "combine dst=%o x=%d slots=%s weights=%w extent=q_lens at=0 experts=3",
        {"d": [[1, 1], [2, 2], [4, 4]], "s": [[0, 2], [-1, 1], [-1, -1]], "w": [[0.5, 2], [9, 3], [1, 1]]},
        {"q_lens": (1, 1, 1)},
        d="fp32[3, 2]",
        s="int32[3, 2]",
        w="fp32[3, 2]",
        o="fp32[3, 2]",
    )
    assert out["o"][:, 0].tolist() == [8.5, 6, 0]


def test_work_counts_the_rows_and_only_the_experts_that_have_some(bench: Any) -> None:
    types = {"d": "bf16[n, 8]", "a": "bf16[n, 4]", "w": "bf16[3, 8, 4]", "c": "int32[5]"}
    line = "grouped_matmul dst=%d a=%a w=%w bias=- counts=%c extent=q_lens at=1"
    work = bench.work(line, extents={"n": (20,), "q_lens": (7, 5, 0, 2, 7)}, **types)
    assert (work.ops, work.shape) == (2 * 7 * 8 * 4, GroupedShape((5, 0, 2), 8, 4))
    assert (work.read_bytes, work.write_bytes) == (7 * 4 * 2 + 2 * 8 * 4 * 2, 7 * 8 * 2)
    with pytest.raises(ProgramError, match="counts 21 rows, and there are 20"):
        bench.work(line, extents={"n": (20,), "q_lens": (7, 5, 9, 7, 7)}, **types)
    with pytest.raises(ProgramError, match="has 3 entries, not 1 . 3"):
        bench.work(line, extents={"n": (20,), "q_lens": (7, 5, 9)}, **types)


def test_work_of_the_moves_and_gates_follows_the_rows(bench: Any) -> None:
    extents = {"t": (6,), "n": (20,), "q_lens": (1, 2, 3, 4, 5, 6)}
    types = {"d": "bf16[n, 4]", "s": "int32[t, 3]", "x": "bf16[t, 4]", "i": "int32[t, 3]"}
    line = "permute dst=%d slots=%s x=%x ids=%i extent=q_lens first=1 experts=2 part=1 parts=2"
    work = bench.work(line, extents=extents, **types)  # part 1 of three experts: entries 3, 4, 5; experts 1 and 2
    assert work.shape == MoveShape(11, 8)
    assert (work.read_bytes, work.write_bytes) == (88 + 72, 88 + 72)
    line = "grouped_gated dst=%d x=%x counts=%c extent=q_lens at=4 experts=2 activation=silu"
    gated = bench.work(line, extents=extents, d="bf16[n, 4]", x="bf16[n, 8]", c="int32[6]")
    assert (gated.ops, gated.read_bytes, gated.write_bytes) == (6 * 44, 176, 88)
    assert gated.shape == VectorShape(11, 4)
    line = "combine dst=%d x=%x slots=%s weights=%w extent=q_lens at=4 experts=2"
    whole = bench.work(line, extents=extents, d="bf16[t, 4]", x="bf16[n, 4]", s="int32[t, 3]", w="fp32[t, 3]")
    assert (whole.ops, whole.read_bytes, whole.write_bytes) == (88, 88 + 72 + 72, 48)


LAYERS = """program layers
queue q
extent t
extent first[]
extent second[]
buffer l0 : fp32[2, 3] activation
buffer l1 : fp32[2, 3] activation
buffer d : fp32[t, 2] activation
buffer x : fp32[2, 2] activation
block layer
  param l : fp32[2, 3]
  param d : fp32[t, 2]
  param x : fp32[2, 2]
  local i : int32[2, 1]
  local w : fp32[2, 1]
  local c : int32[3]
  local s : int32[2, 1]
  extent used[]
  q | route ids=%i weights=%w counts=%c logits=%l bias=- extent=used parts=1 scoring=softmax groups=1 top_groups=1 \
group_best=1 renormalise=no eps=0.0 scale=1.0
  q | permute dst=%d slots=%s x=%x ids=%i extent=used first=0 experts=3 part=0 parts=1
end
call layer l0 d x | first
call layer l1 d x | second
"""


def layers() -> Program:
    return assemble(LAYERS)


def test_calls_bind_extents_and_come_back_from_bytes_and_text() -> None:
    program = layers()
    assert program.blocks[0].extents == ("used",) and program.calls[1].extents == ("second",)
    assert decode_program(encode_program(program)) == program
    assert assemble(disassemble(program)) == program
    assert program.written_extents == ("first", "second")


def test_each_call_writes_its_own_extent() -> None:
    arrays = {
        "l0": np.array([[1, 0, 0], [0, 0, 1]], np.float32),
        "l1": np.array([[0, 1, 0], [0, 1, 0]], np.float32),
        "d": np.zeros((2, 2), np.float32),
        "x": np.ones((2, 2), np.float32),
    }
    assert run_program(layers(), arrays, Binding({"t": (2,)}, {})) == {"first": (1, 0, 1), "second": (0, 2, 0)}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("| second", "| first", "it writes extent 'first', which is written before"),
        ("| second", "| t", "'t' is no vector extent of the program; declared: first, second"),
        ("| second", "| second first", "2 extents for 1 extent parameters"),
        (" | second", "", "0 extents for 1 extent parameters"),
        ("| second", "|", "write `call BLOCK ARGUMENT... . EXTENT...`"),
        ("  extent used[]", "  extent used", "must be a vector extent; write `extent NAME..`"),
        ("  extent used[]", "  extent first[]", "extent 'first' is one of the program's already"),
        ("  extent used[]", "  extent used[]\n  extent used[]", "'used' is declared twice"),
        ("  extent used[]\n", "", "extent.* 'used' is not declared"),
    ],
)
def test_a_broken_extent_is_refused(old: str, new: str, message: str) -> None:
    assert old in LAYERS
    with pytest.raises(ProgramError, match=message):
        assemble(LAYERS.replace(old, new))


def test_an_extent_is_not_read_before_it_is_written() -> None:
    program = layers()
    body = program.blocks[0].body
    turned = replace(program, blocks=(replace(program.blocks[0], body=body[::-1]),))
    reads_first = replace(turned.blocks[0], locals=(), params=(*turned.blocks[0].params, *turned.blocks[0].locals))
    with pytest.raises(ProgramError):
        check_program(replace(turned, blocks=(reads_first,)))


def test_squares_of_two_cards_make_the_norm_of_both(bench: Any) -> None:
    x = np.random.default_rng(0).normal(size=(2, 6)).astype(np.float32)
    line = "sum_squares dst=%s x=%x\nq | rms_scale dst=%d x=%x squares=%s weight=%w count=6 eps=1e-06 plus_one=no"
    types = {"s": "fp32[2, 1]", "x": "fp32[2, 6]", "d": "fp32[2, 6]", "w": "fp32[6]"}
    out = bench.run(f"q | {line}", {"x": x, "w": np.arange(1, 7)}, **types)
    want = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * np.arange(1, 7)
    np.testing.assert_allclose(out["d"], want, rtol=1e-6)


def test_a_gate_of_one_column_scales_the_row(bench: Any) -> None:
    types = {"d": "fp32[2, 2]", "x": "fp32[2, 2]", "g": "fp32[2, 1]"}
    out = bench.run("sigmoid_gate dst=%d x=%x gate=%g", {"x": [[2, 4], [2, 4]], "g": [[0], [100]]}, **types)
    assert out["d"].tolist() == [[1, 2], [2, 4]]


def test_the_clamped_gate_of_gpt_oss(bench: Any) -> None:
    """gate 9 is cut to 7, up -9 to -7 and then + 1."""
    out = bench.run("gated dst=%d x=%x activation=swiglu_oai", {"x": [[9, -9, -9, 9]]}, d="fp32[1, 2]", x="fp32[1, 4]")
    sigmoid = 1 / (1 + np.exp(-1.702 * np.array([7, -9.0])))
    np.testing.assert_allclose(out["d"][0], np.array([7, -9]) * sigmoid * np.array([-6, 8]), rtol=1e-5)
