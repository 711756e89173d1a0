"""Exchanges of rows between experts' cards by hand: what is counted, and how rows are sorted by expert and back."""

from typing import Any

import numpy as np
import pytest

from siltwin.isa.errors import ProgramError
from siltwin.isa.meaning import run_program
from siltwin.isa.program import Binding
from siltwin.isa.work import MoveShape, VectorShape

TALLY = "tally rows=%r counts=%c arriving=%a sizes=kv_lens sent=e0 received=e1 local=e2 members=3 experts=2"
TALLY_TYPES = {"r": "int32[2]", "c": "int32[5]", "a": "int32[6]"}
REGROUP = "regroup dst=%d x=%x arriving=%a local=q_lens members=3 experts=2 back={back}"
REGROUP_TYPES = {"d": "fp32[n, 2]", "x": "fp32[t, 2]", "a": "int32[6]"}
ARRIVING = [1, 2, 0, 1, 2, 0]  # member 0 sends 1 row for expert 0 and 2 for expert 1, member 1 one for 1, ...


def test_a_tally_sums_what_leaves_by_member_and_what_arrives_by_member_and_expert(bench: Any) -> None:
    """Members have 1, 2 and 2 of the five experts, for which 3, 4, 0, 2 and 5 rows leave."""
    program = bench.program(TALLY, **TALLY_TYPES)
    arrays = {
        "r": np.zeros(2, np.int32),
        "c": np.array([3, 4, 0, 2, 5], np.int32),
        "a": np.array(ARRIVING, np.int32),
    }
    written = run_program(program, arrays, Binding({"kv_lens": (1, 2, 2)}, {"g": 0}))
    assert written == {"e0": (3, 4, 7), "e1": (3, 1, 2), "e2": (3, 3)}
    assert arrays["r"].tolist() == [3, 3]
    work = bench.work(TALLY, extents={"kv_lens": (1, 2, 2)}, **TALLY_TYPES)
    assert (work.ops, work.read_bytes, work.write_bytes) == (5 + 6, 4 * (5 + 6), 4 * 2)
    assert work.shape == VectorShape(3, 2, 2)


@pytest.mark.parametrize("sizes", [(1, 2), (1, 2, 3), (-1, 3, 3)])
def test_sizes_that_do_not_share_the_experts_out_are_refused(bench: Any, sizes: tuple[int, ...]) -> None:
    with pytest.raises(ProgramError, match="must share 5 experts out over 3 members"):
        bench.work(TALLY, extents={"kv_lens": sizes}, **TALLY_TYPES)


def test_rows_are_sorted_by_expert_in_the_order_of_their_members_and_back(bench: Any) -> None:
    """By member the rows are a0 a1 a1 b1 c0 c0, of members a, b, c and experts 0, 1."""
    rows = np.arange(12, dtype=np.float32).reshape(6, 2)
    extents = {"n": (7,), "t": (6,), "q_lens": (3, 3)}
    kept = np.full((7, 2), -1)
    values = {"x": rows, "a": ARRIVING, "d": kept}
    out = bench.run(REGROUP.format(back="no"), values, extents, **REGROUP_TYPES)["d"]
    assert out[:6, 0].tolist() == [0, 8, 10, 2, 4, 6] and out[6].tolist() == [-1, -1]
    values["x"] = out[:6]
    back = bench.run(REGROUP.format(back="yes"), values, extents, **REGROUP_TYPES)["d"]
    assert back[:6].tolist() == rows.tolist() and back[6].tolist() == [-1, -1]


def test_sorting_moves_the_rows_that_came_and_no_more(bench: Any) -> None:
    extents = {"n": (9,), "t": (8,), "q_lens": (3, 3)}
    work = bench.work(REGROUP.format(back="no"), extents=extents, **REGROUP_TYPES)
    assert (work.read_bytes, work.write_bytes) == (6 * 8 + 4 * 6, 6 * 8)
    assert work.shape == MoveShape(6, 8)
    with pytest.raises(ProgramError, match="q_lens counts 9 rows, and there are 8"):
        bench.work(REGROUP.format(back="no"), extents=extents | {"q_lens": (4, 5)}, **REGROUP_TYPES)
    with pytest.raises(ProgramError, match="q_lens has 1 entries, must have 2"):
        bench.work(REGROUP.format(back="no"), extents=extents | {"q_lens": (4,)}, **REGROUP_TYPES)


def test_tokens_take_the_slots_of_an_expert_in_turn(bench: Any) -> None:
    """Expert 0 stands in slots 4, 1 and 3, expert 1 in slot 0; two parts, and the count begins at 1."""
    line = "choose_replica slots=%s counts=%c ids=%i table=%a extent=e0 parts=2 total=5 shift=1"
    types = {"s": "int32[t, 1]", "c": "int32[10]", "i": "int32[t, 1]", "a": "int32[2, 4]"}
    program = bench.program(line, **types)
    arrays = {
        "s": np.zeros((7, 1), np.int32),
        "c": np.zeros(10, np.int32),
        "i": np.array([[0], [0], [0], [1], [0], [0], [0]], np.int32),
        "a": np.array([[3, 4, 1, 3], [1, 0, 0, 0]], np.int32),
    }
    written = run_program(program, arrays, Binding({"t": (7,)}, {"g": 0}))
    assert arrays["s"][:, 0].tolist() == [1, 1, 3, 0, 4, 4, 1]  # turns 1 1 2 2 3 3 4
    assert written["e0"] == tuple(arrays["c"].tolist()) == (0, 2, 0, 1, 1, 1, 1, 0, 0, 1)
    work = bench.work(line, extents={"t": (7,)}, **types)
    assert (work.read_bytes, work.write_bytes) == (4 * (7 + 8), 4 * (7 + 10))


def test_every_cut_of_a_chosen_expert_gets_the_choice_and_its_weight(bench: Any) -> None:
    """Two experts in two cuts each: expert 0 is cuts 0 and 2, expert 1 cuts 1 and 3."""
    line = "copy_choices ids=%i weights=%w counts=%c chosen=%j shares=%v table=%a extent=e0"
    types = {"i": "int32[t, 4]", "w": "fp32[t, 4]", "c": "int32[4]", "j": "int32[t, 2]", "v": "fp32[t, 2]"}
    types["a"] = "int32[2, 2]"
    values = {"j": [[1, 0], [0, 0]], "v": [[0.5, 0.25], [2, 3]], "a": [[0, 2], [1, 3]]}
    out = bench.run(line, values, {"t": (2,)}, **types)
    assert out["i"].tolist() == [[1, 3, 0, 2], [0, 2, 0, 2]]
    assert out["w"].tolist() == [[0.5, 0.5, 0.25, 0.25], [2, 2, 3, 3]]
    assert out["c"].tolist() == [3, 1, 3, 1]
    work = bench.work(line, extents={"t": (2,)}, **types)
    assert (work.read_bytes, work.write_bytes) == (4 * (4 + 4 + 4), 4 * (8 + 8 + 4))
