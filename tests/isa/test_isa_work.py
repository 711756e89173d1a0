"""Work: operations and bytes worked out by hand, and attention's against a count of its mask."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siltwin.isa.dtype import BF16, FP32
from siltwin.isa.errors import ProgramError
from siltwin.isa.instruction import bytes_of
from siltwin.isa.operands import Role
from siltwin.isa.program import Binding, BoundShapes
from siltwin.isa.tensor import causal_mask
from siltwin.isa.work import (
    AttentionShape,
    CollectiveShape,
    MatmulShape,
    MoveShape,
    TransferShape,
    Unit,
    VectorShape,
    Work,
)


def test_a_matmul_counts_two_operations_a_product_and_one_a_bias(bench: Any) -> None:
    types = {"d": "bf16[t, 8]", "a": "bf16[t, 4]", "w": "fp8_e4m3[8, 4]", "b": "fp32[8]"}
    extents = {"t": (3,)}
    plain = bench.work("matmul dst=%d a=%a w=%w bias=-", extents=extents, **types)
    assert plain == Work(
        Unit.TENSOR,
        ops=2 * 3 * 8 * 4,
        read_bytes=3 * 4 * 2 + 8 * 4 * 1,
        write_bytes=3 * 8 * 2,
        dtype=BF16,
        shape=MatmulShape(3, 8, 4),
    )
    biased = bench.work("matmul dst=%d a=%a w=%w bias=%b", extents=extents, **types)
    assert (biased.ops, biased.read_bytes) == (192 + 3 * 8, 56 + 8 * 4)


def test_leading_dimensions_of_a_matmul_are_rows(bench: Any) -> None:
    work = bench.work("matmul dst=%d a=%a w=%w bias=-", d="fp32[2, 3, 8]", a="fp32[2, 3, 4]", w="fp32[8, 4]")
    assert work.shape == MatmulShape(6, 8, 4) and work.ops == 2 * 6 * 8 * 4


def attention(bench: Any, q_lens: tuple[int, ...], kv_lens: tuple[int, ...], window: int = 0, chunk: int = 0) -> Work:
    """8 heads over 2, keys of 16 and values of 4 in bf16: a cache row is 2 * (16 + 4) * 2 = 80 bytes."""
    extents = {"t": (sum(q_lens),), "n": (len(q_lens),), "q_lens": q_lens, "kv_lens": kv_lens}
    result: Work = bench.work(
        "attention dst=%d q=%q cache=%c tables=%p q_lens=%l kv_lens=%k q_extent=q_lens kv_extent=kv_lens "
        f"heads=8 kv_heads=2 qk_dim=16 v_dim=4 scale=0.25 window={window} sinks=- chunk={chunk} soft_cap=0.0",
        extents=extents,
        d="bf16[t, 32]",
        q="bf16[t, 128]",
        c="bf16[100, 16, 40]",
        p="int32[n, 50]",
        l="int32[n]",
        k="int32[n]",
    )
    return result


@pytest.mark.parametrize(
    ("q_lens", "kv_lens", "window", "pairs", "rows"),
    [
        ((5,), (5,), 0, 1 + 2 + 3 + 4 + 5, 5),  # prefill
        ((1,), (33,), 0, 33, 33),  # decode
        ((1, 1), (7, 9), 0, 16, 16),  # a batch of decodes
        ((3,), (10,), 0, 8 + 9 + 10, 10),  # prefill behind a cached prefix
        ((4, 1), (4, 20), 0, 10 + 20, 24),  # mixed
        ((0, 2), (6, 2), 0, 1 + 2, 2),  # a sequence without new tokens costs nothing
        ((5,), (5,), 2, 1 + 2 + 2 + 2 + 2, 5),  # window
        ((1,), (33,), 8, 8, 8),
        ((2,), (33,), 8, 16, 9),  # two queries see nine rows between them
        ((3,), (6,), 5, 4 + 5 + 5, 6),
    ],
)
def test_attention_by_hand(
    bench: Any, q_lens: tuple[int, ...], kv_lens: tuple[int, ...], window: int, pairs: int, rows: int
) -> None:
    assert attention(bench, q_lens, kv_lens, window) == Work(
        Unit.TENSOR,
        ops=2 * pairs * 8 * (16 + 4),
        read_bytes=sum(q_lens) * 128 * 2 + rows * 80,
        write_bytes=sum(q_lens) * 32 * 2,
        dtype=BF16,
        shape=AttentionShape(q_lens, kv_lens, 8, 2, 16, 4, window, 16),
    )


LENGTHS = st.integers(1, 40).flatmap(lambda kv: st.tuples(st.integers(0, kv), st.just(kv)))


@settings(max_examples=150, deadline=None)
@given(lengths=st.lists(LENGTHS, min_size=1, max_size=3), window=st.integers(0, 50), chunked=st.booleans())
def test_attention_counts_what_its_mask_lets_through(
    bench: Any, lengths: list[tuple[int, int]], window: int, chunked: bool
) -> None:
    limits = (0, window) if chunked else (window, 0)
    masks = [causal_mask(q, kv, *limits) for q, kv in lengths]
    work = attention(bench, tuple(q for q, _ in lengths), tuple(kv for _, kv in lengths), *limits)
    assert work.ops == 2 * 8 * 20 * sum(int(mask.sum()) for mask in masks)
    seen = sum(int(mask.any(axis=0).sum()) for mask in masks)
    assert work.read_bytes == sum(q for q, _ in lengths) * 256 + seen * 80


@given(queries=st.integers(1, 20), before=st.integers(0, 20), window=st.integers(0, 25))
def test_the_mask_is_causal_and_as_wide_as_its_window(queries: int, before: int, window: int) -> None:
    mask = causal_mask(queries, before + queries, window)
    for row, position in enumerate(range(before, before + queries)):
        first = max(0, position - window + 1) if window else 0
        assert np.flatnonzero(mask[row]).tolist() == list(range(first, position + 1))


def test_chunks_start_anew_at_their_multiples() -> None:
    """Chunks of 3: the query at position 5 sees 3, 4 and 5, the one at 6 itself alone."""
    mask = causal_mask(3, 8, 0, 3)
    assert [np.flatnonzero(row).tolist() for row in mask] == [[3, 4, 5], [6], [6, 7]]


@pytest.mark.parametrize(
    ("q_lens", "kv_lens", "message"),
    [
        ((3,), (2,), "3 new tokens in a cache of 2"),
        ((-1, 2), (4, 4), "-1 new tokens in a cache of 4"),
        ((1, 1), (4,), "2 lengths in q_lens, 1 in kv_lens, for 2 sequences"),
    ],
)
def test_lengths_that_cannot_be_are_refused(
    bench: Any, q_lens: tuple[int, ...], kv_lens: tuple[int, ...], message: str
) -> None:
    with pytest.raises(ProgramError, match=message):
        attention(bench, q_lens, kv_lens)


VECTOR = [  # instruction, buffers, operations an element, elements, passes, read, written
    (
        "rmsnorm dst=%d x=%x weight=%w eps=0.0 plus_one=no",
        {"d": "fp32[3, 8]", "x": "bf16[3, 8]", "w": "bf16[4]"},
        (4, 24, 2, 24 * 2 + 4 * 2, 24 * 4),
    ),
    (
        "add_rmsnorm dst=%d x=%x delta=%y weight=%w eps=0.0 plus_one=no",
        {"d": "bf16[3, 8]", "x": "bf16[3, 8]", "y": "bf16[3, 8]", "w": "bf16[8]"},
        (5, 24, 2, 48 + 48 + 16, 48 + 48),
    ),
    (
        "layernorm dst=%d x=%x weight=%w bias=%b eps=0.0",
        {"d": "bf16[3, 8]", "x": "bf16[3, 8]", "w": "fp32[8]", "b": "fp32[8]"},
        (6, 24, 2, 48 + 32 + 32, 48),
    ),
    ("gated dst=%d x=%x activation=silu", {"d": "bf16[3, 5]", "x": "fp32[3, 10]"}, (6, 15, 1, 120, 30)),
    ("add dst=%d a=%a b=%b", {"d": "bf16[3, 5]", "a": "fp32[3, 5]", "b": "bf16[3, 5]"}, (1, 15, 1, 90, 30)),
    ("scale dst=%d x=%x factor=2.0", {"d": "bf16[15]", "x": "bf16[15]"}, (1, 15, 1, 30, 30)),
    ("cast dst=%d x=%x", {"d": "fp8_e5m2[3, 5]", "x": "fp32[3, 5]"}, (1, 15, 1, 60, 15)),
    ("softmax dst=%d x=%x", {"d": "fp32[3, 5]", "x": "bf16[3, 5]"}, (5, 15, 3, 30, 60)),
    ("argmax dst=%d x=%x", {"d": "int32[3]", "x": "bf16[3, 5]"}, (1, 15, 1, 30, 12)),
    (
        "sample dst=%d x=%x keys=%k temperature=1.0 top_k=0 top_p=1.0",
        {"d": "int32[3]", "x": "fp32[3, 5]", "k": "int64[3]"},
        (8, 15, 4, 60 + 24, 12),
    ),
]


@pytest.mark.parametrize(("instruction", "buffers", "expected"), VECTOR)
def test_vector_work_by_hand(bench: Any, instruction: str, buffers: dict[str, str], expected: tuple[int, ...]) -> None:
    ops, elements, passes, read, written = expected
    work = bench.work(instruction, **buffers)
    assert (work.unit, work.ops, work.read_bytes, work.write_bytes) == (Unit.VECTOR, ops * elements, read, written)
    rows, cols = work.shape.rows, work.shape.cols
    assert work.shape == VectorShape(rows, cols, passes) and rows * cols == elements


WHOLE = [
    *[(instruction, buffers) for instruction, buffers, _ in VECTOR],
    ("matmul dst=%d a=%a w=%w bias=%b", {"d": "bf16[t, 6]", "a": "fp32[t, n]", "w": "bf16[6, n]", "b": "fp16[6]"}),
    ("rmsnorm dst=%d x=%x weight=%w eps=0.0 plus_one=no", {"d": "bf16[t, 8]", "x": "fp32[t, 8]", "w": "fp16[4]"}),
    ("softmax dst=%d[1:3] x=%x[0:2]", {"d": "fp32[t, 3]", "x": "bf16[t, 9]"}),
    ("copy dst=%d src=%x", {"d": "fp8_e4m3[t, n]", "x": "fp32[t, n]"}),
]


@pytest.mark.parametrize(("instruction", "buffers"), WHOLE)
@settings(max_examples=10, deadline=None)
@given(t=st.integers(0, 10**9), n=st.integers(0, 10**9))
def test_every_operand_is_read_or_written_once(
    bench: Any, instruction: str, buffers: dict[str, str], t: int, n: int
) -> None:
    extents = {"t": (t,), "n": (n,)}
    block = bench.program(instruction, **buffers).blocks[0]
    shapes = BoundShapes(block, {"g": 4}, Binding(extents, {"g": 0}))
    refs = list(block.body[0].instruction.refs())
    work = bench.work(instruction, extents=extents, **buffers)
    assert work.read_bytes == bytes_of(shapes, *(ref for ref, role in refs if role is not Role.OUT))
    assert work.write_bytes == bytes_of(shapes, *(ref for ref, role in refs if role is not Role.IN))


def test_rope_turns_only_the_rotary_part_and_reads_a_row_of_each_table_a_token(bench: Any) -> None:
    work = bench.work(
        "rope x=%x cos=%c sin=%s positions=%p head_dim=8 rotary_dim=6 interleaved=no",
        x="bf16[5, 16]",
        c="fp32[99, 3]",
        s="fp32[99, 3]",
        p="int32[5]",
    )
    assert work.ops == 5 * 2 * 3 * 6  # tokens * heads * pairs * (4 products and 2 sums)
    assert work.read_bytes == 5 * 16 * 2 + 5 * 4 + 2 * 5 * 3 * 4
    assert (work.write_bytes, work.shape) == (5 * 16 * 2, VectorShape(5, 16, 1))


@pytest.mark.parametrize(
    ("instruction", "buffers", "read", "written", "shape"),
    [
        ("copy dst=%d src=%s", {"d": "bf16[3, 4]", "s": "fp32[3, 4]"}, 48, 24, MoveShape(3, 16)),
        ("copy dst=%d src=%s", {"d": "fp32[5]", "s": "fp32[5]"}, 20, 20, MoveShape(1, 20)),
        (
            "gather dst=%d src=%s index=%i",
            {"d": "bf16[2, 4]", "s": "fp32[9, 4]", "i": "int32[2]"},
            2 * 16 + 8,
            16,
            MoveShape(2, 16),
        ),
        (
            "scatter dst=%d src=%s index=%i",
            {"d": "bf16[9, 16, 4]", "s": "fp32[3, 4]", "i": "int32[3]"},
            3 * 16 + 12,
            24,
            MoveShape(3, 16),
        ),
        (
            "embedding dst=%d table=%w ids=%i first=0",
            {"d": "fp32[3, 4]", "w": "bf16[9, 4]", "i": "int32[3]"},
            3 * 8 + 12,
            48,
            MoveShape(3, 8),
        ),
    ],
)
def test_moves_read_in_the_dtype_of_the_source_and_write_in_that_of_the_target(
    bench: Any, instruction: str, buffers: dict[str, str], read: int, written: int, shape: MoveShape
) -> None:
    assert bench.work(instruction, **buffers) == Work(Unit.DMA, read_bytes=read, write_bytes=written, shape=shape)


def test_the_host_link_touches_device_memory_on_one_side(bench: Any) -> None:
    load = bench.work("host_load dst=%d src=%h", d="int32[6]", h="int32[6] host")
    store = bench.work("host_store dst=%h src=%s", h="fp32[2, 3] host", s="fp32[2, 3]")
    assert load == Work(Unit.HOST, write_bytes=24, shape=MoveShape(1, 24))
    assert store == Work(Unit.HOST, read_bytes=24, shape=MoveShape(1, 24))


@pytest.mark.parametrize(
    ("q_lens", "kv_lens", "limits", "pages"),
    [
        ([1, 1], [17, 16], "window=0 chunk=0", 2),  # 16 tokens are one page, and so are 15
        ([1, 1], [18, 34], "window=0 chunk=0", 2 + 3),
        ([0, 5], [33, 5], "window=0 chunk=0", 0),  # no new tokens, and none before them
        ([1, 1], [49, 50], "window=16 chunk=0", 1 + 2),  # tokens 33 to 48 and 34 to 49: pages 2 (3 is new), 2 and 3
        ([2, 1], [50, 50], "window=0 chunk=32", 1 + 2),  # from token 32 on
    ],
)
def test_pages_that_come_from_the_host_are_those_of_the_tokens_before(
    bench: Any, q_lens: list[int], kv_lens: list[int], limits: str, pages: int
) -> None:
    work = bench.work(
        f"host_load_pages dst=%d src=%h tables=%p q_lens=%l kv_lens=%k q_extent=q_lens kv_extent=kv_lens {limits}",
        extents={"q_lens": tuple(q_lens), "kv_lens": tuple(kv_lens)},
        d="bf16[9, 16, 24]", h="bf16[9, 16, 24] host", p="int32[2, 4]", l="int32[2]", k="int32[2]",
    )  # fmt: skip
    assert work == Work(Unit.HOST, write_bytes=pages * 16 * 24 * 2, shape=MoveShape(pages, 16 * 24 * 2))


def test_rows_that_go_back_to_the_host_are_read_once(bench: Any) -> None:
    work = bench.work(
        "host_store_rows dst=%h src=%s index=%i", h="fp8_e4m3[9, 16, 24] host", s="fp8_e4m3[9, 16, 24]", i="int32[5]"
    )
    assert work == Work(Unit.HOST, read_bytes=5 * 24, shape=MoveShape(5, 24))


def test_transfers_read_where_they_send_and_write_where_they_receive(bench: Any) -> None:
    works = [bench.work(f"{m} x=%x group=g peer=2", x="fp32[3, 5]") for m in ("send", "recv", "recv_reduce")]
    assert [(w.ops, w.read_bytes, w.write_bytes) for w in works] == [(0, 60, 0), (0, 0, 60), (15, 60, 60)]
    assert [w.shape for w in works] == [
        TransferShape("g", 2, 60, sends, reduces, FP32)
        for sends, reduces in ((True, False), (False, False), (False, True))
    ]
    with pytest.raises(ProgramError, match="member 2 of group 'g' is this card itself"):
        bench.work("send x=%x group=g peer=2", index=2, x="fp32[3, 5]")


@pytest.mark.parametrize(
    ("instruction", "buffers", "kind", "parts"),
    [
        ("all_reduce x=%x group=g", {"x": "bf16[3, 5]"}, "all_reduce", (8, 8, 8, 6)),  # 15 elements over 4
        ("all_reduce x=%x group=g", {"x": "bf16[1, 2]"}, "all_reduce", (2, 2, 0, 0)),
        (
            "all_gather dst=%d src=%s group=g axis=columns",
            {"d": "bf16[5, 10]", "s": "bf16[5, 3]"},
            "all_gather",
            (30, 30, 20, 20),
        ),
        (
            "all_gather dst=%d src=%s group=g axis=rows",
            {"d": "bf16[7, 2, 3]", "s": "bf16[2, 2, 3]"},
            "all_gather",
            (24, 24, 24, 12),
        ),
        (
            "reduce_scatter dst=%d src=%s group=g",
            {"d": "fp32[2, 5]", "s": "fp32[5, 5]"},
            "reduce_scatter",
            (40, 20, 20, 20),
        ),
        ("broadcast x=%x group=g root=2", {"x": "fp32[3, 5]"}, "broadcast", (60,)),
        ("reduce x=%x group=g root=2", {"x": "fp32[3, 5]"}, "reduce", (60,)),
        (
            "link_gather dst=%d src=%s group=g root=2 axis=rows",
            {"d": "bf16[7, 2, 3]", "s": "bf16[2, 2, 3]"},
            "gather",
            (24, 24, 24, 12),
        ),
        (
            "link_scatter dst=%d src=%s group=g root=2 axis=columns",
            {"d": "bf16[5, 3]", "s": "bf16[5, 10]"},
            "scatter",
            (30, 30, 20, 20),
        ),
    ],
)
def test_a_collective_states_the_bytes_of_every_part(
    bench: Any, instruction: str, buffers: dict[str, str], kind: str, parts: tuple[int, ...]
) -> None:
    work = bench.work(instruction, **buffers)
    dtype = work.shape.dtype
    assert work.shape == CollectiveShape(kind, "g", parts, dtype, 2 if "root=2" in instruction else 0)
    assert (work.unit, work.ops, work.read_bytes, work.write_bytes, work.dtype) == (Unit.LINK, 0, 0, 0, dtype)


def test_a_member_that_holds_another_share_than_its_own_is_refused(bench: Any) -> None:
    gather = {"instruction": "all_gather dst=%d src=%s group=g axis=columns", "d": "bf16[5, 10]", "s": "bf16[5, 3]"}
    bench.work(**gather, index=1)
    with pytest.raises(ProgramError, match="member 2 holds 3 columns, its even share is 2"):
        bench.work(**gather, index=2)
    scatter = {"instruction": "reduce_scatter dst=%d src=%s group=g", "d": "fp32[t, 5]", "s": "fp32[n, 5]"}
    bench.work(**scatter, index=3, extents={"n": (7,), "t": (1,)})
    with pytest.raises(ProgramError, match="member 3 holds 2 rows, its even share is 1"):
        bench.work(**scatter, index=3, extents={"n": (7,), "t": (2,)})


ALL_TO_ALL = {
    "instruction": "all_to_all dst=%d src=%s group=g send_counts=q_lens recv_counts=kv_lens",
    "d": "bf16[t, 2, 5]",
    "s": "bf16[9, 2, 5]",
}


def test_an_all_to_all_states_what_goes_to_each_member_and_what_comes(bench: Any) -> None:
    extents = {"t": (12,), "q_lens": (3, 0, 4, 1), "kv_lens": (0, 2, 4, 6)}  # rows of 20 bytes
    work = bench.work(**ALL_TO_ALL, index=2, extents=extents)
    shape = CollectiveShape("all_to_all", "g", (60, 0, 80, 20), BF16, received_bytes=(0, 40, 80, 120))
    assert work == Work(Unit.LINK, dtype=BF16, shape=shape)


@pytest.mark.parametrize(
    ("extents", "index", "message"),
    [
        ({"q_lens": (3, 0, 4)}, 2, "q_lens has 3 entries, one a member of 4 is needed"),
        ({"kv_lens": (0, 2, 4, -6)}, 2, r"kv_lens is \[0, 2, 4, -6\]: a count is 0 or more"),
        ({"q_lens": (3, 0, 4, 3)}, 2, "q_lens counts 10 rows, and %s has 9"),
        ({"t": (11,)}, 2, "kv_lens counts 12 rows, and %d has 11"),
    ],
)
def test_counts_that_do_not_fit_an_all_to_all_are_refused(
    bench: Any, extents: dict[str, tuple[int, ...]], index: int, message: str
) -> None:
    legal = {"t": (12,), "q_lens": (3, 0, 4, 1), "kv_lens": (0, 2, 4, 6)}
    with pytest.raises(ProgramError, match=message):
        bench.work(**ALL_TO_ALL, index=index, extents=legal | extents)


def test_the_shares_of_a_scatter_and_a_gather_are_checked_like_those_of_an_all_gather(bench: Any) -> None:
    for text, buffers in (
        ("link_gather dst=%d src=%s group=g root=0 axis=rows", {"d": "fp32[n, 5]", "s": "fp32[t, 5]"}),
        ("link_scatter dst=%s src=%d group=g root=0 axis=rows", {"d": "fp32[n, 5]", "s": "fp32[t, 5]"}),
    ):
        bench.work(text, index=3, extents={"n": (7,), "t": (1,)}, **buffers)
        with pytest.raises(ProgramError, match="member 3 holds 2 rows, its even share is 1"):
            bench.work(text, index=3, extents={"n": (7,), "t": (2,)}, **buffers)


def test_control_and_barriers_move_nothing(bench: Any) -> None:
    for text in ("wait semaphore=s count=0", "signal semaphore=s count=1", "halt"):
        assert bench.work(text) == Work(Unit.CONTROL)
    assert bench.work("barrier group=g") == Work(Unit.LINK, shape=CollectiveShape("barrier", "g", ()))
