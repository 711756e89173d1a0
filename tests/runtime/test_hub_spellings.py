"""Checkpoints as publishers spell them, where transformers spells them otherwise: Kimi Linear and Kimi K2."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from checkpoints import reference
from latent_checkpoints import save_latent
from linear_checkpoints import save_linear

from siltwin.models.checkpoint import open_checkpoint
from siltwin.runtime.align import align
from siltwin.runtime.job import Job
from siltwin.runtime.run import run_job

PROMPT = [(7 * index + 3) % 131 for index in range(40)]
EXACT = {"dtype": "float32", "kv_dtype": "float32"}


def logits(path: Path, layout: str) -> np.ndarray:
    options = {"prompt_ids": (tuple(PROMPT),), "max_new_tokens": 2, "ignore_eos": True, "logits": True}
    result = run_job(Job(str(path), layout=layout, **EXACT, **options))
    assert result.logits is not None
    return result.logits["logits_0"]


def as_the_hub_has_kimi_linear(path: Path) -> None:
    """Layer lists that count from 1 in linear_attn_config, keys of the remote code, dense layers below `mlp`."""
    from safetensors.torch import load_file, save_file

    config = json.loads((path / "config.json").read_text())
    kinds = config.pop("layer_types")
    config["linear_attn_config"] = {
        "full_attn_layers": [index + 1 for index, kind in enumerate(kinds) if kind == "full_attention"],
        "kda_layers": [index + 1 for index, kind in enumerate(kinds) if kind == "linear_attention"],
        "head_dim": config.pop("linear_head_dim"),
        "num_heads": config.pop("linear_num_heads"),
        "short_conv_kernel_size": config.pop("linear_conv_kernel_dim"),
    }
    dense = config.pop("mlp_layer_types").count("dense")
    for key in ("rope_parameters", "dtype", "qk_head_dim"):
        config.pop(key, None)
    config |= {
        "auto_map": {"AutoConfig": "configuration_kimi.KimiLinearConfig"},
        "first_k_dense_replace": dense,
        "head_dim": 72,
        "mla_use_nope": True,
        "moe_layer_freq": 1,
        "moe_router_activation_func": "sigmoid",
        "num_nextn_predict_layers": 0,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "torch_dtype": "bfloat16",
        "use_grouped_topk": True,
    }
    (path / "config.json").write_text(json.dumps(config))
    file = path / "model.safetensors"
    renamed = {}
    for name, tensor in load_file(file).items():
        layer = int(name.split(".")[2]) if name.startswith("model.layers.") else dense
        renamed[name.replace("block_sparse_moe", "mlp") if layer < dense else name] = tensor
    save_file(renamed, file, metadata={"format": "pt"})


def test_kimi_linear_as_the_hub_publishes_it(tmp_path: Path) -> None:
    path = save_linear(tmp_path, "kimi_linear", 0)
    saved, (theirs, _, _) = open_checkpoint(path), reference(path, PROMPT, 1)
    as_the_hub_has_kimi_linear(path)
    published = open_checkpoint(path)
    assert published.graph == saved.graph
    assert not any("not used" in warning for warning in published.warnings)
    assert np.abs(logits(path, "tp=2,pp=2") - theirs).max() <= 1e-4 * theirs.std()
    assert align(Job(str(path), **EXACT)).verdict == "aligned"


def test_kimi_k2_aligns_though_transformers_does_not_know_it(tmp_path: Path) -> None:
    path = save_latent(tmp_path, "deepseek_v3", 0)
    theirs, _, _ = reference(path, PROMPT, 1)
    config = json.loads((path / "config.json").read_text())
    table = config.pop("rope_parameters")
    config |= {"model_type": "kimi_k2", "rope_theta": table.pop("rope_theta"), "torch_dtype": config.pop("dtype")}
    config |= {"rope_scaling": table | {"type": table.pop("rope_type")}, "auto_map": {"AutoConfig": "remote.Kimi"}}
    (path / "config.json").write_text(json.dumps(config))
    assert np.abs(logits(path, "tp=2") - theirs).max() <= 1e-4 * theirs.std()
    assert align(Job(str(path), layout="tp=2,pp=2", **EXACT)).verdict == "aligned"
