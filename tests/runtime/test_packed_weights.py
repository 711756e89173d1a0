"""Packed checkpoints lie packed in device memory: the bytes of every card by hand, the numbers those of the layout."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from checkpoints import save  # noqa: E402
from packed_checkpoints import pack  # noqa: E402

from siltwin.isa.dtype import FP32  # noqa: E402
from siltwin.isa.errors import ConfigError  # noqa: E402
from siltwin.isa.formats.scheme import SCHEMES  # noqa: E402
from siltwin.models.checkpoint import open_checkpoint  # noqa: E402
from siltwin.runtime.job import Job  # noqa: E402
from siltwin.runtime.lowering.held import Held, Piece, packed_buffer  # noqa: E402
from siltwin.runtime.run import RunResult, run_job  # noqa: E402

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "head_dim": 16,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "num_hidden_layers": 1,
    "tie_word_embeddings": False,
}

EXPERTS: dict[str, Any] = {"moe_intermediate_size": 32, "num_experts": 6, "decoder_sparse_step": 1}


def run(path: Path, layout: str = "tp=1", **options: Any) -> RunResult:
    given: dict[str, Any] = {"batch": 1, "input_len": 5, "output_len": 2, "payload": False} | options
    return run_job(Job(str(path), layout=layout, **given))


def test_bytes_of_every_card_are_those_of_the_file(tmp_path: Path) -> None:
    path = pack(save(tmp_path, "llama", 0, **SIZES), "deepseek")  # fp8 in blocks of 16 x 32, scales fp32
    report = run(path, "tp=2", dtype="bfloat16").report
    # q 128x64, k and v 32x64, o 64x128, gate and up 96x64, down 64x96
    codes = (128 + 2 * 32) * 64 + 64 * 128 + 2 * 96 * 64 + 64 * 96
    scales = (8 + 2 * 2) * 2 + 4 * 4 + 2 * 6 * 2 + 4 * 3
    whole = sum(path.stat().st_size for path in path.glob("*.safetensors"))
    assert codes + 4 * scales < whole
    plain = {"replicated bf16": 2 * 3 * 64, "sharded bf16": 0}
    for rank, card in enumerate(report.cards):
        rows = 131 // 2 + (rank < 131 % 2)
        # half of down's 96 inputs is one block of 32 and half of another, whose scales both cards hold
        assert card.weights == plain | {
            "sharded bf16": 2 * 2 * rows * 64,
            "sharded fp8_e4m3": codes // 2,
            "sharded scale": 4 * (scales - 12) // 2 + 4 * 4 * 2,
        }
        assert card.by_tag["weight"] + card.by_tag["scale"] == sum(card.weights.values())
        assert sum(card.by_tag.values()) == card.peak_bytes
    assert any("packed weights lie in HBM as stored" in warning for warning in report.warnings)


def test_a_config_that_quantises_holds_its_random_weights_packed(tmp_path: Path) -> None:
    path = pack(save(tmp_path, "qwen3_moe", 0, **SIZES, **EXPERTS), "int4")
    alone = tmp_path / "alone.json"
    alone.write_text((path / "config.json").read_text())
    cards = [run(model, "tp=2,ep=2", dtype="bfloat16").report.cards for model in (alone, path)]
    for random, real in zip(*cards, strict=True):
        # 3 experts of 3 x 64 x 32: half a byte an element, and 2 bytes (4 in the file, which has fp32) each 32
        assert random.weights["expert int4"] == real.weights["expert int4"] == 3 * 3 * 64 * 32 // 2
        assert random.weights["expert scale"] * 2 == real.weights["expert scale"] == 3 * 3 * 64 * 32 // 32 * 4
    numbers = run(alone, "tp=2,ep=2", payload=True, dtype="float32", kv_dtype="float32", logits=True)
    whole = run(alone, payload=True, dtype="float32", kv_dtype="float32", logits=True, weights="dequantised")
    assert numbers.logits is not None and whole.logits is not None
    for name, logits in whole.logits.items():
        assert np.abs(numbers.logits[name] - logits).max() <= 1e-4 * logits.std()


def test_dequantised_weights_take_the_run_s_dtype_and_give_the_same_tokens(tmp_path: Path) -> None:
    path = pack(save(tmp_path, "llama", 0, **SIZES), "int4-asymmetric")
    options = {"payload": True, "dtype": "float32", "kv_dtype": "float32", "logits": True}
    packed, plain = run(path, "tp=2", **options), run(path, "tp=2", weights="dequantised", **options)
    assert packed.logits is not None and plain.logits is not None
    for name, logits in plain.logits.items():
        np.testing.assert_array_equal(packed.logits[name], logits)
    card = plain.report.cards[0]
    assert "scale" not in card.by_tag and set(card.weights) == {"replicated fp32", "sharded fp32"}
    assert any("dequantised when loaded" in warning for warning in plain.report.warnings)


def test_tensors_stored_unlike_one_another_are_put_together_dequantised(tmp_path: Path) -> None:
    path = pack(save(tmp_path, "llama", 0, **SIZES), "deepseek")
    from safetensors.torch import load_file, save_file

    tensors = load_file(path / "model.safetensors")
    name = "model.layers.0.self_attn.k_proj.weight"
    tensors[name] = torch.from_numpy(open_checkpoint(path).load(name, FP32))
    del tensors[f"{name}_scale_inv"]
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"]["modules_to_not_convert"] = ["model.layers.0.self_attn.k_proj"]
    (path / "config.json").write_text(json.dumps(config))
    report = run(path, dtype="bfloat16").report
    assert any("layers.0.qkv put together tensors that are stored unlike" in warning for warning in report.warnings)
    assert report.cards[0].weights["sharded fp8_e4m3"] == 64 * 128 + 2 * 96 * 64 + 64 * 96


@pytest.mark.parametrize(
    ("part", "message"), [("weight", "NaN or infinite weights"), ("weight_scale_inv", "NaN or infinite scales")]
)
def test_damaged_codes_and_scales_are_refused_as_they_are_loaded(tmp_path: Path, part: str, message: str) -> None:
    from safetensors.torch import load_file, save_file

    path = pack(save(tmp_path, "llama", 0, **SIZES), "deepseek")
    tensors = load_file(path / "model.safetensors")
    tensors[f"model.layers.0.mlp.up_proj.{part}"].view(-1)[5] = float("nan")
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=f"up_proj.* {message}; the file is damaged"):
        run(path, payload=True)


def test_rows_of_several_tensors_find_their_scales_by_rule_or_by_index() -> None:
    block, tensor = Held(SCHEMES["fp8_e4m3_block128x128"]), Held(SCHEMES["fp8_e4m3_tensor"])
    whole = packed_buffer((256 + 100, 300), [Piece("q", 0, 0, 256), Piece("k", 0, 0, 100)], block)
    assert whole.index is None and whole.types["scales"].shape == (3, 3)
    odd = packed_buffer((200 + 100, 300), [Piece("q", 0, 100, 300), Piece("k", 0, 0, 100)], block)
    assert odd.index == (0,) * 28 + (1,) * 128 + (2,) * 44 + (3,) * 100
    halves = packed_buffer((2, 64, 8), [Piece(f"{half}{e}", 0, 0, 32) for e in (0, 1) for half in "gu"], tensor)
    assert halves.index is None and (halves.form.rows, halves.types["scales"].shape) == (32, (2, 2, 1))
    assert packed_buffer((64, 40), [Piece("o", 1, 40, 80)], block).phase == 40
