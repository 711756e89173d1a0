"""Layers made of an earlier one by renaming are those that lowering each for itself gives, to the last name."""

from dataclasses import replace

import pytest

from siltwin.isa.errors import SiltwinError
from siltwin.models.shelf import shipped_configs
from siltwin.runtime.job import Job
from siltwin.runtime.layout import Layout
from siltwin.runtime.lowering import decoder
from siltwin.runtime.lowering.held import Held
from siltwin.runtime.lowering.templates import Renaming, layer_kind
from siltwin.runtime.plan import JobPlan
from siltwin.runtime.prepare import prepare

SIZES = {"card": "ascend-910c", "batch": 2, "input_len": 8, "output_len": 1, "payload": False}


def fresh(plan: JobPlan) -> JobPlan:
    return replace(plan, _built={})


def one_by_one(plan: JobPlan, monkeypatch: pytest.MonkeyPatch) -> JobPlan:
    """A plan whose layers are all lowered."""
    monkeypatch.setattr(decoder, "_templated", decoder._layer)
    made = fresh(plan)
    for variant in made.variants:
        made.outlined(0, variant)
    monkeypatch.undo()
    return made


def assert_alike(plan: JobPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    other, plan = one_by_one(plan, monkeypatch), fresh(plan)
    for variant in plan.variants:
        ours, theirs = plan.outlined(0, variant), other.outlined(0, variant)
        assert not theirs.held.repeats
        assert ours.program == theirs.program
        assert ours.weights == theirs.weights
    assert plan.weight_bytes(0) == other.weight_bytes(0)


QUICK = ("gpt-oss-120b", "Kimi-Linear-48B-A3B", "Llama-3.1-405B", "Qwen3-Next-80B-A3B")
CASES = [
    *(pytest.param(m, None, marks=[] if m in QUICK else pytest.mark.long) for m in sorted(shipped_configs())),
    pytest.param("Kimi-K3", "mxfp4", marks=pytest.mark.long),
]


@pytest.mark.parametrize(("model", "weights"), CASES)
def test_big_models_are_lowered_as_layer_by_layer(model, weights, monkeypatch):
    try:
        job = Job(model=model, weights=weights, **SIZES)
        plan = prepare(job).plan
    except SiltwinError as error:  # what no program computes yet is refused with a word
        pytest.skip(str(error)[:80])
    graph = plan.graph
    ep = min((layer.mlp.experts.count for layer in graph.layers if hasattr(layer.mlp, "experts")), default=1)
    plan = replace(plan, layout=Layout(dp=ep, ep=ep), _built={})
    assert_alike(plan, monkeypatch)
    assert len(plan.outlined(0, plan.variants[0]).held.repeats) > len(graph.layers) / 3


def test_layers_whose_tensors_are_held_otherwise_are_lowered_for_themselves(monkeypatch):
    plan = prepare(Job(model="Mixtral-8x22B", scale=True, weights="int8", **SIZES)).plan
    layers, scheme = plan.graph.layers, plan.holding.scheme
    odd = layers[1].attention.out.weights[0]
    plan = replace(plan, holding=replace(plan.holding, scheme=None, stored={odd: Held(scheme)}), _built={})
    assert_alike(plan, monkeypatch)
    built = plan.outlined(0, plan.variants[0])
    assert f"layers.{layers[1].index}.out.codes" in built.program.buffer
    assert len({call.block for call in built.program.calls if call.block.startswith("layer")}) >= 2


def test_a_number_that_is_an_expert_s_is_not_taken_for_the_layer_s():
    assert Renaming(12, 13).tensor("model.layers.12.experts.12.w") == "model.layers.13.experts.12.w"
    assert (
        Renaming(1, 2).name("layers.1.out") == "layers.2.out"
        and Renaming(1, 2).name("layers.11.out") == "layers.11.out"
    )
    graph = prepare(Job(model="Mixtral-8x22B", scale=True, **SIZES)).checkpoint.graph
    first, second = graph.layers[:2]
    assert (
        layer_kind(first)
        == layer_kind(second)
        != layer_kind(replace(second, attention=replace(second.attention, window=7)))
    )

    def bare(layer):  # a pattern in which no layer is named before the expert
        return replace(layer, mlp=replace(layer.mlp, experts=replace(layer.mlp.experts, down="experts.{}.down")))

    assert layer_kind(bare(first)) != layer_kind(bare(second))
