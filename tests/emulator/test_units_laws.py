"""Laws of unit timing that hold for any instruction on any shipped card: conservation, floors and monotony."""

from functools import lru_cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siltwin.emulator.spec import CardSpec, card_names, load_card, override
from siltwin.emulator.units.demand import demand
from siltwin.emulator.units.rates import UnitDemand, capacities
from siltwin.isa.dtype import BF16, DTYPES, FP32, DType
from siltwin.isa.work import AttentionShape, MatmulShape, MoveShape, Unit, VectorShape, Work

PS_PER_S = 10**12
LAWS = settings(max_examples=150, deadline=None)

cards = st.sampled_from(card_names()).map(load_card)
sizes = st.one_of(st.integers(1, 300), st.sampled_from([512, 1000, 1024, 4096, 5000, 16384]))
shapes = st.builds(MatmulShape, m=sizes, n=sizes, k=sizes, batch=st.sampled_from([1, 1, 3, 8]))
dtypes = st.sampled_from([BF16, FP32, DTYPES["int8"]])


def matmul(shape: MatmulShape, dtype: DType = BF16) -> Work:
    size = dtype.itemsize_bytes
    operands = (shape.m * shape.k + shape.k * shape.n) * shape.batch * size
    results = shape.m * shape.n * shape.batch * size
    return Work(Unit.TENSOR, 2 * shape.m * shape.n * shape.k * shape.batch, operands, results, dtype, shape)


def attention(lens: list[tuple[int, int]], heads: int, kv_heads: int, dim: int, window: int) -> Work:
    """Sequences of (new tokens, tokens before them); only what a window shows is read."""
    q_lens, kv_lens = tuple(new for new, _ in lens), tuple(new + old for new, old in lens)
    read = sum(min(kv, window + new if window else kv) for new, kv in zip(q_lens, kv_lens, strict=True))
    queries, cache = 2 * sum(q_lens) * heads * dim, 4 * read * kv_heads * dim
    shape = AttentionShape(q_lens, kv_lens, heads, kv_heads, dim, dim, window)
    pairs = sum(causal_pairs(new, old, window) for new, old in lens)
    return Work(Unit.TENSOR, 4 * pairs * heads * dim, queries + cache, queries, BF16, shape)


def causal_pairs(new: int, old: int, window: int) -> int:
    return sum(min(old + token + 1, window or old + token + 1) for token in range(new))


sequences = st.lists(st.tuples(st.integers(1, 400), st.integers(0, 3000)), min_size=1, max_size=6)
heads = st.sampled_from([(1, 1), (8, 8), (8, 2), (32, 8), (9, 3), (64, 1)])
attentions = st.builds(
    lambda lens, heads, dim, window: attention(lens, *heads, dim, window),
    sequences,
    heads,
    st.sampled_from([64, 128, 80]),
    st.sampled_from([0, 0, 100, 1024]),
)
vectors = st.builds(
    lambda rows, cols, passes, weight: Work(
        Unit.VECTOR, rows * cols * weight, 2 * rows * cols, 2 * rows * cols, BF16, VectorShape(rows, cols, passes)
    ),
    sizes,
    sizes,
    st.integers(1, 4),
    st.integers(0, 30),
)
moves = st.builds(
    lambda rows, row_bytes: Work(Unit.DMA, 0, rows * row_bytes, rows * row_bytes, None, MoveShape(rows, row_bytes)),
    sizes,
    sizes,
)
works = st.one_of(st.builds(matmul, shapes, dtypes), attentions, vectors, moves)


@lru_cache
def faster(card: CardSpec, key: str) -> CardSpec:
    old = card.clock_hz if key == "clock_hz" else card.hbm.bandwidth_bytes_per_s
    return override(card, {key: str(old * 3 // 2)})


def total_ps(work: Work, card: CardSpec) -> int:
    asked = demand(work, card)
    return asked.fixed_ps + asked.alone_ps


@LAWS
@given(works, cards)
def test_no_amount_needs_more_than_its_resource_gives_in_the_time_alone(work: Work, card: CardSpec) -> None:
    asked = demand(work, card)
    assert isinstance(asked, UnitDemand) and asked.alone_ps > 0
    for kind, amount in asked.amounts:
        assert isinstance(amount, int) and amount > 0
        assert amount * PS_PER_S <= capacities(card)[kind] * asked.alone_ps


@LAWS
@given(works, cards)
def test_bytes_are_conserved(work: Work, card: CardSpec) -> None:
    moved = work.read_bytes + work.write_bytes
    hbm_bytes = dict(demand(work, card).amounts)["hbm"]
    if isinstance(work.shape, MoveShape):
        wasted = work.shape.rows * (-work.shape.row_bytes % card.dma.granularity_bytes)
        assert hbm_bytes == moved + wasted
    else:
        assert hbm_bytes == moved


@LAWS
@given(works, cards)
def test_no_time_is_shorter_than_the_roofline(work: Work, card: CardSpec) -> None:
    asked = demand(work, card)
    moved = work.read_bytes + work.write_bytes
    assert asked.alone_ps * card.hbm.attainable_bytes_per_s >= moved * PS_PER_S
    if work.unit is Unit.TENSOR:
        assert work.dtype is not None
        assert asked.alone_ps * card.peak_ops_per_s(work.dtype) >= work.ops * PS_PER_S
    if work.unit is Unit.VECTOR:
        lanes = card.cores.count * card.vector.lanes_of(2) * card.clock_hz
        assert asked.alone_ps * lanes >= work.ops * PS_PER_S


@LAWS
@given(works, cards, st.sampled_from(["clock_hz", "hbm.bandwidth_bytes_per_s"]))
def test_a_faster_clock_or_hbm_is_never_slower(work: Work, card: CardSpec, key: str) -> None:
    assert total_ps(work, faster(card, key)) <= total_ps(work, card)


@LAWS
@given(shapes, cards, st.sampled_from(["m", "n", "k", "batch"]), st.integers(1, 3))
def test_a_larger_product_is_never_faster(shape: MatmulShape, card: CardSpec, axis: str, more: int) -> None:
    larger = MatmulShape(**{**vars(shape), axis: getattr(shape, axis) + more})
    assert total_ps(matmul(larger), card) >= total_ps(matmul(shape), card)


@LAWS
@given(shapes, cards, st.sampled_from(["m", "n", "k", "batch"]))
def test_twice_the_product_is_never_faster(shape: MatmulShape, card: CardSpec, axis: str) -> None:
    larger = MatmulShape(**{**vars(shape), axis: 2 * getattr(shape, axis)})
    assert total_ps(matmul(larger), card) >= total_ps(matmul(shape), card)


@LAWS
@given(sequences, heads, cards)
def test_one_more_sequence_is_never_faster(lens: list[tuple[int, int]], heads: tuple[int, int], card: CardSpec) -> None:
    fewer, more = (
        attention(lens[1:] or [(1, 0)], *heads, 128, 0),
        attention([*(lens[1:] or [(1, 0)]), lens[0]], *heads, 128, 0),
    )
    assert total_ps(more, card) >= total_ps(fewer, card)


@pytest.mark.parametrize("name", card_names())
def test_a_demand_is_the_same_however_often_it_is_asked(name: str) -> None:
    card = load_card(name)
    work = attention([(100, 900), (1, 5000)], 8, 2, 128, 0)
    assert demand.__wrapped__(work, card) == demand(work, card) == demand.__wrapped__(work, card)
