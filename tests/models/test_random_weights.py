"""Random weights are a function of seed, name and place alone."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siltwin.isa.dtype import BF16, FP16, FP32, INT32, encode
from siltwin.isa.errors import ConfigError, NotYetError
from siltwin.models.checkpoint import open_checkpoint, random_checkpoint
from siltwin.models.config import read_config
from siltwin.models.random_weights import RandomStore
from siltwin.models.scale import scaled
from siltwin.models.shelf import shipped_configs

SHAPES = {"w.weight": (97, 700), "v.weight": (97, 700), "norm.weight": (1000,), "q.bias": (1000,)}
# drawn once; a change here changes every golden number that rests on random weights
GOLDEN = [[-0.6580248, -0.1853993, 0.1338526], [0.24220765, -0.38892025, 0.033623338]]
LLAMA = read_config(shipped_configs()["Llama-3.1-405B"])


@settings(deadline=None)
@given(st.data(), st.sampled_from(["w.weight", "q.bias"]))
def test_a_slice_of_a_tensor_is_the_tensor_s_slice(data: st.DataObject, name: str) -> None:
    store = RandomStore(SHAPES, seed=5)
    axis = data.draw(st.integers(0, len(SHAPES[name]) - 1))
    start = data.draw(st.integers(0, SHAPES[name][axis]))
    stop = data.draw(st.integers(start, SHAPES[name][axis]))
    whole = store.read(name, 0, 0, SHAPES[name][0])
    index = (slice(None),) * axis + (slice(start, stop),)
    assert np.array_equal(store.read(name, axis, start, stop), whole[index])


def test_order_of_loading_changes_nothing_and_seed_and_name_change_everything() -> None:
    first, second = RandomStore(SHAPES, 1), RandomStore(SHAPES, 1)
    second.read("v.weight", 0, 0, 97)
    w = first.read("w.weight", 0, 0, 97)
    assert np.array_equal(w, second.read("w.weight", 0, 0, 97))
    for other in (first.read("v.weight", 0, 0, 97), RandomStore(SHAPES, 2).read("w.weight", 0, 0, 97)):
        assert abs(np.corrcoef(w.ravel(), other.ravel())[0, 1]) < 0.02


def test_the_draw_is_the_same_on_every_machine() -> None:
    drawn = RandomStore({"w": (2, 3)}, 0).read("w", 0, 0, 2)
    np.testing.assert_array_equal(drawn, np.array(GOLDEN, np.float32))


def test_matrices_norms_and_biases_have_the_stated_spread() -> None:
    store = RandomStore(SHAPES, 0)
    w, norm, bias = (store.read(name, 0, 0, SHAPES[name][0]) for name in ("w.weight", "norm.weight", "q.bias"))
    # 67,900 and 1,000 draws: the mean is within 4 standard errors, the spread within some percent
    assert abs(w.mean()) < 4 * 700**-0.5 / 67_900**0.5
    assert w.std() == pytest.approx(700**-0.5, rel=0.01)
    assert norm.mean() == pytest.approx(1, abs=0.013)
    assert norm.std() == pytest.approx(0.1, rel=0.05)
    assert abs(bias.mean()) < 0.013
    assert bias.std() == pytest.approx(0.1, rel=0.05)


def test_a_shard_of_the_405b_costs_what_the_shard_costs() -> None:
    checkpoint = random_checkpoint(LLAMA)
    part = checkpoint.load("model.layers.125.mlp.down_proj.weight", BF16, 8_000, 8_300, axis=1)
    assert part.shape == (16384, 300)
    assert part.dtype == np.uint16


@pytest.mark.parametrize("dtype", [FP32, FP16, BF16])
def test_load_rounds_to_the_requested_dtype(dtype: object) -> None:
    checkpoint = random_checkpoint(scaled(LLAMA))
    stored, own = checkpoint.tensor("model.layers.0.self_attn.q_proj.weight", 3, 9)
    assert own is FP32
    loaded = checkpoint.load("model.layers.0.self_attn.q_proj.weight", dtype, 3, 9)  # type: ignore[arg-type]
    assert loaded.flags.c_contiguous
    assert np.array_equal(loaded, encode(stored, dtype))  # type: ignore[arg-type]


def test_names_slices_and_dtypes_that_do_not_exist_are_refused() -> None:
    checkpoint = random_checkpoint(scaled(LLAMA))
    with pytest.raises(ConfigError, match="no tensor 'x'"):
        checkpoint.tensor("x")
    with pytest.raises(ConfigError, match="axis 1 is none"):
        checkpoint.tensor("model.norm.weight", axis=1)
    with pytest.raises(ConfigError, match=r"slice \[0, 9999\)"):
        checkpoint.tensor("model.norm.weight", 0, 9999)
    with pytest.raises(NotYetError, match="int32"):
        checkpoint.load("model.norm.weight", INT32)
    with pytest.raises(ConfigError, match="has no tokenizer"):
        checkpoint.require_tokenizer()


def test_the_seed_of_the_door_reaches_the_weights() -> None:
    one, same, two = (open_checkpoint("SmolLM2-135M", seed=seed) for seed in (1, 1, 2))
    name = "model.layers.0.mlp.up_proj.weight"
    assert np.array_equal(one.load(name, BF16, 0, 4), same.load(name, BF16, 0, 4))
    assert not np.array_equal(one.load(name, BF16, 0, 4), two.load(name, BF16, 0, 4))
    assert "random weights (seed 1)" in one.source
