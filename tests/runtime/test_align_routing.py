"""align over expert layers: flips counted and named, forced routing that looks past them, faults of routers named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

pytest.importorskip("transformers")
from checkpoints import MOE_FAMILIES, save
from latent_checkpoints import LATENT_FAMILIES, SPARSE_FAMILIES, save_latent
from linear_checkpoints import LINEAR_FAMILIES, save_linear
from planted import Fault, Weights, plant
from scaled_checkpoints import save_scaled

from siltwin.cli import cli
from siltwin.isa.errors import ConfigError
from siltwin.models.checkpoint import open_checkpoint
from siltwin.runtime.align import align
from siltwin.runtime.align_ask import AlignAsk
from siltwin.runtime.job import Job
from siltwin.runtime.reference import open_reference, routers_in

DTYPES = ["float32", *(pytest.param(dtype, marks=pytest.mark.long) for dtype in ("bfloat16", "float16"))]
FORCED = AlignAsk(forced_routing=True)
LINEAR_MOE = [family for family in LINEAR_FAMILIES if any("experts" in key for key in LINEAR_FAMILIES[family])]
EVERY_FAMILY = [*MOE_FAMILIES, *LATENT_FAMILIES, *SPARSE_FAMILIES, *LINEAR_MOE, "llama4_text"]


def saved(directory: Path, family: str, seed: int = 0) -> Path:
    if family in (*LATENT_FAMILIES, *SPARSE_FAMILIES):
        return save_latent(directory, family, seed)
    if family == "llama4_text":
        return save_scaled(directory, family, seed)
    return save_linear(directory, family, seed) if family in LINEAR_FAMILIES else save(directory, family, seed)


def job(path: Path, dtype: str, **changes: Any) -> Job:
    asked = {"batch": 2, "input_len": 40, "output_len": 4, "layout": "tp=2", "kv_dtype": dtype}
    return Job(str(path), dtype=dtype, **{**asked, **changes})


@pytest.mark.parametrize("family", EVERY_FAMILY)
def test_the_reference_takes_the_experts_it_is_told_and_its_own_choice_changes_nothing(
    tmp_path: Path, family: str
) -> None:
    checkpoint = open_checkpoint(saved(tmp_path, family))
    reference, routers = open_reference(checkpoint), routers_in(checkpoint.graph)
    assert reference.routed_layers == set(routers)
    ids = list(range(3, 23))
    free = reference.run(ids)
    own = {layer: routes.ids for layer, routes in free.routes.items()}
    assert np.array_equal(reference.run(ids, forced=own).logits, free.logits)
    layer = max(routers)
    other = own[layer].copy()
    other[4] = (own[layer][4] + 1) % routers[layer].projection.out_features[0]  # token 4 takes other experts
    if sorted(other[4]) == sorted(own[layer][4]):
        pytest.skip("the neighbours are the same set")
    told = reference.run(ids, forced={layer: other})
    moved = np.abs(told.layers[layer + 1] - free.layers[layer + 1]).max(axis=-1) > 1e-3
    assert moved[4] and moved.sum() == 1
    assert np.array_equal(told.routes[layer].ids, own[layer])  # what it would have chosen


@pytest.mark.parametrize("family", ["mixtral", "gpt_oss", "glm4_moe", "deepseek_v3"])
def test_forced_routing_takes_the_flips_of_low_precision_out_of_both_error_and_noise(
    tmp_path: Path, family: str
) -> None:
    path = saved(tmp_path, family)
    free, forced = align(job(path, "bfloat16")), align(job(path, "bfloat16"), FORCED)
    assert free.verdict == forced.verdict == "aligned"
    assert free.routing is not None and forced.routing is not None
    assert not free.routing.forced and forced.routing.forced
    assert free.routing.flips > 0 and free.routing.tokens == forced.routing.tokens == 88
    flip = next(part.first for part in free.routing.layers if part.first)
    assert flip.explained and flip.margin is not None and flip.margin >= 0
    assert set(flip.ours).isdisjoint(flip.reference) and len(flip.ours) == len(flip.reference) > 0
    assert (forced.logits.max_rel or 9) < 0.1  # a flipped expert moves a position by more than that
    assert (forced.logits.noise_max_rel or 9) <= (free.logits.noise_max_rel or 0)


@pytest.mark.parametrize("family", EVERY_FAMILY)
@pytest.mark.parametrize("dtype", DTYPES)
def test_honest_models_raise_no_alarm_with_forced_routing(tmp_path: Path, family: str, dtype: str) -> None:
    report = align(job(saved(tmp_path, family, 1), dtype, cached_len=5), FORCED)
    assert report.first_drift is None
    assert report.routing is not None and all(part.unexplained == 0 for part in report.routing.layers)


def router_row_of_noise(config: Weights, weights: Weights) -> None:
    row = weights["model.layers.1.mlp.gate.weight"][3]
    row[:] = np.random.default_rng(0).normal(size=row.size) * row.std()


def correction_left_out(config: Weights, weights: Weights) -> None:
    weights["model.layers.2.mlp.gate.e_score_correction_bias"][:] = 0


def another_number_of_groups(config: Weights, weights: Weights) -> None:
    config["topk_group"] = 3


def not_renormalised(config: Weights, weights: Weights) -> None:
    config["norm_topk_prob"] = False


def another_scale(config: Weights, weights: Weights) -> None:
    config["routed_scaling_factor"] *= 1.5


def one_expert_of_noise(config: Weights, weights: Weights) -> None:
    matrix = weights["model.layers.2.mlp.experts.5.down_proj.weight"]
    matrix[:] = np.random.default_rng(0).normal(size=matrix.shape) * matrix.std()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("fault", "where"),
    [
        (router_row_of_noise, "layer 1 router"),
        (correction_left_out, "layer 2 routing"),
        (another_number_of_groups, "layer 1 routing"),
        (not_renormalised, "layer 1"),
        (another_scale, "layer 1"),
        (one_expert_of_noise, "layer 2"),
    ],
)
def test_a_planted_fault_of_an_expert_layer_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Fault, where: str, dtype: str
) -> None:
    damaged = plant(saved(tmp_path, "glm4_moe"), tmp_path / "damaged", fault, monkeypatch)
    report = align(job(damaged, dtype), FORCED)
    assert (report.verdict, report.first_drift) == ("drifted", where)


def test_a_choice_that_is_wrong_is_named_without_forcing_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    damaged = plant(saved(tmp_path, "glm4_moe"), tmp_path / "damaged", correction_left_out, monkeypatch)
    report = align(job(damaged, "float32"))
    assert (report.verdict, report.first_drift) == ("drifted", "layer 2 routing")
    assert report.routing is not None
    flip = report.routing.layers[-1].first
    assert flip is not None and not flip.explained and flip.layer == 2


def indexer_head_negated(config: Weights, weights: Weights) -> None:
    weights["model.layers.1.self_attn.indexer.wk.weight"] *= -1


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_keys_are_forced_too_and_a_fault_of_their_choice_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    sound = saved(tmp_path, "deepseek_v32")
    honest = align(job(sound, dtype), FORCED)
    assert honest.verdict == "aligned" and len(honest.keys) == 3
    assert (honest.logits.max_rel or 1) < (1e-5 if dtype == "float32" else 0.1)  # a key more or less is beyond that
    damaged = plant(sound, tmp_path / "damaged", indexer_head_negated, monkeypatch)
    report = align(job(damaged, dtype), FORCED)
    assert (report.verdict, report.first_drift) == ("drifted", "layer 1 keys")


def test_a_dense_model_has_no_routing_to_force(tmp_path: Path) -> None:
    path = save(tmp_path, "llama", 0)
    with pytest.raises(ConfigError, match="--forced-routing: llama-0 has no experts; leave it out"):
        align(job(path, "float32"), FORCED)
    assert align(job(path, "float32")).routing is None


def test_the_command_line_forces_and_shows_the_routers(tmp_path: Path) -> None:
    path = saved(tmp_path, "mixtral")
    asked = ["align", str(path), "--dtype", "bf16", "--batch", "2", "--input-len", "40", "--output-len", "4"]
    result = CliRunner().invoke(cli, [*asked, "--forced-routing", "--json", str(tmp_path / "report.json")])
    assert result.exit_code == 0, result.output
    assert "Experts (forced on the reference):" in result.output and "layer 2 router" in result.output
    assert max(len(line) for line in result.output.splitlines()) <= 80
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["routing"]["forced"] is True and len(report["routing"]["layers"]) == 3
