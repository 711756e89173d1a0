"""Lowering: programs are legal, race-free, and hold exactly their shards."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from races import races

from siltwin.isa.dtype import BF16, FP32
from siltwin.isa.program import Binding, Space
from siltwin.isa.text import assemble, disassemble
from siltwin.isa.work import Unit
from siltwin.models.config import read_config
from siltwin.models.graph import build_graph, parameter_shapes, total_parameters
from siltwin.runtime.layout import Layout
from siltwin.runtime.lowering.arena import live_ranges
from siltwin.runtime.lowering.lower import LoweredProgram, lower
from siltwin.runtime.lowering.stage import LoweringOptions, Sampling

QUEUES = {
    Unit.TENSOR: "tensor",
    Unit.VECTOR: "vector",
    Unit.DMA: "dma0",
    Unit.HOST: "host",
    Unit.LINK: "link",
    Unit.CONTROL: "vector",
}
STREAMS = dict.fromkeys(Unit, "stream0") | {Unit.LINK: "stream1"}
LARGEST = Binding(
    {
        "tokens": (50,),
        "sequences": (3,),
        "rows": (3,),
        "pages": (12,),
        "table_pages": (4,),
        "positions": (64,),
        "q_lens": (20, 20, 10),
        "kv_lens": (20, 20, 10),
    },
    {"tp": 0, "pp": 0},
)


def graph(family: str = "qwen3", tied: bool = False, heads: int = 4, kv_heads: int = 2):
    raw = {
        "model_type": family,
        "vocab_size": 67,
        "hidden_size": 40,
        "intermediate_size": 24,
        "num_hidden_layers": 5,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": 8,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": tied,
    }
    if family == "llama":
        raw |= {"attention_bias": True, "mlp_bias": True}
    if family == "qwen2":
        del raw["head_dim"]
    return build_graph(read_config(raw))


def lowered(model, layout: Layout, rank: int, queues=QUEUES, **options) -> LoweredProgram:
    return lower(model, layout, rank, LoweringOptions(BF16, BF16, 16, queues, **options), LARGEST)


@pytest.mark.parametrize("queues", [QUEUES, STREAMS])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "mistral"])
@pytest.mark.parametrize("layout", [Layout(), Layout(tp=2), Layout(tp=2, pp=2), Layout(tp=4, pp=3)])
def test_programs_are_race_free_and_survive_their_text_form(family, layout, queues) -> None:
    model = graph(family, heads=8 if family != "qwen2" else 4)
    for rank in range(layout.cards):
        result = lowered(model, layout, rank, queues)
        assert races(result.program, result) == []
        assert assemble(disassemble(result.program)) == result.program


def test_the_race_check_sees_a_missing_wait() -> None:
    result = lowered(graph(), Layout(tp=2), 0)
    text = disassemble(result.program).replace(" | wait vector+1\n", "\n", 1)
    assert races(assemble(text), result)


@pytest.mark.parametrize("queues", [QUEUES, STREAMS])
@pytest.mark.parametrize("layout", [Layout(tp=2), Layout(tp=2, pp=2)])
def test_no_wait_within_a_block_can_be_dropped_unnoticed(layout: Layout, queues: dict[Unit, str]) -> None:
    """Every wait for an instruction of the same call is needed; those for earlier calls may imply one another."""
    result = lowered(graph("llama"), layout, layout.cards - 1, queues)
    dropped = 0
    for at, block in enumerate(result.program.blocks):
        for position, issue in enumerate(block.body):
            for wait in (wait for wait in issue.waits if wait[1]):
                body = list(block.body)
                body[position] = replace(issue, waits=tuple(other for other in issue.waits if other != wait))
                blocks = list(result.program.blocks)
                blocks[at] = replace(block, body=tuple(body))
                assert races(replace(result.program, blocks=tuple(blocks)), result), (block.name, position, wait)
                dropped += 1
    assert dropped >= 4


def test_locals_that_live_together_never_share_bytes() -> None:
    result = lowered(graph(), Layout(), 0)
    for block in result.program.blocks:
        ranges = live_ranges(block)
        for one, (first, last) in ranges.items():
            for other, (start, end) in ranges.items():
                if one >= other or last < start or end < first:
                    continue
                a, b = (result.arena.offsets[block.name, name] for name in (one, other))
                assert a + result.arena.sizes[block.name, one] <= b or b + result.arena.sizes[block.name, other] <= a


def test_the_arena_is_smaller_than_all_locals_together() -> None:
    result = lowered(graph(), Layout(), 0)
    largest = max(
        sum(size for (name, _), size in result.arena.sizes.items() if name == block.name)
        for block in result.program.blocks
    )
    assert 0 < result.arena.num_bytes < largest


def test_equal_layers_share_one_block() -> None:
    program = lowered(graph(), Layout(), 0).program
    assert [block.name for block in program.blocks] == ["inputs", "embed", "layer", "head"]
    assert sum(call.block == "layer" for call in program.calls) == 5


def test_programs_hold_no_lengths() -> None:
    """Decode and prefill of any size run the very same program: its text names extents only."""
    program = lowered(graph(), Layout(), 0).program
    shapes = [kind.shape for block in program.blocks for _, kind in (*block.params, *block.locals)]
    assert not any(50 in shape or 3 in shape for shape in shapes)


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(["llama", "qwen2", "qwen3", "mistral"]),
    st.booleans(),
    st.sampled_from([1, 2, 4]),
    st.integers(1, 5),
)
def test_weight_bytes_are_the_sum_of_the_shards(family: str, tied: bool, tp: int, pp: int) -> None:
    """Over all ranks every tensor element stands once, save what the layout replicates, counted by hand here."""
    model, layout = graph(family, tied), Layout(tp=tp, pp=pp)
    held: dict[str, int] = {}
    total = 0
    for rank in range(layout.cards):
        for buffer in lowered(model, layout, rank).weights:
            pieces = 0
            for piece in buffer.pieces:
                shape = list(parameter_shapes(model)[piece.tensor])
                if piece.axis is not None:
                    shape[piece.axis] = piece.stop - piece.start
                count = 1
                for dim in shape:
                    count *= dim
                held[piece.tensor] = held.get(piece.tensor, 0) + count
                pieces += count
            assert buffer.num_bytes == 2 * pieces
            total += pieces
    copies = 0
    for name, shape in parameter_shapes(model).items():
        count = 1
        for dim in shape:
            count *= dim
        times = 1
        if "norm" in name:
            times = tp
        elif ".k_proj" in name or ".v_proj" in name:
            times = max(1, tp // 2)
        elif name == model.embedding and tied and pp > 1:
            times = 2
        assert held[name] == times * count, name
        copies += (times - 1) * count
    assert total == total_parameters(model) + copies


def test_sampling_and_headless_programs_differ_where_they_should() -> None:
    drawn = lowered(graph(), Layout(), 0, sampling=Sampling(0.7, 5, 0.9)).program
    assert "sample" in disassemble(drawn) and "argmax" not in disassemble(drawn)
    headless = lowered(graph(), Layout(), 0, head="none").program
    assert "head" not in headless.block
    assert not any(buffer.space is Space.HOST and buffer.name == "host.picked" for buffer in headless.buffers)


def test_fp32_weights_take_twice_the_bytes_of_bf16() -> None:
    model = graph()
    sizes = [
        sum(w.num_bytes for w in lower(model, Layout(), 0, LoweringOptions(d, d, 16, QUEUES), LARGEST).weights)
        for d in (BF16, FP32)
    ]
    assert sizes[1] == 2 * sizes[0] == 4 * total_parameters(model)
