"""Moves and whole programs: rows land where their index says, and a program runs in the order of its text."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siltwin.isa.errors import ProgramError
from siltwin.isa.instruction import split_even
from siltwin.isa.meaning import run_program
from siltwin.isa.program import Binding


def test_copy_gather_and_host_transfers_move_values(bench: Any) -> None:
    x = np.arange(12, dtype=np.float32).reshape(4, 3) / 7
    out = bench.run("copy dst=%d src=%s", {"s": x}, d="bf16[4, 3]", s="fp32[4, 3]")
    assert (out["d"] == x.astype(ml_dtypes.bfloat16).astype(np.float32)).all()
    types = {"d": "fp32[3, 3]", "s": "fp32[4, 3]", "i": "int32[3]"}
    out = bench.run("gather dst=%d src=%s index=%i", {"s": x, "i": [3, 0, 3]}, **types)
    assert (out["d"] == x[[3, 0, 3]]).all()
    out = bench.run("copy dst=%d src=%s", {"s": [2**62 + 1, -5]}, d="int64[2]", s="int64[2]")
    assert out["d"].tolist() == [2**62 + 1, -5]
    out = bench.run("host_load dst=%d src=%h", {"h": [7, 8]}, d="int32[2]", h="int32[2] host")
    assert out["d"].tolist() == [7, 8]
    out = bench.run("host_store dst=%h src=%d", {"d": [7, 8]}, d="int32[2]", h="int32[2] host")
    assert out["h"].tolist() == [7, 8]


def test_scatter_writes_rows_into_pages_and_skips_negative_indices(bench: Any) -> None:
    out = bench.run(
        "scatter dst=%d src=%s index=%i",
        {"d": np.full((2, 3, 2), 9), "s": [[1, 2], [3, 4], [5, 6]], "i": [4, -1, 0]},
        d="bf16[2, 3, 2]",
        s="fp32[3, 2]",
        i="int32[3]",
    )
    assert out["d"].tolist() == [[[5, 6], [9, 9], [9, 9]], [[9, 9], [1, 2], [9, 9]]]


def test_scatter_into_columns_leaves_the_others_alone(bench: Any) -> None:
    out = bench.run(
        "scatter dst=%d[1:3] src=%s index=%i",
        {"s": [[1, 2]], "i": [1]},
        d="fp32[1, 2, 4]",
        s="fp32[1, 2]",
        i="int32[1]",
    )
    assert out["d"].tolist() == [[[0, 0, 0, 0], [0, 1, 2, 0]]]


LOAD = "host_load_pages dst=%d src=%h tables=%p q_lens=%l kv_lens=%k q_extent=q_lens kv_extent=kv_lens"
PAGED = {"d": "fp32[4, 2, 1]", "h": "fp32[4, 2, 1] host", "p": "int32[2, 3]", "l": "int32[2]", "k": "int32[2]"}
TABLES = [[3, 1, 9], [0, 2, 7]]


def load_pages(bench: Any, q_lens: list[int], kv_lens: list[int], limits: str, tables: Any = TABLES) -> list[int]:
    arrays = {"h": np.arange(8).reshape(4, 2, 1), "d": np.full((4, 2, 1), 99), "p": tables, "l": q_lens, "k": kv_lens}
    extents = {"q_lens": tuple(q_lens), "kv_lens": tuple(kv_lens)}
    found: list[int] = bench.run(f"{LOAD} {limits}", arrays, extents, **PAGED)["d"].astype(int).ravel().tolist()
    return found


def test_pages_filled_before_the_step_come_from_the_host_and_no_others(bench: Any) -> None:
    whole = "window=0 chunk=0"
    assert load_pages(bench, [1, 1], [4, 2], whole) == [0, 1, 2, 3, 99, 99, 6, 7]  # 3 and 1 tokens before
    assert load_pages(bench, [2, 0], [4, 4], whole) == [99, 99, 99, 99, 99, 99, 6, 7]  # the second has nothing new
    assert load_pages(bench, [4, 2], [4, 2], whole) == [99] * 8
    assert load_pages(bench, [1, 1], [4, 4], "window=2 chunk=0") == [99, 99, 2, 3, 4, 5, 99, 99]  # tokens 2 and 3
    assert load_pages(bench, [1, 2], [4, 4], "window=0 chunk=2") == [99, 99, 2, 3, 99, 99, 99, 99]  # 2 begins a chunk


def test_a_page_that_is_not_there_cannot_come_from_the_host(bench: Any) -> None:
    with pytest.raises(ProgramError, match="host_load_pages: page 9 is outside 0 to 3"):
        load_pages(bench, [1, 1], [6, 2], "window=0 chunk=0")


def test_new_rows_go_back_to_their_places_in_host_memory(bench: Any) -> None:
    out = bench.run(
        "host_store_rows dst=%h src=%s index=%i",
        {"h": np.full((2, 2, 1), 9), "s": [[[0], [1]], [[2], [3]]], "i": [3, -1, 0]},
        h="bf16[2, 2, 1] host",
        s="bf16[2, 2, 1]",
        i="int32[3]",
    )
    assert out["h"].ravel().tolist() == [0, 9, 9, 3]
    with pytest.raises(ProgramError, match="host_store_rows: row 4 is outside 0 to 3"):
        bench.run(
            "host_store_rows dst=%h src=%s index=%i",
            {"i": [4]},
            h="bf16[2, 2, 1] host",
            s="bf16[2, 2, 1]",
            i="int32[1]",
        )


@pytest.mark.parametrize(
    ("instruction", "index", "message"),
    [
        ("gather dst=%s src=%d index=%i", [0, 6], "gather: row 6 is outside 0 to 5"),
        ("gather dst=%s src=%d index=%i", [-1, 0], "gather: row -1 is outside 0 to 5"),
        ("scatter dst=%d src=%s index=%i", [0, 6], "scatter: row 6 is outside 0 to 5"),
        ("scatter dst=%d src=%s index=%i", [2, 2], "scatter: an index repeats"),
    ],
)
def test_an_index_to_no_row_is_refused(bench: Any, instruction: str, index: list[int], message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        bench.run(instruction, {"i": index}, d="fp32[6, 2]", s="fp32[2, 2]", i="int32[2]")


def test_repeated_skips_are_no_repeat(bench: Any) -> None:
    out = bench.run(
        "scatter dst=%d src=%s index=%i", {"i": [-1, -1], "s": [[1], [1]]}, d="fp32[2, 1]", s="fp32[2, 1]", i="int32[2]"
    )
    assert out["d"].tolist() == [[0], [0]]


@settings(max_examples=40, deadline=None)
@given(vocabulary=st.integers(1, 20), shards=st.integers(1, 6), ids=st.lists(st.integers(0, 19), max_size=8))
def test_the_shards_of_a_vocabulary_sum_to_the_whole(bench: Any, vocabulary: int, shards: int, ids: list[int]) -> None:
    table = np.random.default_rng(11).normal(size=(vocabulary, 3)).astype(np.float32)
    tokens = np.array(ids, np.int64) % vocabulary
    total = np.zeros((len(ids), 3), np.float32)
    for first, size in split_even(vocabulary, shards):
        total += bench.run(
            f"embedding dst=%d table=%w ids=%i first={first}",
            {"w": table[first : first + size], "i": tokens, "d": np.full((len(ids), 3), np.nan)},
            d=f"fp32[{len(ids)}, 3]",
            w=f"fp32[{size}, 3]",
            i=f"int32[{len(ids)}]",
        )["d"]
    assert (total == table[tokens]).all()


PROGRAM = """q | scale dst=%d x=%x factor=2.0
q | halt
other | scale dst=%e x=%d factor=3.0 | wait q+1"""


def test_a_halt_ends_its_own_queue_for_the_rest_of_the_program(bench: Any) -> None:
    types = {"d": "fp32[2]", "e": "fp32[2]", "x": "fp32[2]"}
    program = bench.program(PROGRAM, **types)
    arrays = {name: np.ones(2, np.float32) for name in types}
    run_program(program, arrays, Binding({}, {}))
    assert (arrays["d"].tolist(), arrays["e"].tolist()) == ([2, 2], [6, 6])
    twice = type(program)(
        **{**{k: getattr(program, k) for k in program.__dataclass_fields__}, "calls": program.calls * 2}
    )
    arrays = {name: np.ones(2, np.float32) for name in types}
    run_program(twice, arrays, Binding({}, {}))
    assert (arrays["d"].tolist(), arrays["e"].tolist()) == ([2, 2], [6, 6]), "the second call scales nothing in q"


def test_arrays_that_do_not_fit_their_buffers_are_refused(bench: Any) -> None:
    program = bench.program("scale dst=%d x=%x factor=2.0", d="bf16[t, 2]", x="bf16[t, 2]")
    good = np.zeros((3, 2), np.uint16)
    binding = Binding({"t": (3,)}, {})
    run_program(program, {"d": good, "x": good.copy()}, binding)
    for wrong, message in (
        ({"x": good}, "buffer d has no array; given: x"),
        ({}, "buffer d has no array; given: none"),
        ({"d": good, "x": good[:2]}, r"x is bound to uint16 \(2, 2\), must be uint16 \(3, 2\)"),
        ({"d": good, "x": good.astype(np.float32)}, "x is bound to float32 .* the storage form of bf16"),
    ):
        with pytest.raises(ProgramError, match=message):
            run_program(program, wrong, binding)
    with pytest.raises(ProgramError, match="extent 't' is not bound"):
        run_program(program, {"d": good, "x": good}, Binding({}, {}))


@pytest.mark.parametrize("text", ["send x=%x group=g peer=1", "all_reduce x=%x group=g", "barrier group=g"])
def test_one_card_cannot_run_what_crosses_cards(bench: Any, text: str) -> None:
    with pytest.raises(ProgramError, match="crosses cards: its meaning is its expansion"):
        bench.run(text, {}, x="fp32[2]")
