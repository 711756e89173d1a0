"""align against planted faults: the cards run a damaged copy, the reference the sound checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import save
from click.testing import CliRunner
from planted import Weights, plant

from siltwin.cli import cli
from siltwin.runtime.align import align
from siltwin.runtime.job import Job

DTYPES = ["float32", "bfloat16", "float16"]
BF16_AND_LONG = ["bfloat16", *(pytest.param(dtype, marks=pytest.mark.long) for dtype in ("float32", "float16"))]


def layer(index: int, name: str) -> str:
    return f"model.layers.{index}.{name}"


def doubled_theta(config: Weights, weights: Weights) -> None:
    config["rope_parameters"]["rope_theta"] *= 2


def another_activation(config: Weights, weights: Weights) -> None:
    config["hidden_act"] = "gelu"


def swapped_layers(config: Weights, weights: Weights) -> None:
    for name in [name for name in weights if name.startswith(layer(2, ""))]:
        other = layer(3, name.removeprefix(layer(2, "")))
        weights[name], weights[other] = weights[other].copy(), weights[name].copy()


def swapped_down_projections(config: Weights, weights: Weights) -> None:
    one, other = layer(2, "mlp.down_proj.weight"), layer(3, "mlp.down_proj.weight")
    weights[one], weights[other] = weights[other].copy(), weights[one].copy()


def norm_a_tenth_too_large(config: Weights, weights: Weights) -> None:
    weights[layer(4, "input_layernorm.weight")] *= 1.1


def final_norm_too_large(config: Weights, weights: Weights) -> None:
    weights["model.norm.weight"] *= 1.2


def missing_bias(config: Weights, weights: Weights) -> None:
    weights[layer(1, "self_attn.v_proj.bias")] *= 0


def one_row_of_noise(config: Weights, weights: Weights) -> None:
    row = weights[layer(3, "mlp.down_proj.weight")][7]
    row[:] = np.random.default_rng(0).normal(size=row.size) * row.std()


def one_row_of_keys_negated(config: Weights, weights: Weights) -> None:
    weights[layer(3, "self_attn.k_proj.weight")][3] *= -1


def one_embedding_a_fifth_too_large(config: Weights, weights: Weights) -> None:
    weights["model.embed_tokens.weight"][5] *= 1.2


def one_row_of_the_head_negated(config: Weights, weights: Weights) -> None:
    weights["lm_head.weight"][17] *= -1


FAULTS: list[tuple[Callable[[Weights, Weights], None], str]] = [
    (doubled_theta, "layer 0"),
    (another_activation, "layer 0"),
    (swapped_layers, "layer 2"),
    (swapped_down_projections, "layer 2"),
    (norm_a_tenth_too_large, "layer 4"),
    (final_norm_too_large, "logits"),
    (missing_bias, "layer 1"),
    (one_row_of_noise, "layer 3"),
    (one_row_of_keys_negated, "layer 3"),
    (one_embedding_a_fifth_too_large, "embedding"),
    (one_row_of_the_head_negated, "logits"),
]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six layers, so that a fault has layers before and after it."""
    return save(tmp_path_factory.mktemp("align"), "llama", 0, num_hidden_layers=6, attention_bias=True)


@pytest.fixture
def damaged(sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Makes a damaged copy, and lets the reference go on reading the sound one."""
    return lambda fault: plant(sound, tmp_path / "damaged", fault, monkeypatch)


def job(path: Path, dtype: str, **changes: Any) -> Job:
    asked = {"batch": 2, "input_len": 60, "output_len": 6, "layout": "tp=2,pp=3", "kv_dtype": dtype}
    return Job(str(path), dtype=dtype, **{**asked, **changes})


@pytest.mark.parametrize("dtype", BF16_AND_LONG)
@pytest.mark.parametrize(("fault", "where"), FAULTS, ids=[fault.__name__ for fault, _ in FAULTS])
def test_a_planted_fault_is_found_and_its_layer_named(damaged, fault, where: str, dtype: str) -> None:
    report = align(job(damaged(fault), dtype))
    assert (report.verdict, report.first_drift) == ("drifted", where)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sound_model_is_aligned_in_every_dtype(sound: Path, dtype: str) -> None:
    report = align(job(sound, dtype))
    assert (report.verdict, report.first_drift) == ("aligned", None)
    assert report.positions == 2 * 66
    measured = [part.noise_max_rel for part in (*report.layers, report.logits)]
    if dtype == "float32":
        assert measured == [None] * 8  # nothing passed the tolerance, so there was no need
    else:
        assert all(noise is not None and noise > 0 for noise in measured)


def test_a_kv_cache_coarser_than_the_model_is_held_against_its_own_rounding(sound: Path) -> None:
    report = align(job(sound, "float32", kv_dtype="bfloat16"))
    assert report.verdict == "aligned"
    assert report.tolerance == 2**-7


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_model_that_magnifies_rounding_raises_no_alarm(tmp_path: Path, dtype: str) -> None:
    """Wide heads and large weights make a hard softmax: in fp32 errors pass 1e-4, in bf16 they pass a half."""
    wide = {"hidden_size": 256, "num_attention_heads": 8, "head_dim": 32, "num_hidden_layers": 4}
    path = save(tmp_path, "llama", 3, **wide, initializer_range=0.4, rope_parameters={"rope_theta": 1e4})
    report = align(job(path, dtype, layout="tp=2"))
    least = {"float32": 1e-4, "bfloat16": 0.2, "float16": 0.03}[dtype]
    assert max(row.max_rel or 0 for row in report.layers) > least
    assert report.verdict == "aligned"


@pytest.mark.parametrize(("lengths", "warns"), [((10, 60), True), ((10, 20), False), ((40, 60), False), ((30,), True)])
def test_a_job_keeps_one_set_of_longrope_factors_and_says_so(tmp_path: Path, lengths, warns: bool) -> None:
    table = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 32, "factor": 4.0}
    factors = {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [2.0, 2.5, 3.0, 3.5]}
    path = save(tmp_path, "llama", 0, rope_parameters={**table, **factors})
    prompts = tuple(tuple(range(1, 1 + length)) for length in lengths)
    sizes = {"batch": None, "input_len": None, "output_len": None, "layout": "tp=2"}
    report = align(job(path, "float32", prompt_ids=prompts, max_new_tokens=8, **sizes))
    assert report.verdict == "aligned"
    assert [warning for warning in report.warnings if warning.startswith("longrope")] == [
        f"longrope: the longest sequence reaches {lengths[-1] + 7} tokens, past the original 32, so every sequence of "
        "the job uses the long factors from its first token on; transformers uses the short ones up to 32"
    ] * warns


def test_the_command_line_ends_with_4_where_a_fault_is_found(sound: Path, damaged) -> None:
    asked = ["--dtype", "bf16", "--batch", "1", "--input-len", "40", "--output-len", "2", "--layout", "tp=2"]
    good = CliRunner().invoke(cli, ["align", str(sound), *asked])
    assert good.exit_code == 0, good.output
    bad = CliRunner().invoke(cli, ["align", str(damaged(missing_bias)), *asked])
    assert bad.exit_code == 4
    assert "First layer that drifts: layer 1" in bad.output
