"""Measured layers: read with their columns, and compared with a prefill of a model of one such layer."""

from pathlib import Path

import pytest

from siltwin.emulator.spec import load_card
from siltwin.emulator.units.demand import demand
from siltwin.isa.errors import ConfigError
from siltwin.isa.program import Binding, BoundShapes
from siltwin.runtime.calibration.works import gemm_block
from siltwin.runtime.fidelity.layers import COUNTS, OPERATORS, TIME, LayerRow, Shape, emulated_layers, measured_layers

LLAMA_2_7B = Shape(heads=32, kv_heads=32, width=4096, inner=11008, vocabulary=32000)


def written(folder: Path, **changes: str) -> Path:
    values = dict(zip(COUNTS, ("32", "32", "4096", "11008", "32000", "512", "2"), strict=True))
    values |= {TIME.format(own): "0.25" for own in OPERATORS} | {"use_gated_mlp": "True"} | changes
    path = folder / "mlp.csv"
    path.write_text(",".join(values) + "\n" + ",".join(values.values()) + "\n")
    return path


def test_a_row_has_the_sizes_of_its_layer_and_a_time_of_every_operator(tmp_path: Path) -> None:
    (row,) = measured_layers(written(tmp_path))
    assert row == LayerRow(LLAMA_2_7B, 512, 2, dict.fromkeys(OPERATORS, 0.25))


@pytest.mark.parametrize(
    ("name", "value", "wrong"),
    [
        (TIME.format("mlp_act"), "2500", "mlp.csv:2: time_stats.mlp_act.median='2500' must be a number"),
        ("num_tokens", "-1", "num_tokens='-1'"),
        ("use_gated_mlp", "False", "only gated feed-forwards"),
    ],
)
def test_a_wrong_row_is_refused_with_its_line(tmp_path: Path, name: str, value: str, wrong: str) -> None:
    with pytest.raises(ConfigError, match=wrong):
        measured_layers(written(tmp_path, **{name: value}))


def test_products_of_a_layer_take_what_they_take_alone() -> None:
    """On two cards: q, k and v of 16 heads each; gate and up of half of 11,008; o and down with half of the input."""
    card = load_card("a100-sxm")
    row = LayerRow(LLAMA_2_7B, 512, 2, dict.fromkeys(OPERATORS, 1.0))
    (found,) = emulated_layers([row], card)
    sizes = {
        "attn_pre_proj": (6144, 4096),
        "attn_post_proj": (4096, 2048),
        "mlp_up_proj": (11008, 4096),
        "mlp_down_proj": (4096, 5504),
    }
    for name, (n, k) in sizes.items():
        block, extents = gemm_block({"gemm_dtype": "fp16", "m": 512, "n": n, "k": k})
        work = block.body[0].instruction.work(BoundShapes(block, {}, Binding(extents, {})))
        alone = demand(work, card)
        assert found[name] == (alone.fixed_ps + alone.alone_ps) / 1e9
