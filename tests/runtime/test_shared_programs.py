"""Ranks share programs: what a rank's own lowering gives is the very program of its class, with other weights."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siltwin.isa.dma import COPY
from siltwin.isa.dtype import FP32
from siltwin.isa.errors import ConfigError, NotYetError
from siltwin.isa.instruction import TensorType
from siltwin.isa.operands import Ref
from siltwin.isa.program import Block, Extent, Issue, Program
from siltwin.isa.work import Unit
from siltwin.runtime.binding import step_bindings
from siltwin.runtime.job import Job
from siltwin.runtime.lowering.passes.compositions import Composing, NotComposed
from siltwin.runtime.lowering.passes.rewrite import BlockEditor
from siltwin.runtime.lowering.passes.window import Window
from siltwin.runtime.lowering.standing import PART, VOCABULARY, experts_at, experts_first, latent_first
from siltwin.runtime.plan import JobPlan
from siltwin.runtime.prepare import prepare

MODELS = (
    "DeepSeek-V3",
    "GLM-5.1",
    "gpt-oss-120b",
    "Kimi-K3",
    "Kimi-Linear-48B-A3B",
    "Llama-3.1-405B",
    "Llama-4-Maverick",
    "Mixtral-8x22B",
    "Qwen3-Next-80B-A3B",
    "SmolLM2-135M",
)
LAYOUTS = (
    "tp=2",
    "tp=3",
    "tp=4",
    "tp=2,pp=2",
    "tp=2,cp=2",
    "tp=2,dp=2,ep=4",
    "tp=2,dp=2,ep=2",
    "tp=4,ep=2",
    "tp=4,ep=4",
    "tp=2,dp=2,ep=2,etp=2",
    "tp=2,dp=4,ep=2,etp=4",
    "tp=4,dp=2,ep=4,etp=2",
)
OPTIONS = ({}, {"weights": "mxfp4"}, {"weights": "int4"}, {"sequence_parallel": True}, {"redundant_experts": 2})


def plan_of(model: str, layout: str, **options: object) -> JobPlan:
    sizes = {"batch": 4, "input_len": 9, "output_len": 1, "payload": False}
    return prepare(Job(model=model, scale=True, card="ascend-910c", layout=layout, **sizes, **options)).plan


@settings(max_examples=12, deadline=None)
@given(st.sampled_from(MODELS), st.sampled_from(LAYOUTS), st.sampled_from(OPTIONS))
def test_the_program_of_a_class_is_what_each_of_its_ranks_is_lowered_to_alone(model, layout, options):
    try:
        plan = plan_of(model, layout, **options)
    except (ConfigError, NotYetError):
        return
    for variant in plan.variants:
        alone = {rank: plan._build(rank, variant).program for rank in range(plan.layout.cards)}
        for rank, own in enumerate(plan.classes):
            assert alone[rank] == plan.outlined(rank, variant).program
            assert plan.lowered(rank, variant) is plan.lowered(own, variant)
        representatives = [alone[own] for own in dict.fromkeys(plan.classes)]
        assert all(a != b for at, a in enumerate(representatives) for b in representatives[:at])


def test_ranks_of_one_class_hold_other_pieces_in_buffers_of_the_same_sizes():
    plan = plan_of("Kimi-K3", "tp=2,dp=2,ep=2,etp=2")
    assert set(plan.classes) == {0} and plan.twins == (0, 1, 2, 3)
    weights = [plan.weights(rank) for rank in range(4)]
    assert all([w.type for w in own] == [w.type for w in weights[0]] for own in weights)
    assert len({tuple(w.pieces for w in own) for own in weights}) == 4


def test_every_rank_binds_where_its_shares_begin():
    plan = plan_of("Kimi-K3", "tp=2,ep=2")  # no token travels: each rank computes its experts of all tokens
    graph = plan.graph
    moe = graph.layers[-1].mlp
    count, width = moe.experts.count, moe.latent.up.in_features
    step = plan.lanes(plan.requests()).next_step()
    for rank, binding in enumerate(step_bindings(plan, step)):
        assert binding.extents[VOCABULARY] == (rank * -(-graph.vocab_size // 2),)
        assert binding.extents[experts_first(count)] == binding.extents[experts_at(count)] == (rank * count // 2,)
        assert binding.extents[PART] == (0,) and binding.extents[latent_first(width)] == (rank * width // 2,)
    plan = plan_of("Kimi-K3", "tp=2,dp=2,ep=4")  # tokens travel: each rank sends every second token to all experts
    for rank, binding in enumerate(step_bindings(plan, plan.lanes(plan.requests()).next_step())):
        assert binding.extents[experts_first(count)] == (0,)
        assert binding.extents[PART] == (rank % 2,) and binding.extents[experts_at(count)] == (rank % 2 * count,)


def test_passes_take_columns_that_begin_at_an_extent_for_any_of_their_buffer():
    kinds = {"x": TensorType(FP32, (3, 2)), "wide": TensorType(FP32, (3, 8))}
    first, own, some = Ref("wide", 0, 2), Ref("wide", 0, 2, "first"), Ref("wide", 4, 2)
    body = tuple(Issue("q", i) for i in (COPY(first, Ref("x")), COPY(some, Ref("x")), COPY(Ref("x"), own)))
    block = Block("b", (("x", kinds["x"]),), (("wide", kinds["wide"]),), body)
    program = Program("p", ("q",), (Extent("first"),), (), (), (), (block,), ())
    editor = BlockEditor(program, block, dict.fromkeys(Unit, "q"))
    window = Window(editor, body, ())
    assert window.only_readers(0, first) == [2] and window.only_readers(0, own) is None
    with pytest.raises(NotComposed, match=r"%wide\[first:\+2\] begins where an extent says"):
        Composing(editor).columns(own, 0, 1)
    assert Composing(editor).columns(some, 1, 1) == Ref("wide", 5, 1)


@pytest.mark.parametrize(("weights", "classes"), [(None, 1), ("mxfp4", 1)])
def test_cuts_that_are_whole_blocks_leave_one_program_for_all_cards(weights, classes):
    plan = prepare(
        Job(
            model="DeepSeek-V3",
            card="ascend-910c",
            layout="tp=4,dp=8,ep=32",
            batch=8,
            input_len=64,
            payload=False,
            weights=weights,
        )
    ).plan
    assert len(set(plan.classes)) == classes and plan.lowered(31, plan.variants[0]) is plan.lowered(0, plan.variants[0])
