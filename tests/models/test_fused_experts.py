"""Checkpoints that keep all experts in one tensor give the same numbers as those with one an expert."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from siltwin.isa.dtype import FP32
from siltwin.isa.errors import ConfigError
from siltwin.models.checkpoint import open_checkpoint
from siltwin.models.config import read_config
from siltwin.models.graph import build_graph, parameter_shapes

BASE = {
    "vocab_size": 32,
    "hidden_size": 24,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "rope_theta": 10000.0,
    "num_experts_per_tok": 2,
}
CASES: dict[str, dict[str, Any]] = {
    "mixtral": {"num_local_experts": 3},
    "qwen3_moe": {"num_experts": 3, "moe_intermediate_size": 12, "mlp_only_layers": [0]},
}


def checkpoint(directory: Path, family: str) -> dict[str, np.ndarray]:
    """A checkpoint in the hub's own names; its tensors."""
    import json

    raw = BASE | CASES[family] | {"model_type": family}
    shapes = parameter_shapes(build_graph(read_config(raw)))
    rng = np.random.default_rng(0)
    tensors = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(raw))
    save_file(tensors, directory / "model.safetensors")
    return tensors


def fuse(directory: Path) -> None:
    """Rewrite the file in transformers 5's own names, as `save_file(model.state_dict())` would."""
    tensors = load_file(directory / "model.safetensors")
    names = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}
    fused: dict[str, np.ndarray] = {}
    parts: dict[str, dict[tuple[int, str], np.ndarray]] = {}
    for name, tensor in tensors.items():
        name = name.replace("block_sparse_moe", "mlp")
        prefix, experts, rest = name.partition(".experts.")
        if not experts:
            fused[name] = tensor
            continue
        expert, matrix, _ = rest.split(".")
        parts.setdefault(prefix, {})[int(expert), names.get(matrix, matrix)] = tensor
    for prefix, held in parts.items():
        count = 1 + max(expert for expert, _ in held)
        pairs = [np.concatenate([held[e, "gate_proj"], held[e, "up_proj"]]) for e in range(count)]
        fused[f"{prefix}.experts.gate_up_proj"] = np.stack(pairs)
        fused[f"{prefix}.experts.down_proj"] = np.stack([held[e, "down_proj"] for e in range(count)])
    save_file(fused, directory / "model.safetensors")


@pytest.mark.parametrize("family", CASES)
def test_every_tensor_reads_the_same_from_fused_experts(tmp_path: Path, family: str) -> None:
    tensors = checkpoint(tmp_path, family)
    fuse(tmp_path)
    opened = open_checkpoint(tmp_path)
    assert set(opened.names()) == set(tensors)
    assert opened.warnings == tuple(w for w in opened.config.assumed)
    for name, tensor in tensors.items():
        assert np.array_equal(opened.load(name, FP32), tensor), name
        half = tensor.shape[-1] // 2
        axis = tensor.ndim - 1
        assert np.array_equal(opened.load(name, FP32, 1, half, axis), tensor[..., 1:half]), name


def test_fused_experts_of_another_shape_are_missing_tensors(tmp_path: Path) -> None:
    checkpoint(tmp_path, "qwen3_moe")
    fuse(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    name = "model.layers.1.mlp.experts.down_proj"
    save_file(tensors | {name: np.ascontiguousarray(tensors[name][:2])}, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match=r"tensors are missing: model.layers.1.mlp.experts.0.gate_proj.weight"):
        open_checkpoint(tmp_path)
