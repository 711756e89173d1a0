"""Weights quantised on loading: the numbers are those of the decoded weights, the bytes those of codes and scales."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from checkpoints import reference, save  # noqa: E402
from packed_checkpoints import is_packed  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

from siltwin.isa.errors import ConfigError  # noqa: E402
from siltwin.isa.formats.quantise import dequantise, quantise  # noqa: E402
from siltwin.isa.formats.scheme import SCHEMES  # noqa: E402
from siltwin.runtime.job import Job  # noqa: E402
from siltwin.runtime.quantised_weights import weight_scheme  # noqa: E402
from siltwin.runtime.run import RunResult, run_job  # noqa: E402

SIZES: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16, "num_attention_heads": 8}
MOE = SIZES | {"moe_intermediate_size": 128, "num_experts": 6}
GPT_OSS = SIZES | {"num_local_experts": 6}
PROMPTS = [[(7 * index + 3 * length) % 131 for index in range(length)] for length in (1, 9, 40)]


def run(path: Path, layout: str = "tp=1", **options: Any) -> RunResult:
    prompts = tuple(map(tuple, PROMPTS))
    given: dict[str, Any] = {"prompt_ids": prompts, "max_new_tokens": 8, "ignore_eos": True, "logits": True} | options
    return run_job(Job(str(path), layout=layout, **{"dtype": "float32", "kv_dtype": "float32", **given}))


def decoded(path: Path, scheme: str) -> Path:
    """A checkpoint whose matrices are what the scheme makes of those at `path`."""
    plain = Path(shutil.copytree(path, path.with_name("decoded")))
    tensors = load_file(plain / "model.safetensors")
    for name, tensor in tensors.items():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):  # gpt-oss: [experts, in, out]
            values = np.ascontiguousarray(tensor.numpy().swapaxes(1, 2))
            tensors[name] = torch.from_numpy(dequantise(quantise(values, SCHEMES[scheme])).swapaxes(1, 2).copy())
        elif is_packed(name, tensor):
            tensors[name] = torch.from_numpy(dequantise(quantise(tensor.numpy(), SCHEMES[scheme])))
    save_file(tensors, plain / "model.safetensors", metadata={"format": "pt"})
    return plain


@pytest.mark.parametrize(
    ("family", "sizes", "asked", "scheme", "layouts"),
    [
        ("llama", SIZES, {"weights": "int4", "group": 32}, "int4_g32", ["tp=1", "tp=2", "tp=4", "pp=2"]),
        ("qwen2", SIZES, {"weights": "int8"}, "int8_channel", ["tp=1", "tp=4"]),
        ("qwen3_moe", MOE, {"weights": "mxfp4"}, "mxfp4", ["tp=1", "tp=2", "tp=4,ep=2"]),
        ("gpt_oss", GPT_OSS, {"weights": "fp8"}, "fp8_e4m3_channel", ["tp=2", "tp=4,ep=4"]),
    ],
)
def test_logits_and_tokens_are_those_of_the_decoded_weights(
    tmp_path: Path, family: str, sizes: dict[str, Any], asked: dict[str, Any], scheme: str, layouts: list[str]
) -> None:
    path = save(tmp_path, family, 0, **sizes)
    plain = decoded(path, scheme)
    expected = [reference(plain, prompt, 8) for prompt in PROMPTS]
    for layout in layouts:
        result = run(path, layout, **asked)
        assert result.logits is not None
        assert any(f"quantised to {scheme} on loading" in warning for warning in result.report.warnings)
        for index, (logits, tokens, rows) in enumerate(expected):
            spread = logits.std()
            assert np.abs(result.logits[f"logits_{index}"] - logits).max() <= 1e-4 * spread
            assert np.abs(result.logits[f"decode_logits_{index}"] - np.stack(rows)).max() <= 1e-4 * spread
            assert list(result.report.requests[index].tokens) == tokens


def test_hbm_holds_codes_and_scales_and_the_time_without_numbers_is_the_same(tmp_path: Path) -> None:
    path = save(tmp_path, "llama", 0, **SIZES, tie_word_embeddings=True)
    options = {"weights": "int4", "group": 32, "logits": False, "dtype": "bfloat16"}
    on, off = run(path, **options), run(path, payload=False, **options)
    assert on.spans == off.spans and on.memory == off.memory
    # q 128x64, k and v 32x64, o 64x128, gate and up 128x64, down 64x128: half a byte each and 2 bytes per 32
    matrices = 3 * (128 * 64 + 2 * 32 * 64 + 64 * 128 + 3 * 128 * 64)
    rest = 131 * 64 + 7 * 64  # the tied embedding; two norms a layer and the last
    assert on.report.cards[0].by_tag["weight"] == matrices // 2 + rest * 2
    assert on.report.cards[0].by_tag["scale"] == matrices // 32 * 2
    plain = run(path, logits=False, dtype="bfloat16")
    assert plain.report.cards[0].by_tag["weight"] == 2 * (matrices + rest)


@pytest.mark.parametrize(
    ("family", "asked", "scheme"),
    [
        ("llama", {"weights": "int4"}, "int4_g128"),  # blocks of 128, cut into 16
        ("qwen3_moe", {"weights": "nvfp4"}, "nvfp4"),
        ("qwen2", {"weights": "fp8", "group": 128}, "fp8_e4m3_block128x128"),
    ],
)
def test_a_cut_through_a_block_changes_nothing(tmp_path: Path, family: str, asked: dict[str, Any], scheme: str) -> None:
    path = save(tmp_path, family, 0, **(MOE if "moe" in family else SIZES) | {"num_key_value_heads": 1})
    plain = decoded(path, scheme)
    logits, tokens, _ = reference(plain, PROMPTS[1], 8)
    for layout in ("tp=1", "tp=8"):
        result = run(path, layout, prompt_ids=(tuple(PROMPTS[1]),), **asked)
        assert result.logits is not None
        assert np.abs(result.logits["logits_0"] - logits).max() <= 1e-4 * logits.std()
        assert list(result.report.requests[0].tokens) == tokens


def test_formats_and_groups_that_do_not_exist_are_named() -> None:
    assert (weight_scheme("int4", None).name, weight_scheme("int8", 128).name) == ("int4_g128", "int8_g128")
    with pytest.raises(ConfigError, match="--weights 'int3' is no format of weights; choose int8, int4, .*as-stored"):
        weight_scheme("int3", None)
    with pytest.raises(ConfigError, match="--group 64 is no group of --weights int4; there is 128, 32"):
        weight_scheme("int4", 64)
    with pytest.raises(ConfigError, match="--group 64 is no group of --weights mxfp4; there is 32"):
        weight_scheme("mxfp4", 64)
    with pytest.raises(ConfigError, match="--group sizes the blocks of --weights"):
        Job("m", group=32)
