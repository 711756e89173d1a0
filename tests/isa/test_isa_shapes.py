"""Extents, groups and semaphores once they are bound, and the one rule by which everything is split."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from semaphore_bases import semaphore_bases

from siltwin.isa.dtype import BF16
from siltwin.isa.errors import ProgramError
from siltwin.isa.instruction import TensorType, split_even
from siltwin.isa.operands import Ref
from siltwin.isa.program import Binding, Block, BoundShapes, column_slice
from siltwin.isa.text import assemble

BLOCK = Block("b", (("x", TensorType(BF16, ("t", 2, 8))),), (), ())


def bound(extents: dict[str, tuple[int, ...]], index: dict[str, int] | None = None) -> BoundShapes:
    return BoundShapes(BLOCK, {"g": 4}, Binding(extents, index or {}))


def test_dimensions_are_numbers_once_extents_are_bound() -> None:
    shapes = bound({"t": (5,), "lens": (1, 2, 3)}, {"g": 3})
    assert shapes.shape(Ref("x")) == (5, 2, 8)
    assert shapes.shape(Ref("x", 2, 3)) == (5, 2, 3)
    assert shapes.type_of(Ref("x", 2, 3)) == TensorType(BF16, ("t", 2, 3))
    assert shapes.extent("lens") == (1, 2, 3)
    assert (shapes.group_size("g"), shapes.group_index("g")) == (4, 3)
    assert bound({"t": (0,)}).shape(Ref("x")) == (0, 2, 8)


@pytest.mark.parametrize(
    ("extents", "message"),
    [
        ({}, "extent 't' is not bound; bound: none"),
        ({"n": (3,)}, "extent 't' is not bound; bound: n"),
        ({"t": (1, 2)}, r"extent 't' is a scalar and must be one number, 0 or more; it is \(1, 2\)"),
        ({"t": ()}, r"extent 't' is a scalar .* it is \(\)"),
        ({"t": (-1,)}, r"extent 't' is a scalar .* it is \(-1,\)"),
    ],
)
def test_an_extent_that_is_not_bound_to_a_length_is_refused(extents: dict[str, tuple[int, ...]], message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        bound(extents).shape(Ref("x"))


def test_names_and_places_that_are_not_bound_are_refused() -> None:
    with pytest.raises(ProgramError, match="block b: no buffer 'y'; it has x"):
        bound({}).type_of(Ref("y"))
    with pytest.raises(ProgramError, match="group 'h' is not declared; declared: g"):
        bound({}).group_size("h")
    with pytest.raises(ProgramError, match="group 'h' is not declared"):
        bound({}, {"h": 0}).group_index("h")
    with pytest.raises(ProgramError, match="index in group 'g' is not bound; bound: none"):
        bound({}).group_index("g")
    for index in (-1, 4):
        with pytest.raises(ProgramError, match=f"index in group 'g' is {index}; the group has 4 ranks"):
            bound({}, {"g": index}).group_index("g")


def test_columns_exist_only_within_a_dimension_that_is_a_number() -> None:
    assert column_slice(TensorType(BF16, (3, 8)), Ref("x", 5, 3)).shape == (3, 3)
    for shape, ref in (((3, 8), Ref("x", 6, 3)), ((3, "t"), Ref("x", 0, 1)), ((), Ref("x", 0, 1))):
        with pytest.raises(ProgramError, match="takes columns that .* does not have"):
            column_slice(TensorType(BF16, shape), ref)


def test_a_call_counts_from_what_earlier_calls_signal() -> None:
    program = assemble(
        """program p
queue a
queue b
semaphore s
block one
  a | signal semaphore=s count=3
  a | wait semaphore=s count=3
end
block two
  b | signal semaphore=s count=1
end
call one
call two
call one
"""
    )
    one, two = (dict(block.signals) for block in program.blocks)
    assert (one, two) == ({"a": 2, "s": 3}, {"b": 1, "s": 1})
    assert [dict(base) for base in semaphore_bases(program)] == [{}, {"a": 2, "s": 3}, {"a": 2, "s": 4, "b": 1}]


@given(st.integers(0, 10_000), st.integers(1, 300))
def test_an_even_split_tiles_the_whole_and_the_first_parts_are_one_longer(total: int, parts: int) -> None:
    shares = split_even(total, parts)
    assert len(shares) == parts
    assert sum(size for _, size in shares) == total
    assert [start for start, _ in shares] == [sum(size for _, size in shares[:i]) for i in range(parts)]
    sizes = [size for _, size in shares]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] - sizes[-1] <= 1


def test_an_even_split_by_hand_and_its_refusals() -> None:
    assert split_even(10, 4) == [(0, 3), (3, 3), (6, 2), (8, 2)]
    assert split_even(2, 3) == [(0, 1), (1, 1), (2, 0)]
    for total, parts in ((5, 0), (5, -1), (-1, 2)):
        with pytest.raises(ProgramError, match=f"{total} cannot be split into {parts} parts"):
            split_even(total, parts)
