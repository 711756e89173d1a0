"""Every registered algorithm keeps the promise of its collective, shown part by part without any numbers."""

from collections import Counter

import pytest

from siltwin.interconnect.collectives.expand import expand
from siltwin.interconnect.collectives.plan import SIGNAL, Plan, Step, Transfer
from siltwin.interconnect.collectives.registry import ALGORITHMS, COLLECTIVES, Options, algorithm, algorithms_for
from siltwin.isa.errors import ConfigError

SIZES = [1, 2, 3, 4, 5, 8, 12, 13]
SHAPES = {4: (2, 2), 8: (2, 2, 2), 12: (3, 4)}
CASES = [
    (collective, name, size, root)
    for collective, name in ALGORITHMS
    for size in SIZES
    if COLLECTIVES[collective].size in (None, size)
    if not name.startswith("hierarchical") or size == 1 or size in SHAPES
    for root in ((range(size) if size < 6 else (0, 2, size - 1)) if COLLECTIVES[collective].rooted else [0])
]
FLAT_SIZES = [2, 3, 4, 5, 8, 12, 13]


def plan_of(collective: str, name: str, size: int, root: int = 0) -> Plan:
    options = Options(shape=SHAPES[size]) if name.startswith("hierarchical") and size > 1 else Options()
    return expand(collective, size, name, root, options)


def given_part(plan: Plan, part: int) -> int:
    """The part that callers name in which a part of the plan lies; those that tile one buffer are all alike."""
    return part // (plan.parts // plan.given) if plan.cuts_each_part else 0


def contributions_after(plan: Plan) -> dict[tuple[int, int], Counter[int]]:
    """Whose contributions, and how often, stand in (member, part) when every transfer has run."""
    begins = COLLECTIVES[plan.collective].begins
    held = {
        (member, part): Counter(begins(member, given_part(plan, part), plan.size, plan.root))
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
    return {place: found for place, found in held.items() if place[0] < plan.size}


@pytest.mark.parametrize(("collective", "name", "size", "root"), CASES)
def test_every_contribution_ends_where_the_collective_promises_and_once(
    collective: str, name: str, size: int, root: int
) -> None:
    plan = plan_of(collective, name, size, root)
    for (member, part), found in contributions_after(plan).items():
        promised = COLLECTIVES[collective].ends(member, given_part(plan, part), size, root)
        assert promised is None or found == Counter(promised), (member, part)


@pytest.mark.parametrize(("collective", "name", "size", "root"), CASES)
def test_every_transfer_joins_two_members_and_moves_a_part_of_the_plan(
    collective: str, name: str, size: int, root: int
) -> None:
    plan = plan_of(collective, name, size, root)
    assert plan.given == COLLECTIVES[collective].parts(size)
    members = set(range(size + plan.uses_switch))  # the switch counts as one more
    for step in plan.steps:
        assert step.transfers
        for move in step.transfers:
            assert move.source != move.target
            assert {move.source, move.target} <= members
            assert move.part in range(plan.parts) or (move.part == SIGNAL and not move.reduces)


@pytest.mark.parametrize(("collective", "name", "size", "root"), CASES)
def test_no_member_is_done_before_all_have_come_where_the_collective_says_so(
    collective: str, name: str, size: int, root: int
) -> None:
    heard = [{member} for member in range(size)] + [set()]
    for step in plan_of(collective, name, size, root).steps:
        before = [set(members) for members in heard]
        for move in step.transfers:
            heard[move.target] |= before[move.source]
    if COLLECTIVES[collective].gathers_all:
        assert all(members == set(range(size)) for members in heard[:size])


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


@pytest.mark.parametrize("size", FLAT_SIZES)
def test_the_numbers_of_steps_are_those_that_the_algorithms_are_known_for(size: int) -> None:
    ring, log = size - 1, (size - 1).bit_length()
    folds = 0 if size & (size - 1) == 0 else 1
    core = size.bit_length() - 1
    expected = {
        ("all_reduce", "ring"): 2 * ring,
        ("all_reduce", "ring_both_ways"): 2 * ring,
        ("all_reduce", "direct"): 2,
        ("all_reduce", "halving_doubling"): 2 * core + 2 * folds,
        ("all_reduce", "in_switch"): 33,
        ("reduce_scatter", "ring"): ring,
        ("reduce_scatter", "halving_doubling"): core + 2 * folds,
        ("all_gather", "ring"): ring,
        ("all_gather", "halving_doubling"): core + 2 * folds,
        ("all_to_all", "direct"): 1,
        ("all_to_all", "pairwise"): ring,
        ("all_to_all", "ring"): size * ring // 2,
        ("broadcast", "chain"): ring,
        ("broadcast", "binomial"): log,
        ("reduce", "binomial"): log,
        ("scatter", "binomial"): log,
        ("gather", "binomial"): log,
        ("barrier", "ring"): ring,
        ("barrier", "dissemination"): log,
        ("barrier", "in_switch"): 2,
    }
    assert {key: expand(key[0], size, key[1]).num_steps for key in expected} == expected


@pytest.mark.parametrize("size", FLAT_SIZES)
def test_a_double_binary_tree_has_a_step_for_every_chunk_and_level(size: int) -> None:
    """c chunks over depth d and back: c - 1 + 2d steps, of which 2d meet a latency; depth is that of NCCL's tree."""
    plan = expand("all_reduce", size, "double_binary_tree", options=Options(chunks=5))
    depth = (size - 1).bit_length()
    assert plan.num_steps == 4 + 2 * depth
    assert plan.moves.streamed.tolist() == [False] * 2 * depth + [True] * 4
    assert plan.parts == 10


@pytest.mark.parametrize("size", [4, 5, 8, 13])
def test_every_member_is_a_leaf_of_one_of_the_two_trees_but_for_the_odd_one(size: int) -> None:
    plan = expand("all_reduce", size, "double_binary_tree", options=Options(chunks=1))
    inner = [set(), set()]  # type: list[set[int]]
    for step in plan.steps:
        for move in step.transfers:
            if move.reduces:
                inner[move.part].add(move.target)
    assert len(inner[0] & inner[1]) <= 1 + size % 2


def test_chunks_follow_one_another_down_a_chain() -> None:
    """Three members, two chunks: (0>1 c0), (0>1 c1, 1>2 c0), (1>2 c1); the third step is on the heels of the second."""
    plan = expand("broadcast", 3, "chain", options=Options(chunks=2))
    moves = [[(t.source, t.target, t.part) for t in step.transfers] for step in plan.steps]
    assert moves == [[(0, 1, 0)], [(0, 1, 1), (1, 2, 0)], [(1, 2, 1)]]
    assert [step.streamed for step in plan.steps] == [False, False, True]


def test_rings_over_nodes_cross_between_cards_of_equal_place() -> None:
    """4 nodes of 3: every ring enters and leaves nodes on one rail, and every card's rail is left by one ring."""
    plan = expand("all_gather", 12, "rings", options=Options(shape=(4, 3)))
    crossing = [(t.source, t.target) for t in plan.steps[0].transfers if t.source // 3 != t.target // 3]
    assert len(crossing) == 4 * 3
    assert all(source % 3 == target % 3 for source, target in crossing)
    assert len({source for source, _ in crossing}) == len({target for _, target in crossing}) == 12


def test_rings_in_a_mesh_share_no_link() -> None:
    plan = expand("all_reduce", 8, "rings")
    links = [(t.source, t.target) for t in plan.steps[0].transfers]
    assert len(links) == len(set(links)) == 4 * 8  # strides 1, 3, 5, 7


def test_ring_steps_need_no_copies_and_a_swap_does() -> None:
    assert not any(step.needs_copies for step in expand("all_reduce", 8).steps)
    assert Step((Transfer(0, 1, 0), Transfer(1, 0, 0))).needs_copies


def test_plans_are_made_once_and_ring_is_the_default() -> None:
    assert expand("all_reduce", 8) is expand("all_reduce", 8)
    assert expand("all_reduce", 8) == expand("all_reduce", 8, "ring")
    assert expand("all_reduce", 8) is expand("all_reduce", 8, "ring")
    assert {name: algorithms_for(name)[0] for name in COLLECTIVES} == {
        "all_reduce": "ring",
        "reduce_scatter": "ring",
        "all_gather": "ring",
        "all_to_all": "direct",
        "broadcast": "chain",
        "reduce": "chain",
        "scatter": "direct",
        "gather": "direct",
        "barrier": "ring",
        "send_recv": "direct",
        "send_recv_reduce": "direct",
    }
    assert expand("all_reduce", 8).name == "ring all_reduce of 8"


def test_every_collective_has_an_algorithm() -> None:
    assert {collective for collective, _ in ALGORITHMS} == set(COLLECTIVES)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("all_reduse", 8), r"'all_reduse' is not a collective; did you mean all_reduce\? \(known: all_reduce, "),
        (("all_reduce", 8, "tree"), "no algorithm 'tree' for all_reduce; choose ring, "),
        (
            ("all_reduce", 8, "ring", 0, Options(chunks=4)),
            "ring all_reduce takes no option chunks .got 4.; it takes: none",
        ),
        (("broadcast", 8, "chain", 0, Options(chunks=1 << 17)), "chunks=131072 of chain broadcast; choose 1 to 65536"),
        (("all_reduce", 8, "hierarchical"), "needs their shape, outermost first, .* product 8; got .."),
        (("all_reduce", 8, "hierarchical", 0, Options(shape=(3, 2))), "product 8; got .3, 2."),
        (
            ("all_reduce", 8, "rings", 0, Options(rails=5)),
            "rails=5 of rings over 8 members; there are 4 different ones",
        ),
        (("all_reduce", 1 << 15), "ring all_reduce of 32768 is about 2147483648 transfers, more than 33554432"),
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
    expansion = ALGORITHMS["all_reduce", "ring"].make
    with pytest.raises(AssertionError, match="ring for all_reduce already belongs to all_reduce"):
        algorithm("all_reduce", "ring")(expansion)
    with pytest.raises(AssertionError, match="star: all_redoes is no collective; known: all_reduce"):
        algorithm("all_redoes", "star")(expansion)
