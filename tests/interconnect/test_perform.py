"""Collectives on members' own arrays give what message passing libraries promise, by every algorithm, to the bit."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siltwin.interconnect.collectives.expand import expand
from siltwin.interconnect.collectives.perform import perform
from siltwin.interconnect.collectives.plan import Plan
from siltwin.interconnect.collectives.registry import Options, algorithms_for
from siltwin.isa.dtype import BF16, FP32, decode, encode
from siltwin.isa.errors import ProgramError

Array = np.ndarray[Any, Any]
SHAPES = {4: (2, 2), 6: (3, 2), 8: (2, 2, 2), 12: (2, 6)}


def plans(collective: str, size: int, root: int = 0) -> list[Plan]:
    """By every algorithm that takes such a group."""
    found = []
    for name in algorithms_for(collective):
        shaped = name.startswith("hierarchical") and size > 1
        if not shaped or size in SHAPES:
            options = Options(shape=SHAPES[size]) if shaped else Options()
            found.append(expand(collective, size, name, root, options))
            if shaped and collective in ("all_reduce", "reduce_scatter", "all_gather"):
                found.append(expand(collective, size, name, root, Options(SHAPES[size], chunks=3)))
    return found


def integers(lengths: list[int], seed: int = 0) -> list[Array]:
    """Whole numbers in fp32 whose sums are exact in any order."""
    rng = np.random.default_rng(seed)
    return [rng.integers(-(10**4), 10**4, length).astype(np.float32) for length in lengths]


def same(found: list[Array], expected: list[Array]) -> bool:
    return len(found) == len(expected) and all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))


GROUPS = st.integers(1, 8) | st.just(12)


@settings(max_examples=40, deadline=None)
@given(GROUPS, st.integers(0, 40), st.integers(0, 100))
def test_sums_are_exact_and_the_same_on_all_by_every_algorithm(size: int, count: int, seed: int) -> None:
    inputs = integers([count] * size, seed)
    total = np.sum(inputs, axis=0)
    root = seed % size
    for plan in plans("all_reduce", size):
        assert same(perform(plan, inputs, FP32), [total] * size), plan.name
    for plan in plans("reduce", size, root):
        expected = [total if member == root else total[:0] for member in range(size)]
        assert same(perform(plan, inputs, FP32), expected), plan.name


@settings(max_examples=40, deadline=None)
@given(GROUPS, st.data())
def test_members_own_what_counts_say_by_every_algorithm(size: int, data: st.DataObject) -> None:
    counts = data.draw(st.lists(st.integers(0, 9), min_size=size, max_size=size))
    root = data.draw(st.integers(0, size - 1))
    bounds = np.cumsum([0, *counts])
    inputs = integers([sum(counts)] * size)
    total = np.sum(inputs, axis=0)
    for plan in plans("reduce_scatter", size):
        expected = [total[bounds[m] : bounds[m + 1]] for m in range(size)]
        assert same(perform(plan, inputs, FP32, counts), expected), plan.name
    for plan in plans("scatter", size, root):
        expected = [inputs[root][bounds[m] : bounds[m + 1]] for m in range(size)]
        assert same(perform(plan, inputs, FP32, counts), expected), plan.name
    own = integers(counts)
    whole = np.concatenate(own)
    for plan in plans("all_gather", size):
        assert same(perform(plan, own, FP32), [whole] * size), plan.name
    for plan in plans("gather", size, root):
        expected = [whole if m == root else whole[:0] for m in range(size)]
        assert same(perform(plan, own, FP32), expected), plan.name
    for plan in plans("broadcast", size, root):
        assert same(perform(plan, own, FP32), [own[root]] * size), plan.name


@settings(max_examples=40, deadline=None)
@given(GROUPS, st.data())
def test_an_uneven_all_to_all_is_a_transpose_by_every_algorithm(size: int, data: st.DataObject) -> None:
    row = st.lists(st.integers(0, 4), min_size=size, max_size=size)
    counts = np.array(data.draw(st.lists(row, min_size=size, max_size=size)))
    inputs = integers(counts.sum(axis=1).tolist())
    cuts = [np.split(values, np.cumsum(row)[:-1]) for values, row in zip(inputs, counts, strict=True)]
    expected = [np.concatenate([cuts[source][target] for source in range(size)]) for target in range(size)]
    for plan in plans("all_to_all", size):
        assert same(perform(plan, inputs, FP32, counts.tolist()), expected), plan.name


def test_without_counts_an_all_to_all_cuts_evenly_the_first_ones_longer() -> None:
    found = perform(expand("all_to_all", 2), [np.float32([1, 2, 3]), np.float32([4, 5])], FP32)
    assert [list(values) for values in found] == [[1, 2, 4], [3, 5]]


def test_inputs_are_left_as_they_are_and_low_precision_rounds_at_every_hop() -> None:
    """256 + 1 is 256 in bf16, so the order shows: member 0 keeps (x1 + x2) + x0 = 258 in its part."""
    inputs = [encode(np.float32([value] * 3), BF16) for value in (256.0, 1.0, 1.0)]
    before = [values.copy() for values in inputs]
    found = perform(expand("all_reduce", 3), inputs, BF16)
    assert [list(decode(values, BF16)) for values in found] == [[258.0, 256.0, 256.0]] * 3
    assert same(inputs, before)
    in_switch = perform(expand("all_reduce", 3, "in_switch"), inputs, BF16)
    assert [list(decode(values, BF16)) for values in in_switch] == [[256.0] * 3] * 3  # (x0 + x1) + x2
    direct = perform(expand("all_reduce", 3, "direct"), inputs, BF16)
    assert [list(decode(values, BF16)) for values in direct] == [[256.0, 258.0, 256.0]] * 3  # part 1: (x1 + x2) + x0


def test_halving_adds_far_pairs_first() -> None:
    """Four members: (x0 + x2) + (x1 + x3) in every part; 256 and three ones give 256 + 2 = 258 but for rounding."""
    inputs = [encode(np.float32([value] * 4), BF16) for value in (256.0, 1.0, 1.0, 1.0)]
    found = perform(expand("all_reduce", 4, "halving_doubling"), inputs, BF16)
    assert list(decode(found[0], BF16)) == [258.0] * 4  # (256 + 1 -> 256) + (1 + 1)


def test_all_members_hold_the_same_bits_whatever_the_numbers() -> None:
    rng = np.random.default_rng(5)
    inputs = [encode(rng.standard_normal(37).astype(np.float32), BF16) for _ in range(12)]
    for plan in plans("all_reduce", 12):
        assert len({values.tobytes() for values in perform(plan, inputs, BF16)}) == 1, plan.name


def test_transfers_and_barriers() -> None:
    two = [np.float32([1, 2]), np.float32([10, 20])]
    assert [list(v) for v in perform(expand("send_recv", 2), two, FP32)] == [[1, 2], [1, 2]]
    assert [list(v) for v in perform(expand("send_recv_reduce", 2), two, FP32)] == [[1, 2], [11, 22]]
    assert same(perform(expand("barrier", 2, "in_switch"), two, FP32), two)


@pytest.mark.parametrize(
    ("collective", "inputs", "counts", "message"),
    [
        ("all_reduce", [np.zeros(2, np.float32)], None, "1 inputs; the group has 2 members"),
        ("all_reduce", [np.zeros(2, np.float32), np.zeros(3, np.float32)], None, r"inputs of \[2, 3\] elements"),
        ("all_reduce", [np.zeros(2), np.zeros(2)], None, "member 0 holds float64.* give a flat array of float32"),
        ("all_reduce", [np.zeros((1, 2), np.float32)] * 2, None, r"member 0 holds float32\[1, 2\]"),
        ("reduce_scatter", [np.zeros(4, np.float32)] * 2, [1, 2], r"counts \[1, 2\] must be 2, not negative, .* sum 4"),
        ("scatter", [np.zeros(4, np.float32)] * 2, [-1, 5], r"counts \[-1, 5\] must be 2, not negative"),
        ("all_to_all", [np.zeros(4, np.float32)] * 2, [[2, 2]], "counts of 1 members; give 2 rows of 2"),
        ("all_to_all", [np.zeros(4, np.float32)] * 2, [[2, 2], [4, 1]], r"counts \[4, 1\] must be"),
    ],
)
def test_what_does_not_fit_is_refused(collective: str, inputs: list[Array], counts: Any, message: str) -> None:
    with pytest.raises(ProgramError, match=f"{collective} of 2: {message}"):
        perform(expand(collective, 2), inputs, FP32, counts)
