"""Packed weights decode as the libraries that wrote them decode them, bit for bit, and misfits are named."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from pack_oracles import Array, Stored, decompressed, library, scales_of, stored  # noqa: E402

from siltwin.isa.dtype import DTYPES, decode, encode  # noqa: E402
from siltwin.isa.errors import ConfigError, UnsupportedError  # noqa: E402
from siltwin.isa.formats.quantise import dequantise, quantise  # noqa: E402
from siltwin.isa.formats.scheme import SCHEMES  # noqa: E402
from siltwin.isa.formats.window import covering, cut  # noqa: E402
from siltwin.models.packs.fp8 import fp8_pack  # noqa: E402
from siltwin.models.packs.gpt_oss import gpt_oss_pack, gpt_oss_weight  # noqa: E402
from siltwin.models.packs.plan import PackGroup  # noqa: E402
from siltwin.models.packs.quantization_config import read_quantization  # noqa: E402

FLOATS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def weight(rows: int, cols: int, dtype: str = "fp32", seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.exp2(torch.randint(-4, 5, (rows, 1), generator=generator).float())
    return (torch.randn(rows, cols, generator=generator) * sizes).to(FLOATS[dtype])


def group_of(form: str, weights: dict[str, Any]) -> PackGroup:
    """The group that our reader makes of the same words in a config.json."""
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    config = {"quant_method": "compressed-tensors", "format": form, "config_groups": groups}
    plan = read_quantization({"quantization_config": config}, "config.json")
    assert plan is not None
    group = plan.group_of("model.layers.0.mlp.up_proj")
    assert group is not None and group.format.name == form
    return group


def rounded(values: Array, dtype: str) -> Array:
    return decode(encode(values, DTYPES[dtype]), DTYPES[dtype])


def assert_decodes(form: str, args: dict[str, Any], tensors: dict[str, Stored], theirs: Array, dtype: str) -> None:
    group = group_of(form, args)
    names = group.stored_names("m")
    assert set(tensors) == set(names), "the file holds the tensors that the group says it holds"
    assert names == {name: f"m.{name}" for name in tensors}
    packed = group.read(tensors)
    ours = rounded(dequantise(packed), dtype)
    assert np.array_equal(ours.view(np.uint32), theirs.view(np.uint32))
    file_bytes = sum(array.nbytes for name, (array, _) in tensors.items() if name != "weight_shape")
    assert packed.nbytes == file_bytes


@pytest.mark.parametrize("dtype", list(FLOATS))
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(
    ("rows", "cols", "group"), [(24, 128, 32), (13, 256, 128), (11, 96, 32), (9, 36, -1), (7, 13, -1)]
)
@pytest.mark.parametrize("bits", [4, 8])
def test_pack_quantized(bits: int, rows: int, cols: int, group: int, symmetric: bool, dtype: str) -> None:
    strategy = {"strategy": "channel"} if group < 0 else {"strategy": "group", "group_size": group}
    args = {"num_bits": bits, "type": "int", "symmetric": symmetric, **strategy}
    value = weight(rows, cols, dtype)
    scale, zero = scales_of(value, args, 1, cols if group < 0 else group)
    state = {"weight": value, "weight_scale": scale, "weight_zero_point": zero}
    tensors, theirs = library("pack-quantized", state, args)
    assert_decodes("pack-quantized", args, tensors, theirs, dtype)


@pytest.mark.parametrize("dtype", list(FLOATS))
@pytest.mark.parametrize(
    ("strategy", "rows", "cols"),
    [({"strategy": "tensor"}, 0, 0), ({"strategy": "channel"}, 1, 0), ({"strategy": "group", "group_size": 64}, 1, 64)],
)
@pytest.mark.parametrize("form", ["float-quantized", "int-quantized", "naive-quantized"])
def test_float_and_int_quantized(form: str, strategy: dict[str, Any], rows: int, cols: int, dtype: str) -> None:
    args = {"num_bits": 8, "type": "float" if form == "float-quantized" else "int", "symmetric": True, **strategy}
    value = weight(21, 128, dtype)
    scale, _ = scales_of(value, args, rows or 21, cols or 128)
    scale = scale.reshape(1) if not rows else scale
    tensors, theirs = library(form, {"weight": value, "weight_scale": scale}, args)
    assert_decodes(form, args, tensors, theirs, dtype)


@pytest.mark.parametrize("dtype", list(FLOATS))
def test_float_quantized_in_blocks_with_partial_ones(dtype: str) -> None:
    args = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "block", "block_structure": [128, 128]}
    value = weight(200, 300, dtype)
    scale = torch.rand(2, 3).to(FLOATS[dtype]) + 0.01
    tensors, theirs = library("float-quantized", {"weight": value, "weight_scale": scale}, args)
    assert_decodes("float-quantized", args, tensors, theirs, dtype)


def test_asymmetric_int8_by_channel() -> None:
    args = {"num_bits": 8, "type": "int", "symmetric": False, "strategy": "channel"}
    value = weight(19, 40) + 3
    scale, zero = scales_of(value, args, 1, 40)
    state = {"weight": value, "weight_scale": scale, "weight_zero_point": zero}
    tensors, theirs = library("int-quantized", state, args)
    assert_decodes("int-quantized", args, tensors, theirs, "fp32")


MXFP4 = {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "group", "group_size": 32}


def test_mxfp4_pack_quantized() -> None:
    args = {**MXFP4, "scale_dtype": "torch.uint8"}
    value = weight(40, 128, "bf16")
    scale = torch.exp2(torch.randint(-20, 20, (40, 4)).float())
    tensors, theirs = library("mxfp4-pack-quantized", {"weight": value, "weight_scale": scale}, args)
    assert_decodes("mxfp4-pack-quantized", args, tensors, theirs, "bf16")


def test_mxfp4_of_every_byte_under_every_scale_but_nan() -> None:
    packed = torch.arange(256, dtype=torch.uint8).repeat(254, 1)
    scale = torch.arange(254, dtype=torch.uint8)[:, None].repeat(1, 16)  # 254 overflows bf16 in 6 x 2**127, as it must
    state = {"weight_packed": packed, "weight_scale": scale}
    theirs = decompressed("mxfp4-pack-quantized", dict(state), {**MXFP4, "scale_dtype": "torch.uint8"})
    ours = dequantise(group_of("mxfp4-pack-quantized", MXFP4).read({k: stored(v) for k, v in state.items()}))
    assert np.array_equal(rounded(ours, "bf16"), theirs)


def test_mxfp8_quantized() -> None:
    args = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "group", "group_size": 32}
    args["scale_dtype"] = "torch.uint8"
    value = weight(17, 96, "bf16")
    scale = torch.exp2(torch.randint(-12, 4, (17, 3)).float())
    tensors, theirs = library("mxfp8-quantized", {"weight": value, "weight_scale": scale}, args)
    assert_decodes("mxfp8-quantized", args, tensors, theirs, "bf16")


@pytest.mark.parametrize("seed", range(3))
def test_nvfp4_pack_quantized(seed: int) -> None:
    args = {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "tensor_group", "group_size": 16}
    args["scale_dtype"] = "torch.float8_e4m3fn"
    value = weight(33, 160, "bf16", seed)
    divisor = (448 * 6 / value.abs().max()).float().reshape(1)
    scale = (divisor * value.reshape(33, 10, 16).abs().amax(-1).float() / 6).to(torch.float8_e4m3fn).float()
    state = {"weight": value, "weight_scale": scale, "weight_global_scale": divisor}
    tensors, theirs = library("nvfp4-pack-quantized", state, args)
    assert_decodes("nvfp4-pack-quantized", args, tensors, theirs, "bf16")


@pytest.mark.parametrize("scale_dtype", ["fp32", "bf16", "e8m0"])
@pytest.mark.parametrize(("rows", "cols"), [(128, 128), (130, 300), (576, 64), (1, 7168)])
def test_deepseek_fp8_blocks_are_those_of_transformers(rows: int, cols: int, scale_dtype: str) -> None:
    from transformers.integrations.finegrained_fp8 import _dequantize_fp8_weight

    codes = weight(rows, cols).to(torch.float8_e4m3fn)
    scale = torch.exp2(torch.randint(-9, 9, (-(-rows // 128), -(-cols // 128))).float())
    scale = scale.to(torch.float8_e8m0fnu) if scale_dtype == "e8m0" else (scale * 1.1).to(FLOATS[scale_dtype])
    config = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    config["scale_fmt"] = "ue8m0" if scale_dtype == "e8m0" else "float"
    plan = read_quantization({"quantization_config": config}, "config.json")
    assert plan is not None
    group = plan.group_of("model.layers.0.self_attn.q_a_proj")
    assert group is not None
    assert group.stored_names("a") == {"weight": "a.weight", "weight_scale_inv": "a.weight_scale_inv"}
    packed = group.read({"weight": stored(codes), "weight_scale_inv": stored(scale)})
    theirs = _dequantize_fp8_weight(codes, scale, [128, 128], torch.float32).numpy()
    assert np.array_equal(dequantise(packed), theirs)
    assert packed.nbytes == rows * cols + scale.numel() * scale.element_size()


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_gpt_oss_experts_are_those_of_transformers(dtype: str) -> None:
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    generator = torch.Generator().manual_seed(1)
    blocks = torch.randint(0, 256, (3, 34, 5, 16), dtype=torch.uint8, generator=generator)
    scales = torch.randint(8, 246, (3, 34, 5), dtype=torch.uint8, generator=generator)
    theirs = convert_moe_packed_tensors(blocks, scales, dtype=FLOATS[dtype]).float().numpy()
    packed = gpt_oss_pack({"blocks": stored(blocks), "scales": stored(scales)})
    ours = gpt_oss_weight(packed)
    assert packed.shape == (3, 34, 160) and ours.shape == (3, 160, 34)
    assert np.array_equal(rounded(ours, dtype), theirs)
    assert packed.nbytes == blocks.numel() + scales.numel()


def test_the_file_decides_the_dtype_of_float_scales() -> None:
    tensors = {"weight": stored(weight(4, 8).to(torch.int8)), "weight_scale": stored(torch.ones(4, 1).half())}
    args = {"num_bits": 8, "type": "int", "strategy": "channel"}
    assert group_of("int-quantized", args).read(tensors).scheme.scale is DTYPES["fp16"]


@pytest.mark.parametrize("name", ["mxfp4", "nvfp4", "int4_g32", "int4_g32_words", "int4_g32_asymmetric", "int8_token"])
def test_cuts_at_block_boundaries_decode_to_the_same_part(name: str) -> None:
    value = weight(48, 256).numpy()
    packed = quantise(value, SCHEMES[name])
    whole = dequantise(packed)
    assert np.array_equal(dequantise(cut(packed, 0, 8, 40)), whole[8:40])
    assert np.array_equal(dequantise(cut(packed, 1, 32, 160)), whole[:, 32:160])
    assert cut(packed, 1, 32, 160).nbytes == SCHEMES[name].bytes_of((48, 128))


def test_cuts_of_experts_and_of_partial_blocks() -> None:
    values = np.stack([weight(200, 300, seed=seed).numpy() for seed in range(4)])
    packed = quantise(values, SCHEMES["fp8_e4m3_block128x128"])
    whole = dequantise(packed)
    assert np.array_equal(dequantise(cut(packed, 0, 1, 3)), whole[1:3])
    assert np.array_equal(dequantise(cut(packed, 1, 128, 200)), whole[:, 128:])
    assert np.array_equal(dequantise(cut(packed, 2, 256, 300)), whole[:, :, 256:])
    with pytest.raises(ConfigError, match=r"\[100, 200\) of axis 1 cuts a block .* cut at multiples of 128"):
        cut(packed, 1, 100, 200)
    window = covering(packed.scheme, packed.shape, 1, 100, 150)
    assert (window.start, window.stop, window.codes, window.scales) == (0, 200, slice(0, 200), slice(0, 2))
    window = covering(SCHEMES["int4_g32_words"], (4, 256), 1, 40, 60)
    assert (window.start, window.stop, window.codes, window.scales) == (32, 64, slice(4, 8), slice(1, 2))
    window = covering(SCHEMES["int8_channel"], (4, 256), 1, 40, 60)
    assert (window.start, window.stop, window.codes, window.scales) == (40, 60, slice(40, 60), slice(0, 1))
    with pytest.raises(ConfigError, match="has no axis 2"):
        covering(SCHEMES["mxfp4"], (4, 256), 2, 0, 1)
    with pytest.raises(ConfigError, match="is not within the 4 elements"):
        covering(SCHEMES["mxfp4"], (4, 256), 0, 0, 5)


def test_tensors_that_do_not_fit_are_named() -> None:
    good = {"weight": stored(weight(130, 40).to(torch.float8_e4m3fn)), "weight_scale_inv": stored(torch.ones(2, 1))}
    scheme = SCHEMES["fp8_e4m3_block128x128"]
    assert fp8_pack(good, scheme).shape == (130, 40)
    with pytest.raises(ConfigError, match="weight_scale_inv is missing beside weight"):
        fp8_pack({"weight": good["weight"]}, scheme)
    with pytest.raises(ConfigError, match=r"weight_scale_inv has shape \[1, 1\]; .* has \[2, 1\]"):
        fp8_pack({**good, "weight_scale_inv": stored(torch.ones(1, 1))}, scheme)
    with pytest.raises(ConfigError, match="weight is int8; this packing stores fp8_e4m3"):
        fp8_pack({**good, "weight": stored(torch.ones(130, 40).to(torch.int8))}, scheme)
    with pytest.raises(ConfigError, match=r"are not \[experts, out, groups, 16\]"):
        blocks, scales = torch.zeros(1, 2, 3, 16, dtype=torch.uint8), torch.zeros(1, 2, 4, dtype=torch.uint8)
        gpt_oss_pack({"blocks": stored(blocks), "scales": stored(scales)})


def test_int4_tensors_that_do_not_fit_are_named() -> None:
    args = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}
    value = weight(8, 64)
    scale, zero = scales_of(value, args, 1, 32)
    tensors, _ = library("pack-quantized", {"weight": value, "weight_scale": scale, "weight_zero_point": zero}, args)
    group = group_of("pack-quantized", args)
    shape = stored(torch.tensor([9, 64]))
    with pytest.raises(ConfigError, match=r"weight_shape is \[9, 64\] and weight_packed has shape \[8, 8\]"):
        group.read({**tensors, "weight_shape": shape})
    with pytest.raises(ConfigError, match=r"codes of .* \[8, 72\] are int32 \[8, 9\], not int32 \[8, 8\]"):
        bigger = {**tensors, "weight_shape": stored(torch.tensor([8, 72])), "weight_scale": stored(torch.ones(8, 3))}
        group.read(bigger)
    with pytest.raises(UnsupportedError, match="weight_g_idx"):
        group.read({**tensors, "weight_g_idx": shape})
    asymmetric = replace(group, weights=SCHEMES["int4_g32_asymmetric"])
    with pytest.raises(ConfigError, match="weight_zero_point is missing beside weight_packed"):
        asymmetric.read(tensors)
    assert asymmetric.stored_names("m")["weight_zero_point"] == "m.weight_zero_point"


@pytest.mark.parametrize(
    ("form", "args", "rows", "cols", "scheme", "amax_code"),
    [
        ("pack-quantized", {"num_bits": 4, "strategy": "group", "group_size": 32}, 1, 32, "int4_g32_words", 7.5),
        ("int-quantized", {"num_bits": 8, "strategy": "channel"}, 1, 256, "int8_channel", 127.5),
        ("float-quantized", {"num_bits": 8, "type": "float", "strategy": "channel"}, 1, 256, "fp8_e4m3_channel", 448.0),
    ],
)
def test_quantising_gives_the_codes_and_scales_of_compressed_tensors(
    form: str, args: dict[str, Any], rows: int, cols: int, scheme: str, amax_code: float
) -> None:
    value = weight(64, 256)
    scale, _ = scales_of(value, args, rows, cols)
    tensors, _ = library(form, {"weight": value, "weight_scale": scale}, args)
    own = replace(SCHEMES[scheme], scale=DTYPES["fp32"], amax_code=amax_code)
    packed = quantise(value.numpy(), own)
    assert np.array_equal(packed.scales.codes, tensors["weight_scale"][0])
    assert np.array_equal(packed.codes, tensors["weight_packed" if form == "pack-quantized" else "weight"][0])


def test_quantising_to_nvfp4_gives_the_codes_and_scales_of_compressed_tensors() -> None:
    args = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
    value = weight(64, 256)
    packed = quantise(value.numpy(), SCHEMES["nvfp4"])
    divisor = (448 * 6 / value.abs().max()).reshape(1)
    qargs = {**args, "scale_dtype": "torch.float8_e4m3fn"}
    scale, _ = scales_of(value, qargs, 1, 16, divisor)
    state = {"weight": value, "weight_scale": scale, "weight_global_scale": divisor}
    tensors, _ = library("nvfp4-pack-quantized", state, args)
    assert packed.scales.global_scale == divisor.numpy()[0]
    assert np.array_equal(packed.scales.codes, tensors["weight_scale"][0])
    assert np.array_equal(packed.codes, tensors["weight_packed"][0])


@pytest.mark.parametrize("cols", [256, 300])
def test_quantising_activations_is_deepseeks_rule(cols: int) -> None:
    """s = amax / 448 of each 1 x 128 block, y = x / s in e4m3 (DeepSeek-V3, inference/kernel.py, act_quant)."""
    value = weight(40, cols)
    packed = quantise(value.numpy(), SCHEMES["fp8_e4m3_block1x128"])
    for start in range(0, cols, 128):
        block = value[:, start : start + 128]
        scale = block.abs().amax(dim=1, keepdim=True) / 448.0
        assert np.array_equal(packed.scales.codes[:, start // 128], scale.numpy()[:, 0])
        theirs = (block / scale).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
        assert np.array_equal(packed.codes[:, start : start + 128], theirs)
