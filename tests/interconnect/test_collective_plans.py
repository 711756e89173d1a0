"""Every registered algorithm keeps the promise of its collective, shown part by part without any numbers."""

from collections import Counter

import pytest

from siltwin.interconnect.collectives.expand import expand
from siltwin.interconnect.collectives.plan import SIGNAL, Plan, Step, Transfer
from siltwin.interconnect.collectives.registry import ALGORITHMS, COLLECTIVES, algorithm, algorithms_for
from siltwin.isa.errors import ConfigError

SIZES = [1, 2, 3, 4, 5, 8, 13]
CASES = [
    (collective, name, size, root)
    for collective, name in ALGORITHMS
    for size in SIZES
    if COLLECTIVES[collective].size in (None, size)
    for root in (range(size) if collective == "broadcast" else [0])
]


def contributions_after(plan: Plan) -> dict[tuple[int, int], Counter[int]]:
    """Whose contributions, and how often, stand in (member, part) when every transfer has run."""
    begins = COLLECTIVES[plan.collective].begins
    held = {
        (member, part): Counter(begins(member, part, plan.size, plan.root))
        for member in range(plan.size)
        for part in range(plan.parts)
    }
    for step in plan.steps:
        before = {place: Counter(found) for place, found in held.items()}
        for move in step.transfers:
            if move.part != SIGNAL:
                arriving = before[move.source, move.part]
                assert arriving, f"{plan.name}: member {move.source} sends a part it has nothing in"
                place = (move.target, move.part)
                held[place] = held[place] + arriving if move.reduces else Counter(arriving)
    return held


@pytest.mark.parametrize(("collective", "name", "size", "root"), CASES)
def test_every_contribution_ends_where_the_collective_promises_and_once(
    collective: str, name: str, size: int, root: int
) -> None:
    plan = expand(collective, size, name, root)
    for (member, part), found in contributions_after(plan).items():
        promised = COLLECTIVES[collective].ends(member, part, size, root)
        assert promised is None or found == Counter(promised), (member, part)


@pytest.mark.parametrize(("collective", "name", "size", "root"), CASES)
def test_every_transfer_joins_two_members_and_moves_a_part_of_the_plan(
    collective: str, name: str, size: int, root: int
) -> None:
    plan = expand(collective, size, name, root)
    assert plan.parts == COLLECTIVES[collective].parts(size)
    for step in plan.steps:
        assert step.transfers
        for move in step.transfers:
            assert move.source != move.target
            assert {move.source, move.target} <= set(range(size))
            assert move.part in range(plan.parts) or (move.part == SIGNAL and not move.reduces)


@pytest.mark.parametrize(("collective", "name", "size", "root"), CASES)
def test_no_member_is_done_before_all_have_come_where_the_collective_says_so(
    collective: str, name: str, size: int, root: int
) -> None:
    heard = [{member} for member in range(size)]
    for step in expand(collective, size, name, root).steps:
        before = [set(members) for members in heard]
        for move in step.transfers:
            heard[move.target] |= before[move.source]
    if COLLECTIVES[collective].gathers_all:
        assert all(members == set(range(size)) for members in heard)


@pytest.mark.parametrize(("collective", "name"), [key for key in ALGORITHMS if COLLECTIVES[key[0]].size is None])
def test_a_group_of_one_has_no_steps(collective: str, name: str) -> None:
    assert expand(collective, 1, name).steps == ()


def test_the_ring_of_three_is_the_one_drawn_by_hand() -> None:
    """Part 0 starts at member 1, is added to at 2 and ends at 0; then it travels on to 1 and 2."""
    moves = [
        [(t.source, t.target, t.part, t.reduces) for t in step.transfers] for step in expand("all_reduce", 3).steps
    ]
    assert moves == [
        [(0, 1, 2, True), (1, 2, 0, True), (2, 0, 1, True)],
        [(0, 1, 1, True), (1, 2, 2, True), (2, 0, 0, True)],
        [(0, 1, 0, False), (1, 2, 1, False), (2, 0, 2, False)],
        [(0, 1, 2, False), (1, 2, 0, False), (2, 0, 1, False)],
    ]


@pytest.mark.parametrize("size", [2, 3, 8])
def test_ring_steps_are_two_rounds_for_an_all_reduce_and_one_for_the_others(size: int) -> None:
    counts = {name: len(expand(name, size).steps) for name in COLLECTIVES if COLLECTIVES[name].size is None}
    one = size - 1
    assert counts == {"all_reduce": 2 * one, "reduce_scatter": one, "all_gather": one, "broadcast": one, "barrier": one}


def test_ring_steps_need_no_copies_and_a_swap_does() -> None:
    assert not any(step.needs_copies for step in expand("all_reduce", 8).steps)
    assert Step((Transfer(0, 1, 0), Transfer(1, 0, 0))).needs_copies


def test_plans_are_made_once_and_ring_is_the_default() -> None:
    assert expand("all_reduce", 8) is expand("all_reduce", 8)
    assert expand("all_reduce", 8) == expand("all_reduce", 8, "ring")
    assert algorithms_for("broadcast") == ("chain",)
    assert expand("all_reduce", 8).name == "ring all_reduce of 8"


def test_every_collective_has_an_algorithm() -> None:
    assert {collective for collective, _ in ALGORITHMS} == set(COLLECTIVES)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("all_reduse", 8), r"'all_reduse' is not a collective; did you mean all_reduce\? \(known: all_reduce, "),
        (("all_reduce", 8, "tree"), "no algorithm 'tree' for all_reduce; choose ring"),
        (("all_reduce", 0), "all_reduce over a group of 0; the group must have 1 or more members"),
        (("send_recv", 3), "send_recv over a group of 3; the group must have 2 members"),
        (("broadcast", 4, None, 4), "root 4 is not in the group; its members are 0 to 3"),
        (("broadcast", 4, None, -1), "root -1 is not in the group"),
    ],
)
def test_what_cannot_be_expanded_is_refused_with_what_can(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        expand(*arguments)  # type: ignore[arg-type]


def test_an_algorithm_that_clashes_or_serves_no_collective_is_an_error() -> None:
    expansion = ALGORITHMS["all_reduce", "ring"]
    with pytest.raises(AssertionError, match="ring for all_reduce already belongs to all_reduce"):
        algorithm("all_reduce", "ring")(expansion)
    with pytest.raises(AssertionError, match="star: all_redoes is no collective; known: all_reduce"):
        algorithm("all_redoes", "star")(expansion)
