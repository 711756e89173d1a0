"""Packed weights come in by the file's own account, and what does not fit is named with its file."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from siltwin.isa.dtype import FP16, FP32
from siltwin.isa.errors import ConfigError, NotYetError, UnsupportedError
from siltwin.models.checkpoint import open_checkpoint, random_checkpoint
from siltwin.models.config import read_config

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 30,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "rope_theta": 10000.0,
}
INT8 = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
QUANTIZED: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": INT8}},
    "ignore": ["lm_head"],
}
Q = "model.layers.0.self_attn.q_proj"
RANDOM = random_checkpoint(read_config(CONFIG), seed=1)


def weights() -> dict[str, Any]:
    return {name: RANDOM.load(name, FP32) for name in RANDOM.names()}


def packed(**changes: Any) -> dict[str, Any]:
    """A checkpoint in which q_proj alone is int8: code r + c under a scale of 1/2 in even rows, 1/4 in odd ones."""
    codes = np.add.outer(np.arange(16), np.arange(16)).astype(np.int8)
    scales = np.where(np.arange(16) % 2 == 0, 0.5, 0.25).astype(np.float32)[:, None]
    tensors = weights() | {f"{Q}.weight": codes, f"{Q}.weight_scale": scales}
    tensors |= {f"{Q}.{local}": value for local, value in changes.items()}
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}


def write(directory: Path, tensors: dict[str, Any], quantization: Any = QUANTIZED) -> Path:
    (directory / "config.json").write_text(json.dumps(CONFIG | {"quantization_config": quantization}))
    save_file(tensors, directory / "model.safetensors")
    return directory


def test_the_file_decides_which_weights_are_packed(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write(tmp_path, packed()))
    q = checkpoint.load(f"{Q}.weight", FP32)
    assert (q[2, 3], q[3, 3], q[15, 0]) == (2.5, 1.5, 3.75)
    k = Q.replace("q_proj", "k_proj") + ".weight"
    assert np.array_equal(checkpoint.load(k, FP32), RANDOM.load(k, FP32))
    assert "of 9 matrices 1 in int8_channel" in checkpoint.warnings[0]
    assert len(checkpoint.warnings) == 1
    assert set(checkpoint.names()) == set(RANDOM.names())


def test_the_product_is_rounded_once_in_the_dtype_of_the_scales(tmp_path: Path) -> None:
    scales = np.full((16, 1), 1 + 2**-9, np.float16)
    checkpoint = open_checkpoint(write(tmp_path, packed(weight_scale=scales)))
    q, dtype = checkpoint.tensor(f"{Q}.weight")
    assert dtype is FP16
    # 3 x (1 + 2**-9) = 3 + 3 x 2**-9 is a multiple of fp16's step there, 2**-9; 5 x (1 + 2**-9) is no multiple of 2**-8
    # and lies midway between 5 + 2 x 2**-8 and 5 + 3 x 2**-8, of which the first is even.
    assert (float(q[0, 3]), float(q[0, 5])) == (3 + 3 * 2**-9, 5 + 2 * 2**-8)


def test_scales_of_an_axis_less_and_of_one_number_are_read(tmp_path: Path) -> None:
    flat = np.where(np.arange(16) % 2 == 0, 0.5, 0.25).astype(np.float32)
    checkpoint = open_checkpoint(write(tmp_path, packed(weight_scale=flat)))
    assert checkpoint.load(f"{Q}.weight", FP32, 14, 16, axis=1)[3, 0] == (3 + 14) / 4
    assert checkpoint.load(f"{Q}.weight", FP32, 3, 5)[0, 14] == (3 + 14) / 4


def test_what_the_config_quantises_beside_weights_is_told(tmp_path: Path) -> None:
    group = QUANTIZED["config_groups"]["group_0"] | {"input_activations": INT8 | {"strategy": "token", "dynamic": True}}
    cache = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
    config = QUANTIZED | {"config_groups": {"group_0": group}, "kv_cache_scheme": cache}
    extra = {f"{Q}.input_scale": np.ones(1, np.float32), f"{Q.replace('q_proj', 'k_scale')}": np.ones(1, np.float32)}
    found = open_checkpoint(write(tmp_path, packed() | extra, config)).warnings
    assert "activations (int8_" in found[1] and "KV cache (fp8_e4m3_tensor)" in found[2]
    assert len(found) == 3, "scales of inputs and caches are covered by these words"


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({"weight": np.zeros((16, 15), np.int8)}, ConfigError, r"q_proj.weight has shape \[16, 15\]; .* \[16, 16\]"),
        ({"weight_scale": np.ones((8, 1), np.float32)}, ConfigError, r"weight_scale has shape \[8, 1\]; .* \[16, 1\]"),
        ({"weight_scale": None}, ConfigError, "q_proj.weight: dtype I8 is not supported for a weight"),
        ({"weight_g_idx": np.zeros(16, np.int32)}, UnsupportedError, "weight_g_idx: columns regrouped"),
        ({"weight": None}, ConfigError, "1 of 12 tensors are missing: .*q_proj.weight"),
    ],
)
def test_packs_that_do_not_fit_are_named_on_opening(
    tmp_path: Path, changes: dict[str, Any], kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        open_checkpoint(write(tmp_path, packed(**changes)))


def test_codes_of_another_type_and_nan_scales_are_named_on_loading(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write(tmp_path, packed(weight=np.zeros((16, 16), np.uint8))))
    with pytest.raises(ConfigError, match=r"model.safetensors: .*q_proj.weight: weight is uint8; .* stores int8"):
        checkpoint.load(f"{Q}.weight", FP32)
    scales = np.full((16, 1), np.nan, np.float32)
    checkpoint = open_checkpoint(write(tmp_path, packed(weight_scale=scales)))
    with pytest.raises(ConfigError, match="q_proj.weight holds NaN"):
        checkpoint.load(f"{Q}.weight", FP32)


def test_fp8_without_scales_is_no_weight(tmp_path: Path) -> None:
    codes = np.zeros((16, 16), ml_dtypes.float8_e4m3fn)
    with pytest.raises(NotYetError, match="q_proj.weight: dtype F8_E4M3"):
        open_checkpoint(write(tmp_path, packed(weight=codes, weight_scale=None), {"quant_method": "fp8"}))


def test_random_weights_of_a_quantised_config_say_that_they_are_not_packed() -> None:
    checkpoint = random_checkpoint(read_config(CONFIG | {"quantization_config": QUANTIZED}))
    assert checkpoint.warnings[-1].startswith("the config quantises weights (compressed-tensors); random ones")
