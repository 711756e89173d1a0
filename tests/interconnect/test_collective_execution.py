"""Collectives on real arrays: bit for bit what their transfers say, the same on every member, and the right sum."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siltwin.interconnect.collectives.execute import Part, even_parts, execute
from siltwin.interconnect.collectives.expand import expand
from siltwin.interconnect.collectives.plan import SIGNAL, Plan, Step, Transfer
from siltwin.interconnect.collectives.registry import ALGORITHMS, COLLECTIVES, Options
from siltwin.isa.dtype import BF16, DTYPES, FP16, FP32, INT32, DType, decode, encode
from siltwin.isa.errors import ProgramError, UnsupportedError
from siltwin.isa.instruction import split_even

FLOATS = [DTYPES[name] for name in ("fp32", "fp16", "bf16", "fp8_e4m3", "fp8_e5m2")]
SHAPES = {6: (3, 2), 8: (2, 2, 2)}
Array = np.ndarray[Any, Any]


def random_buffers(members: int, count: int, dtype: DType, seed: int = 0) -> list[Array]:
    rng = np.random.default_rng(seed)
    return [encode(rng.standard_normal(count).astype(np.float32) * 3, dtype) for _ in range(members)]


def one_by_one(plan: Plan, buffers: list[Array], dtype: DType, parts: tuple[slice, ...]) -> list[Array]:
    """The meaning: send, then recv or recv_reduce, element by element, each step reading what stood before it."""
    state = [buffer.copy() for buffer in buffers] + [np.zeros_like(buffers[0])]  # the last one is a switch's
    for step in plan.steps:
        before = [buffer.copy() for buffer in state]
        for move in step.transfers:
            if move.part == SIGNAL:
                continue
            for element in range(parts[move.part].start, parts[move.part].stop):
                arriving = before[move.source][element : element + 1]
                if move.reduces:
                    own = state[move.target][element : element + 1]
                    arriving = encode(decode(own, dtype) + decode(arriving, dtype), dtype)
                state[move.target][element] = arriving[0]
    return state[: plan.size]


def own_parts(plan: Plan, count: int) -> tuple[slice, ...]:
    """A buffer of `count` elements as the plan cuts it when its callers cut it evenly."""
    if not plan.cuts_each_part:
        return even_parts(count, plan.parts)
    pieces = plan.parts // max(1, plan.given)
    cuts = [(outer, inner) for outer in even_parts(count, plan.given) for inner in even_parts(len_of(outer), pieces)]
    return tuple(slice(outer.start + inner.start, outer.start + inner.stop) for outer, inner in cuts)


def len_of(part: slice) -> int:
    return part.stop - part.start


def bits(buffers: list[Array]) -> list[bytes]:
    return [buffer.tobytes() for buffer in buffers]


@pytest.mark.parametrize("dtype", FLOATS, ids=repr)
@pytest.mark.parametrize(("collective", "name"), sorted(ALGORITHMS))
@pytest.mark.parametrize(("size", "count"), [(1, 5), (2, 7), (3, 12), (5, 23), (6, 40), (8, 3)])
def test_execution_equals_its_transfers_one_by_one(
    dtype: DType, collective: str, name: str, size: int, count: int
) -> None:
    shaped = name.startswith("hierarchical") and size > 1
    if shaped and size not in SHAPES:
        return
    options = Options(shape=SHAPES[size]) if shaped else Options()
    plan = expand(collective, COLLECTIVES[collective].size or size, name, options=options)
    buffers = random_buffers(plan.size, count, dtype, seed=size)
    parts = even_parts(count, plan.given) if plan.parts else ()
    expected = one_by_one(plan, buffers, dtype, own_parts(plan, count) if plan.parts else ())
    execute(plan, buffers, dtype, parts)
    assert bits(buffers) == bits(expected)


def test_the_order_of_reduction_is_the_stated_one_and_rounds_at_every_hop() -> None:
    """bf16 steps are 2 from 256 on. Part 0 of 3 members is (x1 + x2) + x0 = (1 + 1) + 256 = 258."""
    members = [encode(np.float32([value] * 3), BF16) for value in (256.0, 1.0, 1.0)]
    execute(expand("all_reduce", 3), members, BF16, even_parts(3, 3))
    # Part 1: (x2 + x0) + x1 = (1 + 256 -> 256) + 1 -> 256. Part 2: (x0 + x1 -> 256) + 1 -> 256.
    assert [list(decode(member, BF16)) for member in members] == [[258.0, 256.0, 256.0]] * 3


@settings(deadline=None)
@given(st.integers(1, 9), st.integers(0, 40), st.sampled_from(FLOATS), st.integers(0, 1000))
def test_an_all_reduce_leaves_the_same_bits_everywhere_close_to_the_sum(
    size: int, count: int, dtype: DType, seed: int
) -> None:
    buffers = random_buffers(size, count, dtype, seed)
    exact = sum(decode(buffer, dtype).astype(np.float64) for buffer in buffers)
    scale = sum(np.abs(decode(buffer, dtype).astype(np.float64)) for buffer in buffers)
    execute(expand("all_reduce", size), buffers, dtype, even_parts(count, size))
    assert len(set(bits(buffers))) == 1
    half_step = {"fp32": 2.0**-24, "fp16": 2.0**-11, "bf16": 2.0**-8, "fp8_e4m3": 2.0**-4, "fp8_e5m2": 2.0**-3}
    tiny = {"fp8_e4m3": 2.0**-10, "fp8_e5m2": 2.0**-17}.get(dtype.name, 2.0**-25)
    assert np.all(
        np.abs(decode(buffers[0], dtype) - exact) <= (size - 1) * (1.01 * half_step[dtype.name] * scale + tiny)
    )


@given(st.integers(1, 9), st.integers(0, 40), st.integers(0, 1000))
def test_sums_of_integers_in_fp32_are_exact(size: int, count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    buffers = [rng.integers(-(10**5), 10**5, count).astype(np.float32) for _ in range(size)]
    total = np.sum(buffers, axis=0)
    execute(expand("all_reduce", size), buffers, FP32, even_parts(count, size))
    assert all(np.array_equal(buffer, total) for buffer in buffers)


def test_a_reduce_scatter_then_an_all_gather_is_an_all_reduce() -> None:
    whole, halves = random_buffers(5, 23, BF16), random_buffers(5, 23, BF16)
    parts = even_parts(23, 5)
    execute(expand("all_reduce", 5), whole, BF16, parts)
    execute(expand("reduce_scatter", 5), halves, BF16, parts)
    assert all(np.array_equal(halves[m][parts[m]], whole[m][parts[m]]) for m in range(5))
    execute(expand("all_gather", 5), halves, BF16, parts)
    assert bits(halves) == bits(whole)


def test_an_all_gather_collects_every_members_own_part_unchanged() -> None:
    buffers = random_buffers(4, 10, FP16)
    parts = (slice(0, 1), slice(1, 1), slice(1, 7), slice(7, 10))  # uneven, one empty
    expected = np.concatenate([buffers[m][parts[m]] for m in range(4)])
    execute(expand("all_gather", 4), buffers, FP16, parts)
    assert all(np.array_equal(buffer, expected) for buffer in buffers)


def test_parts_may_be_columns_of_a_matrix() -> None:
    """Logits that are sharded by vocabulary: member m computed columns of every row."""
    logits = np.arange(12, dtype=np.float32).reshape(2, 6)
    parts: list[Part] = [(..., slice(0, 2)), (..., slice(2, 4)), (..., slice(4, 6))]
    buffers = [np.zeros_like(logits) for _ in parts]
    for buffer, part in zip(buffers, parts, strict=True):
        buffer[part] = logits[part]
    execute(expand("all_gather", 3), buffers, FP32, parts)
    assert all(np.array_equal(buffer, logits) for buffer in buffers)


@pytest.mark.parametrize("root", range(3))
def test_a_broadcast_gives_everyone_what_the_root_has(root: int) -> None:
    buffers = random_buffers(3, 6, BF16)
    expected = buffers[root].tobytes()
    execute(expand("broadcast", 3, root=root), buffers, BF16, [slice(0, 6)])
    assert bits(buffers) == [expected] * 3


def test_point_to_point_overwrites_or_adds() -> None:
    plain, added = [[np.float32([1, 2]), np.float32([10, 20])] for _ in range(2)]
    execute(expand("send_recv", 2), plain, FP32, [...])
    execute(expand("send_recv_reduce", 2), added, FP32, [...])
    assert [list(b) for b in plain] == [[1, 2], [1, 2]]
    assert [list(b) for b in added] == [[1, 2], [11, 22]]


def test_a_barrier_moves_nothing() -> None:
    buffers = random_buffers(3, 4, FP32)
    before = bits(buffers)
    execute(expand("barrier", 3), buffers, FP32, [])
    assert bits(buffers) == before


def test_a_step_reads_what_stood_before_it() -> None:
    """A swap, and an exchange of sums, which one after the other would give [1, 1] and [3, 5]."""
    part = [slice(0, 1)]
    swap = Plan.of_steps("all_reduce", "by hand", 2, (Step((Transfer(0, 1, 0), Transfer(1, 0, 0))),), parts=1)
    both = [np.float32([1]), np.float32([2])]
    execute(swap, both, FP32, part)
    assert [list(b) for b in both] == [[2], [1]]
    sums = Plan.of_steps(
        "all_reduce", "sums by hand", 2, (Step((Transfer(0, 1, 0, True), Transfer(1, 0, 0, True))),), parts=1
    )
    execute(sums, both, FP32, part)
    assert [list(b) for b in both] == [[3], [3]]


def test_a_kernel_may_do_the_additions_on_storage_arrays() -> None:
    seen = set()

    def kernel(target: Array, source: Array) -> None:
        seen.add((target.dtype, source.dtype, target.shape == source.shape))
        target[...] = encode(decode(target, BF16) + decode(source, BF16), BF16)

    ours, theirs = random_buffers(3, 20, BF16), random_buffers(3, 20, BF16)
    execute(expand("all_reduce", 3), ours, BF16, even_parts(20, 3))
    execute(expand("all_reduce", 3), theirs, BF16, even_parts(20, 3), reduce=kernel)
    assert bits(ours) == bits(theirs)
    assert seen == {(np.dtype(np.uint16), np.dtype(np.uint16), True)}


def test_integers_add_as_integers_and_an_overflowing_float_is_infinite() -> None:
    whole = [np.int32([2**30 + 1, 5]) for _ in range(2)]
    execute(expand("all_reduce", 2), whole, INT32, even_parts(2, 2))
    assert list(whole[0]) == [-(2**31) + 2, 10]
    large = [encode(np.float32([60000]), FP16) for _ in range(2)]
    with np.errstate(all="raise"):
        execute(expand("all_reduce", 2), large, FP16, even_parts(1, 2))
    assert list(decode(large[1], FP16)) == [np.inf]


@given(st.integers(0, 1000), st.integers(1, 40))
def test_even_parts_are_the_split_that_instructions_mean(count: int, parts: int) -> None:
    assert [(part.start, part.stop - part.start) for part in even_parts(count, parts)] == split_even(count, parts)


def test_even_parts_need_something_to_cut_into() -> None:
    with pytest.raises(ProgramError, match="7 elements cannot be cut into 0 parts"):
        even_parts(7, 0)


def test_packed_elements_can_be_moved_but_not_added() -> None:
    packed = [np.full(4, member, np.uint8) for member in range(2)]
    execute(expand("all_gather", 2), packed, DTYPES["int4"], even_parts(4, 2))
    assert list(packed[0]) == list(packed[1]) == [0, 0, 1, 1]
    with pytest.raises(UnsupportedError, match="int4 packs several elements in a byte"):
        execute(expand("all_reduce", 2), packed, DTYPES["int4"], even_parts(4, 2))


@pytest.mark.parametrize(
    ("buffers", "parts", "message"),
    [
        ([np.zeros(4, np.uint16)], even_parts(4, 2), "1 buffers and 2 parts; it needs 2 and 2"),
        ([np.zeros(4, np.uint16)] * 2, even_parts(4, 3), "2 buffers and 3 parts; it needs 2 and 2"),
        ([np.zeros(4, np.float32)] * 2, even_parts(4, 2), "member 0 holds float32; bf16 is stored as uint16"),
        (
            [np.zeros(4, np.uint16), np.zeros(5, np.uint16)],
            even_parts(4, 2),
            r"member 1 has shape \(5,\), member 0 \(4,\)",
        ),
        ([np.zeros(4, np.uint16)] * 2, [[0, 1], [2, 3]], r"part \[0, 1\] must be a slice"),
    ],
)
def test_buffers_that_do_not_fit_the_plan_are_refused(buffers: list[Array], parts: Any, message: str) -> None:
    with pytest.raises(ProgramError, match=f"ring all_reduce of 2: {message}"):
        execute(expand("all_reduce", 2), buffers, BF16, parts)
