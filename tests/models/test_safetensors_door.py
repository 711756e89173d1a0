"""A Hugging Face directory opens to exact weights, or says which file and field is wrong."""

import json
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from siltwin.isa.dtype import BF16, FP16, FP32
from siltwin.isa.errors import ConfigError, NotYetError, SiltwinError, UnsupportedError
from siltwin.models.checkpoint import Checkpoint, open_checkpoint, random_checkpoint
from siltwin.models.config import read_config

CONFIG = {
    "model_type": "llama",
    "vocab_size": 30,
    "hidden_size": 12,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "rope_theta": 10000.0,
    "eos_token_id": 2,
}
RANDOM = random_checkpoint(read_config(CONFIG), seed=3)
Q = "model.layers.1.self_attn.q_proj.weight"
NORM = "model.norm.weight"


def weights() -> dict[str, Any]:
    return {name: RANDOM.load(name, FP32) for name in RANDOM.names()}


def write(directory: Path, tensors: dict[str, Any], config: dict[str, Any] = CONFIG) -> Path:
    (directory / "config.json").write_text(json.dumps(config))
    save_file(tensors, directory / "model.safetensors")
    return directory


def shard(directory: Path, *parts: dict[str, Any]) -> dict[str, str]:
    """Write parts as shards under an index, and return the index's weight_map."""
    (directory / "config.json").write_text(json.dumps(CONFIG))
    weight_map = {}
    for number, part in enumerate(parts):
        save_file(part, directory / f"part-{number}.safetensors")
        weight_map |= dict.fromkeys(part, f"part-{number}.safetensors")
    write_index(directory, weight_map)
    return weight_map


def write_index(directory: Path, weight_map: Any) -> None:
    (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def halves() -> tuple[dict[str, Any], dict[str, Any]]:
    names = list(weights())
    return {n: weights()[n] for n in names[:9]}, {n: weights()[n] for n in names[9:]}


def relabel(path: Path, change: Any) -> None:
    """Rewrite the header of a safetensors file after `change` has had its way with it."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    text = json.dumps(change(header) or header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length :])


def refused(directory: Path, kind: type[SiltwinError] = ConfigError) -> str:
    with pytest.raises(kind) as caught:
        open_checkpoint(directory)
    assert type(caught.value) is kind
    return str(caught.value)


def same(checkpoint: Checkpoint) -> bool:
    return all(np.array_equal(checkpoint.load(name, FP32), RANDOM.load(name, FP32)) for name in RANDOM.names())


def test_a_single_file_gives_back_every_weight(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write(tmp_path, weights()))
    assert checkpoint.names() == RANDOM.names()
    assert same(checkpoint)
    assert checkpoint.warnings == ()
    assert checkpoint.tokenizer is None


def test_shards_under_an_index_give_back_every_weight(tmp_path: Path) -> None:
    shard(tmp_path, *halves())
    assert same(open_checkpoint(tmp_path))


def test_slices_of_either_axis_in_storage_form(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write(tmp_path, {n: w.astype(ml_dtypes.bfloat16) for n, w in weights().items()}))
    whole, dtype = checkpoint.tensor(Q)
    assert (dtype, whole.dtype, whole.shape) == (BF16, np.dtype(np.uint16), (12, 12))
    assert np.array_equal(whole, RANDOM.load(Q, BF16))
    assert np.array_equal(checkpoint.tensor(Q, 3, 7)[0], whole[3:7])
    assert np.array_equal(checkpoint.tensor(Q, 3, 7, axis=1)[0], whole[:, 3:7])
    assert np.array_equal(
        checkpoint.load(Q, FP32, 3, 7, axis=1), whole.view(ml_dtypes.bfloat16).astype(np.float32)[:, 3:7]
    )


def test_rounding_to_bf16_is_to_nearest_even(tmp_path: Path) -> None:
    tensors = weights()
    # 1 + 2**-8 lies midway between 1 and 1 + 2**-7 and goes to the even one; 1 + 3 * 2**-8 goes up
    tensors[NORM] = np.array([1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8, 1 + 2**-8 + 2**-20] * 3, np.float32)
    loaded = open_checkpoint(write(tmp_path, tensors)).load(NORM, BF16)
    assert [hex(bits) for bits in loaded[:4]] == ["0x3f80", "0x3f82", "0xbf80", "0x3f81"]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("stored", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_nan_and_infinite_weights_are_named_when_loaded(tmp_path: Path, value: float, stored: Any) -> None:
    tensors = {name: weight.astype(stored) for name, weight in weights().items()}
    tensors[Q][5, 7] = value
    checkpoint = open_checkpoint(write(tmp_path, tensors))
    checkpoint.load(Q, FP32, 0, 5)
    for dtype in (FP32, FP16, BF16):
        with pytest.raises(ConfigError, match=f"model.safetensors: {Q} holds NaN"):
            checkpoint.load(Q, dtype)


def test_weights_beyond_fp16_are_refused_in_fp16_alone(tmp_path: Path) -> None:
    tensors = weights()
    tensors[Q][0, 0] = 70_000.0
    checkpoint = open_checkpoint(write(tmp_path, tensors))
    checkpoint.load(Q, BF16)
    with pytest.raises(ConfigError, match=f"{Q} holds weights beyond the range of fp16"):
        checkpoint.load(Q, FP16)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    tensors = weights()
    del tensors[Q]
    assert f"1 of 21 tensors are missing: {Q}" in refused(write(tmp_path, tensors))


def test_a_wrong_shape_names_the_file_the_tensor_and_both_shapes(tmp_path: Path) -> None:
    text = refused(write(tmp_path, weights() | {Q: np.zeros((12, 11), np.float32)}))
    assert f"model.safetensors: {Q} has shape [12, 11]" in text and "asks for [12, 12]" in text


@pytest.mark.parametrize("dtype", [np.int32, np.float64, np.uint8, np.bool_])
def test_weights_that_are_no_float_of_16_or_32_bits_are_refused(tmp_path: Path, dtype: Any) -> None:
    text = refused(write(tmp_path, weights() | {Q: np.zeros((12, 12), dtype)}))
    assert f"{Q}: dtype" in text and "known: F32, F16, BF16" in text


def test_fp8_weights_are_not_yet_read(tmp_path: Path) -> None:
    write(tmp_path, weights() | {Q: np.zeros((12, 12), ml_dtypes.float8_e4m3fn)})
    assert "F8_E4M3" in refused(tmp_path, NotYetError)


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, weights()) / "model.safetensors"
    content = path.read_bytes()
    for length in (0, 7, 8, 100, len(content) - 1):
        path.write_bytes(content[:length])
        text = refused(tmp_path)
        assert str(path) in text and "truncated" in text


def test_bytes_after_the_last_tensor_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, weights()) / "model.safetensors"
    path.write_bytes(path.read_bytes() + b"x")
    assert "1 bytes after the last tensor" in refused(tmp_path)


def set_field(name: str, field: str, value: Any) -> Any:
    def change(header: dict[str, Any]) -> None:
        header[name][field] = value

    return change


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (set_field(Q, "data_offsets", [0, 10**15]), f"{Q}: data_offsets"),
        (set_field(Q, "data_offsets", [0, 576]), "overlap"),
        (set_field(Q, "data_offsets", [-576, 0]), f"{Q}: data_offsets"),
        (set_field(Q, "data_offsets", "all"), f"{Q}: data_offsets"),
        (set_field(Q, "data_offsets", [0]), f"{Q}: data_offsets"),
        (set_field(Q, "shape", [12, 13]), "takes 624"),
        (set_field(Q, "shape", [-12, -12]), f"{Q}: shape"),
        (set_field(Q, "shape", [True, 12]), f"{Q}: shape"),
        (set_field(Q, "shape", [2**62, 2**62]), f"{Q}: data_offsets"),
        (set_field(Q, "dtype", "F128"), f"{Q}: dtype"),
        (set_field(Q, "dtype", ["F32"]), f"{Q}: dtype"),
        (lambda header: header.update({Q: 5}), f"{Q} is 5"),
        (lambda header: [header], "must be an object"),
    ],
)
def test_a_header_that_lies_is_caught_at_its_field(tmp_path: Path, change: Any, named: str) -> None:
    path = write(tmp_path, weights()) / "model.safetensors"
    relabel(path, change)
    text = refused(tmp_path)
    assert str(path) in text and named in text


def test_every_flipped_byte_of_the_header_is_read_or_refused(tmp_path: Path) -> None:
    path = write(tmp_path, weights()) / "model.safetensors"
    content = path.read_bytes()
    for at in range(0, 1800, 3):
        path.write_bytes(content[:at] + bytes([content[at] ^ 0x15]) + content[at + 1 :])
        try:
            open_checkpoint(tmp_path).load(Q, FP32)
        except SiltwinError:
            pass


def test_a_header_that_is_no_json_or_repeats_a_name_is_caught(tmp_path: Path) -> None:
    path = write(tmp_path, weights()) / "model.safetensors"
    for header in (b"\xff\xfe\xfd", b"{" * 5000, b'{"a": NaN}'):
        path.write_bytes(struct.pack("<Q", len(header)) + header)
        assert "header is not valid JSON" in refused(tmp_path)
    entry = '{"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}'
    header = f'{{"a": {entry}, "a": {entry}}}'.encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + b"0000")
    assert "'a' stands twice" in refused(tmp_path)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    shard(tmp_path, *halves())
    (tmp_path / "part-1.safetensors").unlink()
    assert "weight_map names part-1.safetensors, which is not in" in refused(tmp_path)


def test_an_index_that_points_outside_the_directory_is_refused(tmp_path: Path) -> None:
    weight_map = shard(tmp_path, *halves())
    for file in ("../part-0.safetensors", "/etc/passwd", "part-0.bin", 7):
        write_index(tmp_path, weight_map | {Q: file})
        assert "weight_map" in refused(tmp_path)


def test_an_index_that_lies_is_refused(tmp_path: Path) -> None:
    weight_map = shard(tmp_path, *halves())
    write_index(tmp_path, weight_map | {Q: "part-0.safetensors"})
    assert f"puts {Q} in part-0.safetensors, which does not hold it" in refused(tmp_path)
    write_index(tmp_path, [])
    assert "weight_map is []" in refused(tmp_path)


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    first, second = halves()
    shard(tmp_path, first | {Q: second[Q]}, second)
    assert f"{Q} stands also in part-0.safetensors" in refused(tmp_path)


def test_pickles_are_refused_and_not_opened(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch pwned'\ntR.")
    assert "pickled weights can run code" in refused(tmp_path, UnsupportedError)
    assert "pickled weights" in refused(tmp_path / "pytorch_model.bin", UnsupportedError)


def test_a_directory_without_weights_points_at_its_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    assert "give " + str(tmp_path / "config.json") in refused(tmp_path)
    assert open_checkpoint(tmp_path / "config.json").load(NORM, BF16).shape == (12,)


def test_a_directory_without_config_points_at_its_gguf(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"")
    assert "has no config.json; name the file itself: a.gguf" in refused(tmp_path)


def test_extra_tensors_are_told_unless_known_to_be_harmless(tmp_path: Path) -> None:
    harmless = {
        "model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(3, np.float32),
        "model.layers.2.eh_proj.weight": np.ones((2, 2), np.float32),
    }
    other = {"model.layers.0.self_attn.q_proj.bias": np.ones(12, np.float32)}
    checkpoint = open_checkpoint(write(tmp_path, weights() | harmless | other))
    assert checkpoint.warnings == ("1 tensors of the checkpoint are not used: model.layers.0.self_attn.q_proj.bias",)


def test_a_tied_head_may_stand_in_the_file_if_it_is_the_embedding(tmp_path: Path) -> None:
    tied = CONFIG | {"tie_word_embeddings": True}
    tensors = weights() | {"lm_head.weight": weights()["model.embed_tokens.weight"]}
    checkpoint = open_checkpoint(write(tmp_path, tensors, tied))
    assert (checkpoint.graph.lm_head, checkpoint.warnings) == ("model.embed_tokens.weight", ())
    write(tmp_path, weights(), tied)
    assert "lm_head.weight differs from model.embed_tokens.weight" in refused(tmp_path)


def test_generation_config_says_where_generation_ends(tmp_path: Path) -> None:
    write(tmp_path, weights())
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [5, 9]}')
    assert open_checkpoint(tmp_path).config.eos_ids == (5, 9)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": "end"}')
    assert "generation_config.json: eos_token_id" in refused(tmp_path)


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    path.write_bytes(b"")
    assert "give the directory of a model" in refused(path)
    assert "no file, directory or known model is called" in refused(tmp_path / "nothing")
