"""Attention from parts: any cut of a context, merged, is attention; what a part costs is what it computes."""

import numpy as np
import pytest

from siltwin.isa.dtype import FP32, INT32
from siltwin.isa.errors import ProgramError
from siltwin.isa.instruction import Instruction, TensorType
from siltwin.isa.meaning import ArrayMemory
from siltwin.isa.operands import Ref
from siltwin.isa.partial import MERGE_PARTS, PARTIAL_ATTENTION, PARTIAL_LATENT_ATTENTION
from siltwin.isa.program import Binding, Block, BoundShapes
from siltwin.isa.ragged import ALL_GATHER_ROWS
from siltwin.isa.share import NOTHING, Seen
from siltwin.isa.tensor import ATTENTION
from siltwin.isa.work import AttentionShape, CollectiveShape, Unit

Arrays = dict[str, np.ndarray]


def execute(instruction: Instruction, arrays: Arrays, extents: dict[str, tuple[int, ...]]) -> None:
    kinds = {name: INT32 if array.dtype == np.int32 else FP32 for name, array in arrays.items()}
    params = tuple((name, TensorType(kinds[name], array.shape)) for name, array in arrays.items())
    memory = ArrayMemory(Block("b", params, (), ()), {}, Binding(extents, {}), arrays)
    instruction.check(memory)
    instruction.execute(memory)


@pytest.mark.parametrize(("window", "cap", "sinks"), [(0, 0.0, False), (5, 0.0, True), (3, 2.0, True)])
def test_shares_dealt_at_random_and_merged_are_the_attention_of_the_whole(window: int, cap: float, sinks: bool) -> None:
    rng = np.random.default_rng(window + 1)
    length, queries, heads, kv_heads, dim, v_dim, shares = 23, 9, 4, 2, 6, 5, 3
    rows = rng.standard_normal((length, kv_heads * (dim + v_dim))).astype(np.float32)
    q = rng.standard_normal((queries, heads * dim)).astype(np.float32)
    logits = rng.standard_normal(heads).astype(np.float32)
    whole: Arrays = {
        "o": np.zeros((queries, heads * v_dim), np.float32),
        "q": q,
        "c": np.concatenate([rows, np.zeros((1, rows.shape[1]), np.float32)]).reshape(6, 4, -1),
        "t": np.arange(6, dtype=np.int32)[None],
        "ql": np.array([queries], np.int32),
        "kl": np.array([length], np.int32),
        "s": logits,
    }
    refs = [Ref(name) for name in ("o", "q", "c", "t", "ql", "kl")]
    last = (heads, kv_heads, dim, v_dim, dim**-0.5, window, Ref("s") if sinks else None, 0, cap)
    execute(ATTENTION(*refs, "ql", "kl", *last), whole, {"ql": (queries,), "kl": (length,)})

    holder = rng.integers(0, shares, length)
    holder[holder == 2] = 0  # one share is empty
    part = np.zeros((queries, heads * (v_dim + 1)), np.float32)
    for share in range(shares):
        own = np.flatnonzero(holder == share)
        positions = np.arange(length - queries, length)
        oldest = np.maximum(0, positions - window + 1) if window else np.zeros(queries, int)
        ranges = np.stack([np.searchsorted(own, oldest), np.searchsorted(own, positions, "right")], 1)
        sizes = ranges[:, 1] - ranges[:, 0]
        seen = (int((sizes > 0).sum()), int(sizes.sum()), int(len(own) if sizes.any() else 0))
        arrays: Arrays = {
            "o": part,
            "q": q,
            "c": rows[own],
            "t": np.zeros((1, 1), np.int32),
            "ql": np.array([queries], np.int32),
            "kl": np.array([len(own)], np.int32),
            "v": ranges.astype(np.int32),
        }
        before = Ref("o") if share else None
        names = [Ref(name) for name in ("c", "t", "ql", "kl", "v")]
        made = PARTIAL_ATTENTION(
            Ref("o"), Ref("q"), before, *names, "ql", "kl", "seen", heads, kv_heads, dim, v_dim, dim**-0.5, cap
        )
        execute(made, arrays, {"ql": (queries,), "kl": (len(own),), "seen": seen})
    merged: Arrays = {"o": np.zeros((queries, heads * v_dim), np.float32), "p": part, "s": logits}
    execute(MERGE_PARTS(Ref("o"), Ref("p"), Ref("s") if sinks else None, heads, 1), merged, {})
    np.testing.assert_allclose(merged["o"], whole["o"], rtol=2e-5, atol=2e-6)


def test_two_parts_of_one_key_each_weigh_by_their_scores() -> None:
    """Scores 0 and ln 3 over values 1 and 5: (1 * 1 + 3 * 5) / 4 = 4; a sink of ln 4 halves it."""
    parts = np.array([[1.0, 0.0], [5.0, np.log(3)]], np.float32)
    for sink, wanted in ((None, 4.0), (np.log(4), 2.0)):
        arrays: Arrays = {"o": np.zeros((1, 1), np.float32), "p": parts}
        if sink is not None:
            arrays["s"] = np.array([sink], np.float32)
        execute(MERGE_PARTS(Ref("o"), Ref("p"), Ref("s") if sink is not None else None, 1, 2), arrays, {})
        np.testing.assert_allclose(arrays["o"], [[wanted]], rtol=1e-6)


def test_a_query_that_sees_nothing_gives_nothing_and_changes_nothing() -> None:
    before = np.array([[7.0, 8.0, 0.5]], np.float32)
    for given, wanted in ((None, [[0.0, 0.0, NOTHING]]), (Ref("o"), before.tolist())):
        arrays: Arrays = {
            "o": before.copy(),
            "q": np.ones((1, 2), np.float32),
            "c": np.ones((3, 4), np.float32),
            "t": np.zeros((1, 1), np.int32),
            "ql": np.ones(1, np.int32),
            "kl": np.full(1, 3, np.int32),
            "v": np.array([[2, 2]], np.int32),
        }
        names = [Ref(name) for name in ("c", "t", "ql", "kl", "v")]
        made = PARTIAL_ATTENTION(Ref("o"), Ref("q"), given, *names, "ql", "kl", "s", 1, 1, 2, 2, 1.0, 0.0)
        execute(made, arrays, {"ql": (1,), "kl": (3,), "s": (0, 0, 0)})
        np.testing.assert_allclose(arrays["o"], wanted, rtol=1e-6)


def bound(
    instruction: Instruction, types: dict[str, tuple[int, ...]], extents: dict[str, tuple[int, ...]]
) -> BoundShapes:
    integers = {"t", "ql", "kl", "v"}
    params = tuple((name, TensorType(INT32 if name in integers else FP32, shape)) for name, shape in types.items())
    shapes = BoundShapes(Block("b", params, (), ()), {"g": 3}, Binding(extents, {"g": 1}))
    instruction.check(shapes)
    return shapes


PARTIAL = PARTIAL_ATTENTION(
    Ref("o"), Ref("q"), None, *map(Ref, ("c", "t", "ql", "kl", "v")), "ql", "kl", "seen", 4, 2, 8, 6, 1.0, 0.0
)
TYPES = {"o": (5, 28), "q": (5, 32), "c": (40, 28), "t": (2, 1), "ql": (2,), "kl": (2,), "v": (5, 2)}


def test_a_part_costs_the_pairs_and_rows_that_its_queries_see() -> None:
    """Sequence 0: 2 of 3 queries see 4 and 6 keys, 6 in all; sequence 1: both see the same 10."""
    extents = {"ql": (3, 2), "kl": (6, 20), "seen": (2, 10, 6, 2, 20, 10)}
    work = PARTIAL.work(bound(PARTIAL, TYPES, extents))
    assert work.unit is Unit.TENSOR
    assert work.ops == 2 * (10 + 20) * 4 * (8 + 6)
    assert work.read_bytes == 4 * (5 * 32 + (6 + 10) * 28 + 5 * 2)
    assert work.write_bytes == 4 * 5 * 28
    # causal attention of 2 queries over 6 keys has 5 + 6 pairs, over 11 it has 10 + 11
    assert work.shape == AttentionShape((2, 2), (6, 11), 4, 2, 8, 6, page_tokens=1)


def test_few_keys_of_many_queries_are_timed_as_short_causal_attentions() -> None:
    """10 queries of 3 keys each: four of 3, 3, 2 and 2 queries with 8, 8, 7 and 7 pairs, lengths rounded up."""
    assert Seen(10, 30, 12).causal_parts == [(3, 4), (3, 4), (2, 4), (2, 4)]
    assert Seen(10, 30, 12).causal_length == 10
    assert Seen(4, 10, 4).causal_parts == [(4, 4)]  # causal itself
    assert Seen(0, 0, 0).causal_parts == [(0, 0)]


@pytest.mark.parametrize(
    "seen",
    [(2, 10, 6, 2, 20), (4, 10, 6, 2, 20, 10), (2, 10, 7, 2, 20, 10), (2, 13, 6, 2, 20, 10), (2, 1, 6, 2, 20, 10)],
)
def test_what_cannot_be_seen_is_refused(seen: tuple[int, ...]) -> None:
    shapes = bound(PARTIAL, TYPES, {"ql": (3, 2), "kl": (6, 20), "seen": seen})
    with pytest.raises(ProgramError, match="partial_attention"):
        PARTIAL.work(shapes)


def test_a_latent_part_costs_the_cheaper_order_over_what_it_sees() -> None:
    """One query absorbs (2 heads, latent 8); eight queries over eight keys expand."""
    shares = map(Ref, ("c", "w", "t", "ql", "kl", "v"))
    refs = (Ref("o"), Ref("q"), Ref("r"), None, *shares)
    made = PARTIAL_LATENT_ATTENTION(*refs, "ql", "kl", "seen", 2, 4, 3, 5, 1.0)
    types = {
        "o": (9, 12), "q": (9, 8), "r": (9, 6), "c": (99, 11), "w": (18, 8), "t": (2, 1), "ql": (2,), "kl": (2,),
        "v": (9, 2),
    }  # fmt: skip
    seen = (1, 30, 30, 8, 64, 8)
    work = made.work(bound(made, types, {"ql": (1, 8), "kl": (30, 8), "seen": seen}))
    absorbed, expanded = 1 * 8 * 9 + 30 * (2 * 8 + 3), 8 * 8 * 9 + 64 * (4 + 3 + 5)
    assert work.ops == 2 * 2 * (absorbed + expanded)
    assert work.read_bytes == 4 * (9 * 8 + 9 * 6 + 18 * 8 + (30 + 8) * 11 + 9 * 2)


def test_rows_gathered_unevenly_are_parts_of_their_own_sizes() -> None:
    gather = ALL_GATHER_ROWS(Ref("o"), Ref("x"), "g", "n")
    types = {"o": (9, 4), "x": (0, 4)}
    work = gather.work(bound(gather, types, {"n": (7, 0, 2)}))
    assert work.shape == CollectiveShape("all_gather", "g", (112, 0, 32), FP32)
    for counts in ((7, 1, 1), (9, 0), (7, 0, 3), (-1, 0, 10)):
        with pytest.raises(ProgramError, match="for 3 members, of which member 1 holds 0 rows, and dst 9"):
            gather.work(bound(gather, types, {"n": counts}))
