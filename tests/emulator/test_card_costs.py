"""What is computed once and kept: timelines by program, costs by site and by the extents that a Work reads."""

from dataclasses import replace
from typing import Any

import pytest

from siltwin.emulator.costs import KEPT_BINDINGS, Costs
from siltwin.emulator.spec import override
from siltwin.emulator.timeline import Timeline
from siltwin.isa.errors import ProgramError, UnsupportedError
from siltwin.isa.program import Binding

MATMUL = "tensor | matmul dst=%y a=%x w=%w bias=-"
ADD = "vector | add dst=%t a=%t b=%t"
GATHER = "link | all_gather dst=%c src=%part group=all axis=rows"
SCATTER = "link | reduce_scatter dst=%part src=%c group=all"


def test_ninety_three_equal_layers_are_costed_once(rig: Any) -> None:
    timeline = Timeline(rig().program(f"{MATMUL}\n{ADD}", calls=93))
    assert len(timeline.sites) == 2
    assert len(timeline.queues["tensor"]) == len(timeline.queues["vector"]) == 93


def test_waits_are_absolute_and_only_those_that_may_hold(rig: Any) -> None:
    body = f"{MATMUL}\n{MATMUL} | wait tensor+1\n{ADD} | wait tensor+2\n{ADD} | wait tensor+1, vector+1"
    timeline = Timeline(rig().program(body, calls=2))
    assert timeline.semaphores[:2] == ("tensor", "vector")
    assert [entry.waits for entry in timeline.queues["tensor"]] == [(), (), (), ()]
    assert [entry.waits for entry in timeline.queues["vector"]] == [((0, 2),), (), ((0, 4),), ()]


def test_only_what_read_a_changed_extent_is_evaluated_again(rig: Any) -> None:
    one = rig()
    costs = Costs(Timeline(one.program(f"{MATMUL}\n{ADD}")), one.spec)
    short, long, again = (costs.of(Binding({"tokens": (tokens,)}, {"all": 0})) for tokens in (1, 2, 1))
    assert short[0] is long[0] and short[1] is not long[1]
    assert long[1].work.ops == 2 * short[1].work.ops
    assert all(old is new for old, new in zip(short, again, strict=True))


def test_an_instruction_that_asks_for_its_place_in_the_group_is_asked_at_every_place(rig: Any) -> None:
    four = rig(4)
    costs = Costs(Timeline(four.program(f"{MATMUL}\n{SCATTER}\n{MATMUL}")), four.spec)
    extents = {"tokens": (1,)}
    first, second = (costs.of(Binding(extents, {"all": index})) for index in (0, 1))
    assert all(old is new for old, new in zip(first, second, strict=True))  # equal Work, equal cost
    with pytest.raises(ProgramError, match="index in group 'all' is 4; the group has 4 ranks"):
        costs.of(Binding(extents, {"all": 4}))


def test_ranks_that_share_their_extents_are_answered_with_the_same_list(rig: Any) -> None:
    four = rig(4)
    costs = Costs(Timeline(four.program(f"{MATMUL}\n{ADD}")), four.spec)
    extents = {"tokens": (7,)}
    first = costs.answers(Binding(extents, {"all": 0}))
    assert costs.answers(Binding(extents, {"all": 3})) is first
    assert costs.answers(Binding(dict(extents), {"all": 0})) is not first


def test_equal_instructions_of_different_blocks_are_costed_once(rig: Any) -> None:
    # b and its copy say the same over buffers of equal types; the third instruction is another form
    one = rig()
    program = one.program(f"{MATMUL}\n{ADD}\nvector | add dst=%t a=%t b=%t\nvector | add dst=%d a=%c b=%d")
    (block,) = program.blocks
    twice = replace(
        program,
        blocks=(block, replace(block, name="other")),
        calls=(*program.calls, replace(program.calls[0], block="other")),
    )
    timeline = Timeline(twice)
    assert len(timeline.sites) == 8 and timeline.asked.tolist() == [0, 1, 1, 2, 0, 1, 1, 2]
    costs = Costs(timeline, one.spec).of(Binding({"tokens": (3,)}, {}))
    assert costs[0] is costs[4] and costs[1] is costs[2] is costs[6] and costs[1] is not costs[3]


def test_old_bindings_are_forgotten(rig: Any) -> None:
    one = rig()
    costs = Costs(Timeline(one.program(ADD)), one.spec)
    for tokens in range(1, 2 * KEPT_BINDINGS):
        costs.of(Binding({"tokens": (tokens,)}, {}))
    assert sum(len(table) for table in costs._memo[0].values()) <= KEPT_BINDINGS


def test_operations_of_unchanged_costs_are_kept(rig: Any) -> None:
    one = rig()
    program = one.program(f"{MATMUL}\n{ADD}")
    first, second = (one.cluster.submit([one.submission(0, program, tokens)]) for tokens in (64, 32))
    one.cluster.run_until(second)
    assert first.runs[0].timeline is second.runs[0].timeline
    assert first.runs[0].ops[0] is second.runs[0].ops[0]
    assert first.runs[0].ops[1] is not second.runs[0].ops[1]


def test_a_perturbed_extent_moves_the_span(rig: Any) -> None:
    # 16 rows a core of 13 cycles; of 65 rows one core has 17.
    times = [span.end_ps for tokens in (64, 65) for span in rig().run(ADD, tokens=tokens)]
    assert times == [500_000 + 208_000, 500_000 + 221_000]


def test_what_a_card_cannot_do_is_named_with_its_instruction(rig: Any) -> None:
    one = rig()
    program = one.program("vector | add dst=%t a=%t b=%t")
    card = override(one.spec, {"vector.dtypes": "fp32"})
    with pytest.raises(UnsupportedError, match=r"program p, block b, instruction 0 \(add .*no vector lanes for bf16"):
        Costs(Timeline(program), card).of(Binding({"tokens": (1,)}, {}))


def test_a_program_that_is_not_legal_has_no_timeline(rig: Any) -> None:
    program = rig().program(MATMUL)
    with pytest.raises(ProgramError):
        Timeline(replace(program, queues=("vector",)))
