"""Inputs of products quantised to int8 and fp8: against transformers with inputs and weights rounded likewise."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import transformers  # noqa: E402
from checkpoints import save  # noqa: E402
from packed_checkpoints import pack, rewrite  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

from siltwin.isa.errors import ConfigError  # noqa: E402
from siltwin.models.checkpoint import open_checkpoint  # noqa: E402
from siltwin.runtime.job import Job  # noqa: E402
from siltwin.runtime.run import RunResult, run_job  # noqa: E402

SIZES: dict[str, Any] = {"hidden_size": 160, "intermediate_size": 192, "head_dim": 16, "num_attention_heads": 8}
PROMPT = tuple((7 * index + 3) % 131 for index in range(20))
Round = Callable[[torch.Tensor], torch.Tensor]


def run(path: Path, layout: str = "tp=1", **options: Any) -> RunResult:
    given: dict[str, Any] = {"prompt_ids": (PROMPT,), "max_new_tokens": 1, "ignore_eos": True, "logits": True}
    given |= {"card": "reference-npu", "dtype": "float32", "kv_dtype": "float32"}
    return run_job(Job(str(path), layout=layout, **(given | options)))


def logits_of(result: RunResult) -> np.ndarray:
    assert result.logits is not None
    return np.asarray(result.logits["logits_0"])


def int8(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return (x / scale).round().clamp(-128, 127) * scale


def fp8(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return (x / scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scale


def by_row(cast: Any, largest: float) -> Round:
    return lambda x: cast(x, x.abs().amax(-1, keepdim=True).clamp(min=1e-30) / largest)


def by_blocks(x: torch.Tensor, rows: int) -> torch.Tensor:
    """fp8 in blocks of rows x 128, the last of an axis partial."""
    flat = x.reshape(-1, x.shape[-1])
    out = torch.empty_like(flat)
    for r in range(0, len(flat), rows):
        for c in range(0, flat.shape[1], 128):
            cell = flat[r : r + rows, c : c + 128]
            out[r : r + rows, c : c + 128] = fp8(cell, cell.abs().max() / 448)
    return out.reshape(x.shape)


def theirs(path: Path, weights: Round, inputs: Callable[[str], Round]) -> np.ndarray:
    """Logits of transformers, every projection's weight and input rounded; the head's are not."""
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and name != "lm_head":
            module.weight.data = weights(module.weight.data)
            cast = inputs(name)
            module.register_forward_pre_hook(lambda _module, given, cast=cast: (cast(given[0]),))
    with torch.no_grad():
        return np.asarray(model(torch.tensor([PROMPT])).logits[0].numpy())


def close(ours: np.ndarray, reference: np.ndarray) -> bool:
    """Equal up to fp32's rounding, which once in some hundred thousand values tips one to another code: what follows
    that token may then differ by as much as a code does."""
    apart = np.abs(ours - reference).max(axis=1) / reference.std()
    same = int(np.argmax(apart > 1e-4)) if (apart > 1e-4).any() else len(apart)
    return same >= 5 and bool((apart < 0.5).all())


def test_int8_by_channel_and_token(tmp_path: Path) -> None:
    path = save(tmp_path, "qwen2", 0, **SIZES)
    row = by_row(int8, 127)
    assert close(logits_of(run(path, weights="int8", activations="int8")), theirs(path, row, lambda name: row))


def test_fp8_by_channel_and_token(tmp_path: Path) -> None:
    path = save(tmp_path, "llama", 5, **SIZES)
    row = by_row(fp8, 448)
    assert close(logits_of(run(path, weights="fp8", activations="fp8")), theirs(path, row, lambda name: row))


def test_fp8_in_blocks_of_weights_and_of_tokens_whatever_the_layout(tmp_path: Path) -> None:
    path = save(tmp_path, "llama", 2, **SIZES | {"intermediate_size": 512})
    expected = theirs(path, lambda w: by_blocks(w, 128), lambda name: lambda x: by_blocks(x, 1))
    options: dict[str, Any] = {"weights": "fp8", "group": 128, "activations": "fp8"}
    for layout in ("tp=1", "pp=2"):
        assert close(logits_of(run(path, layout, **options)), expected), layout


def test_mxfp8_multiplies_blocks_of_32_under_powers_of_two(tmp_path: Path) -> None:
    path = save(tmp_path, "llama", 5, **SIZES)

    def cast(x: torch.Tensor) -> torch.Tensor:
        runs = x.unflatten(-1, (-1, 32))
        scale = torch.exp2(torch.floor(torch.log2(runs.abs().amax(-1, keepdim=True))) - 8)
        return fp8(runs, scale).flatten(-2)

    expected = theirs(path, cast, lambda name: cast)
    for layout in ("tp=1", "pp=2"):
        assert close(logits_of(run(path, layout, weights="mxfp8", activations="fp8")), expected), layout


def test_scales_from_a_calibration_set_are_one_a_product_whatever_the_layout(tmp_path: Path) -> None:
    path = save(tmp_path, "llama", 3, **SIZES)
    sets = [[(5 * index + number) % 131 for index in range(9 + number)] for number in range(3)]
    file = tmp_path / "ids.json"
    file.write_text(json.dumps(sets))
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    row, peaks = by_row(int8, 127), dict[str, float]()
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and name != "lm_head":
            module.weight.data = row(module.weight.data)

            def keep(_module: Any, given: Any, name: str = name) -> None:
                peaks[name] = max(peaks.get(name, 0.0), float(given[0].abs().max()))

            module.register_forward_pre_hook(keep)
    with torch.no_grad():
        for ids in sets:
            model(torch.tensor([ids]))
    expected = theirs(path, row, lambda name: lambda x: int8(x, torch.tensor(peaks[name] / 127)))
    options: dict[str, Any] = {"weights": "int8", "activations": "int8", "calibrate": str(file)}
    for layout in ("tp=1", "tp=2", "pp=2"):
        result = run(path, layout, **options)
        assert close(logits_of(result), expected), layout
        # 7 projections: qkv is one product, as gate and up are: 4 scales a layer, fp32
        weights = run(path, layout, weights="int8").report.cards[0]
        layers = 3 if layout != "pp=2" else 2
        assert result.report.cards[0].by_tag["scale"] - weights.by_tag["scale"] == 4 * 4 * layers


def test_experts_inputs_are_quantised_too_and_time_and_bytes_need_no_numbers(tmp_path: Path) -> None:
    path = save(tmp_path, "qwen3_moe", 4, **SIZES, moe_intermediate_size=32, num_experts=6)
    options: dict[str, Any] = {"weights": "int8", "activations": "int8", "logits": False, "dtype": "bfloat16"}
    for extra in ({}, {"calibrate": "32"}):
        on = run(path, "tp=2,ep=2", **options, **extra)
        used = {span.mnemonic for span in on.spans}
        assert {"quantised_matmul", "quantised_grouped_matmul"} <= used and "packed_matmul" not in used
    plain = run(path, "tp=2,ep=2", weights="int8")
    names = {span.mnemonic for span in plain.spans}
    assert {"packed_matmul", "packed_grouped_matmul"} <= names and "dequantise" not in names


def test_a_card_without_packed_products_decodes_first_and_gives_the_same_bits(tmp_path: Path) -> None:
    path = save(tmp_path, "qwen3_moe", 5, **SIZES, moe_intermediate_size=32, num_experts=6)
    for dtype in ("float32", "bfloat16"):
        options: dict[str, Any] = {"weights": "int4", "group": 32, "dtype": dtype}
        fused = run(path, "tp=2", **options)
        bare = (("native", "-packed_matmul,-packed_grouped_matmul"),)
        apart = run(path, "tp=2", **options, overrides=bare)
        np.testing.assert_array_equal(logits_of(fused), logits_of(apart))
        assert {"dequantise", "matmul"} <= {span.mnemonic for span in apart.spans}
        assert apart.report.totals.elapsed_ps > fused.report.totals.elapsed_ps


def test_scales_of_inputs_that_a_checkpoint_holds_are_taken(tmp_path: Path) -> None:
    path = pack(save(tmp_path, "llama", 5, **SIZES), "fp8")
    shape = Path(shutil.copytree(path, tmp_path / "plain"))
    rewrite(shape, open_checkpoint(path))
    tensors = load_file(path / "model.safetensors")
    given = {"qkv": 0.012, "o": 0.02, "mlp": 0.013, "down": 0.03}

    def scale(name: str) -> float:
        part = name.rpartition(".")[2].removesuffix("_proj")
        return given[{"q": "qkv", "k": "qkv", "v": "qkv", "gate": "mlp", "up": "mlp"}.get(part, part)]

    for name in [name for name in tensors if name.endswith("_proj.weight")]:
        module = name.removesuffix(".weight")
        tensors[f"{module}.input_scale"] = torch.tensor([scale(module)])
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((path / "config.json").read_text())
    inputs = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "tensor", "dynamic": False}
    config["quantization_config"]["config_groups"]["group_0"]["input_activations"] = inputs
    (path / "config.json").write_text(json.dumps(config))
    expected = theirs(shape, lambda w: w, lambda name: lambda x: fp8(x, torch.tensor(scale(name))))
    for layout in ("tp=1", "tp=2"):
        result = run(path, layout, activations="fp8")
        assert close(logits_of(result), expected), layout
        assert "quantise_static" in {span.mnemonic for span in result.spans}
        assert "quantise" not in {span.mnemonic for span in result.spans}


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path, "llama", 0, **SIZES)
    for options, message in (
        ({"activations": "int8"}, "--activations int8 multiplies weights of int8; these are not packed"),
        ({"activations": "int8", "weights": "int4"}, "these are int4_g128; give --weights int8"),
        ({"activations": "int3", "weights": "int8"}, "choose int8, fp8"),
        ({"calibrate": "9"}, "give --activations too"),
        ({"calibrate": "nowhere.json", "activations": "int8", "weights": "int8"}, "is no number of tokens and no file"),
        ({"calibrate": "9", "activations": "fp8", "weights": "fp8", "group": 128}, "has blocks of a row"),
        ({"activations": "fp8", "weights": "fp8", "card": "a100-sxm"}, "no tensor rate for --activations fp8"),
    ):
        with pytest.raises(ConfigError, match=message):
            run(path, **options)


def test_a_calibration_set_of_another_form_is_refused(tmp_path: Path) -> None:
    path, file = save(tmp_path, "llama", 0, **SIZES), tmp_path / "ids.json"
    for asked, content, message in (
        ("\u00b2", "", "--calibrate \u00b2 is no number of tokens and no file"),  # a digit, and no number
        ("9" * 5000, "", "from 1 to 1048576 tokens, or a file"),
        (str(tmp_path), "", "cannot read .*: Is a directory"),
        (str(file), "[" * 100_000, "not valid JSON .*--calibrate wants a list of lists of token ids"),
        (str(file), "[1, 2]", "--calibrate wants a list of lists of token ids, as .*, or a text file"),
        (str(file), "[[1, 99999]]", "sequence 0 of 2 must be 1 to"),
        (str(file), "[]", "holds no sequence"),
    ):
        file.write_text(content)
        with pytest.raises(ConfigError, match=message):
            run(path, activations="int8", weights="int8", calibrate=asked)
