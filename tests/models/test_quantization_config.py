"""quantization_config in its published spellings: which modules are quantised, how, and what is refused by name."""

from dataclasses import replace
from typing import Any

import pytest

from siltwin.isa.dtype import DTYPES
from siltwin.isa.errors import ConfigError, UnsupportedError
from siltwin.isa.formats.scheme import SCHEMES
from siltwin.models.packs.plan import FORMATS, QuantPlan
from siltwin.models.packs.quantization_config import read_quantization

# As published (the hub's config.json of each model, July 2025 to 2026), shortened to what is read.
DEEPSEEK_V3 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
GPT_OSS = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": [
        "model.layers.*.self_attn",
        "model.layers.*.mlp.router",
        "model.embed_tokens",
        "lm_head",
    ],
}
K3_WEIGHTS = {
    "num_bits": 4,
    "type": "float",
    "strategy": "group",
    "group_size": 32,
    "symmetric": True,
    "dynamic": False,
}
KIMI_K3 = {
    "quant_method": "compressed-tensors",
    "format": "mxfp4-pack-quantized",
    "config_groups": {
        "group_0": {
            "format": "mxfp4-pack-quantized",
            "targets": ["Linear"],
            "input_activations": None,
            "output_activations": None,
            "weights": {**K3_WEIGHTS, "scale_dtype": "torch.uint8"},
        }
    },
    "ignore": [
        "re:.*self_attn.*",
        "re:.*shared_experts.*",
        "re:.*mlp\\.(gate|up|gate_up|down)_proj.*",
        "re:.*lm_head.*",
        "re:.*vision_tower.*",
    ],
    "kv_cache_scheme": None,
}
KIMI_K2_SUMMARY = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True},
    "ignore": ["self_attn", "shared_experts", "dense mlp", "lm_head", "vision"],
}
W8A8 = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True},
            "input_activations": {
                "num_bits": 8,
                "type": "int",
                "strategy": "token",
                "symmetric": True,
                "dynamic": True,
            },
        }
    },
    "ignore": ["lm_head"],
    "kv_cache_scheme": {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True, "dynamic": False},
}


def plan_of(raw: Any) -> QuantPlan:
    plan = read_quantization({"quantization_config": raw}, "config.json")
    assert plan is not None
    return plan


def quantised(plan: QuantPlan, *modules: str, kind: str = "Linear") -> list[bool]:
    return [plan.group_of(module, kind) is not None for module in modules]


def changed(raw: dict[str, Any], **weights: Any) -> dict[str, Any]:
    """A config of one group with some of its weights' keys changed."""
    group = raw["config_groups"]["group_0"]
    return {**raw, "config_groups": {"group_0": {**group, "weights": {**group["weights"], **weights}}}}


def test_a_checkpoint_without_one_is_not_quantised() -> None:
    assert read_quantization({}, "config.json") is None
    assert read_quantization({"text_config": {"quantization_config": None}}, "config.json") is None


def test_deepseek_v3() -> None:
    plan = plan_of(DEEPSEEK_V3)
    group = plan.group_of("model.layers.3.mlp.experts.17.down_proj")
    assert group is not None and group.format is FORMATS["fp8"]
    assert group.weights is SCHEMES["fp8_e4m3_block128x128"] and group.activations is SCHEMES["fp8_e4m3_block1x128"]
    assert group.dynamic
    assert quantised(plan, "lm_head", "model.layers.3.self_attn.kv_b_proj") == [False, True]
    assert quantised(plan, "model.layers.3.mlp.gate", "model.embed_tokens", kind="Router") == [False, False]


def test_deepseek_with_scales_that_are_powers_of_two_and_other_blocks() -> None:
    plan = plan_of({**DEEPSEEK_V3, "scale_fmt": "ue8m0"})
    assert plan.groups[0].weights is SCHEMES["fp8_e4m3_block128x128_ue8m0"]
    plan = plan_of({**DEEPSEEK_V3, "weight_block_size": [64, 128]})
    assert plan.groups[0].weights == replace(
        SCHEMES["fp8_e4m3_block128x128"], name="fp8_e4m3_block64x128", block=(64, 128)
    )
    assert plan_of({**DEEPSEEK_V3, "weight_block_size": None}).groups[0].weights is SCHEMES["fp8_e4m3_tensor"]
    static = plan_of({**DEEPSEEK_V3, "activation_scheme": "static"}).groups[0]
    assert static.activations is SCHEMES["fp8_e4m3_tensor"] and not static.dynamic


def test_modules_to_not_convert_match_as_in_transformers() -> None:
    skipped = ["model.layers.1", "mlp.gate", "fc1"]
    plan = plan_of({**DEEPSEEK_V3, "modules_to_not_convert": skipped})
    names = ["model.layers.1.mlp.up_proj", "model.layers.11.mlp.up_proj", "a.mlp.gate", "mlp.gate_proj", "a.b.fc1"]
    assert quantised(plan, *names) == [False, True, False, True, False]
    should_convert = pytest.importorskip("transformers.quantizers.quantizers_utils").should_convert_module
    assert quantised(plan, *names) == [should_convert(name, skipped) for name in names]
    assert quantised(plan_of({**DEEPSEEK_V3, "ignored_layers": skipped}), *names) == quantised(plan, *names)


def test_gpt_oss() -> None:
    plan = plan_of(GPT_OSS)
    group = plan.group_of("model.layers.7.mlp.experts.gate_up_proj")
    assert group is not None and group.weights is SCHEMES["mxfp4"] and group.activations is None
    assert group.stored_names("model.layers.7.mlp.experts.gate_up_proj") == {
        "blocks": "model.layers.7.mlp.experts.gate_up_proj_blocks",
        "scales": "model.layers.7.mlp.experts.gate_up_proj_scales",
    }
    others = ["model.layers.7.self_attn.q_proj", "model.layers.7.mlp.router", "lm_head"]
    assert quantised(plan, *others) == [False, False, False]
    short = plan_of({**GPT_OSS, "modules_to_not_convert": ["self_attn", "router", "embed_tokens", "lm_head"]})
    assert quantised(short, "model.layers.7.mlp.experts.down_proj", *others) == [True, False, False, False]


def test_kimi_k3_inside_its_text_config() -> None:
    plan = read_quantization({"text_config": {"quantization_config": KIMI_K3}}, "config.json")
    assert plan is not None and plan.kv_cache is None
    expert = "language_model.model.layers.5.block_sparse_moe.experts.31.w1"
    group = plan.group_of(expert)
    assert group is not None and group.weights is SCHEMES["mxfp4"]
    assert group.stored_names(expert) == {
        "weight_packed": f"{expert}.weight_packed",
        "weight_scale": f"{expert}.weight_scale",
    }
    layer = "language_model.model.layers.5"
    others = [f"{layer}.self_attn.q_proj", f"{layer}.mlp.gate_proj", f"{layer}.x.shared_experts.up_proj", "lm_head"]
    assert quantised(plan, *others) == [False] * 4


def test_kimi_k2_as_its_summary_says_it() -> None:
    plan = plan_of(KIMI_K2_SUMMARY)
    group = plan.group_of("model.layers.5.mlp.experts.31.up_proj")
    assert group is not None and group.weights is SCHEMES["int4_g32_words"]
    assert list(group.stored_names("m").values()) == ["m.weight_packed", "m.weight_scale", "m.weight_shape"]
    others = ["model.layers.0.mlp.up_proj", "model.layers.3.mlp.shared_experts.up_proj", "lm_head"]
    assert quantised(plan, *others, "model.layers.3.self_attn.o_proj") == [False] * 4


def test_w8a8_with_an_fp8_cache() -> None:
    plan = plan_of(W8A8)
    group = plan.group_of("model.layers.0.mlp.up_proj")
    assert group is not None and group.format is FORMATS["int-quantized"] and group.dynamic
    row = replace(SCHEMES["int8_channel"], name="row")
    assert [replace(s, name="row") for s in (group.weights, group.activations) if s] == [row, row]
    assert plan.kv_cache is SCHEMES["fp8_e4m3_tensor"]
    assert quantised(plan, "lm_head", "lm_head.0", "model.lm_head") == [False, True, True]  # whole names, as theirs


def test_a_name_outranks_a_pattern_and_a_pattern_a_kind() -> None:
    eight = {"targets": ["Linear"], "weights": {"num_bits": 8, "group_size": 64}}
    raw = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {
            "a": eight,
            "b": {"targets": ["re:.*down_proj$"], "weights": {"num_bits": 4, "group_size": 32}},
            "c": {"targets": ["m.0.down_proj"], "weights": {"num_bits": 4, "group_size": 128, "symmetric": False}},
        },
    }
    plan = plan_of(raw)
    schemes = [plan.group_of(name) for name in ("m.1.up_proj", "m.1.down_proj", "m.0.down_proj")]
    assert [group.weights.name for group in schemes if group] == [
        "int8_block1x64_words",
        "int4_g32_words",
        "int4_g128_asymmetric",
    ]
    assert schemes[2] is not None and "weight_zero_point" in schemes[2].stored_names("m.0.down_proj")
    assert quantised(plan, "m.0.norm", kind="Norm") == [False]


def test_every_format_has_a_name_and_reads_its_scheme() -> None:
    assert all(entry.name == name for name, entry in FORMATS.items())
    fp8 = {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]}
    block = plan_of({**changed(W8A8, **fp8), "format": "float-quantized"}).groups[0]
    assert block.weights is SCHEMES["fp8_e4m3_block128x128"]
    nvfp4 = {**KIMI_K3["config_groups"]["group_0"], "format": "nvfp4-pack-quantized"}  # type: ignore[index]
    weights = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
    nvfp4 = {**nvfp4, "weights": weights, "input_activations": {**weights, "dynamic": "local"}}
    group = plan_of({**KIMI_K3, "config_groups": {"group_0": nvfp4}}).groups[0]
    assert group.weights is group.activations is SCHEMES["nvfp4"] and group.dynamic
    mxfp8 = {"num_bits": 8, "type": "float", "strategy": "group", "group_size": 32}
    assert plan_of({**changed(W8A8, **mxfp8), "format": "mxfp8-quantized"}).groups[0].weights is SCHEMES["mxfp8_e4m3"]
    assert plan_of(changed(W8A8, group_size=-1, strategy=None)).groups[0].weights.granularity == "row"
    assert plan_of(W8A8).groups[0].weights.scale is DTYPES["fp32"]


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"quant_method": "gptq"}, "quant_method='gptq' is not supported; known: fp8, mxfp4, compressed-tensors"),
        ({**DEEPSEEK_V3, "expert_dtype": "fp4"}, "expert_dtype='fp4' is not supported; known: fp8"),
        (
            {**DEEPSEEK_V3, "modules_to_convert": ["embed_tokens"]},
            "modules_to_convert=.* is not supported; known: quant",
        ),
        ({**GPT_OSS, "swizzle": True}, "swizzle=True is not supported; known: quant_method, modules_to_not_convert"),
        ({**DEEPSEEK_V3, "scale_fmt": "e5m3"}, "scale_fmt='e5m3' is not supported; known: float, ue8m0"),
        ({**W8A8, "format": "marlin-24"}, "format='marlin-24' is not supported; known: pack-quantized"),
        ({**W8A8, "quantization_status": "frozen"}, "the weights are not packed"),
        ({**W8A8, "sparsity_config": {"format": "x"}}, "sparsity_config and transform_config are not supported"),
        (changed(W8A8, num_bits=3), "3-bit int is not supported; known: 4 and 8-bit int"),
        (changed(W8A8, actorder="group"), "actorder=group"),
        (changed(W8A8, strategy="attn_head"), "strategy='attn_head' is not supported; known: tensor, channel"),
        ({**W8A8, "config_groups": {"g": {"targets": []}}}, "config_groups.g has no weights"),
    ],
)
def test_what_is_not_read_is_refused_by_name(raw: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message) as error:
        plan_of(raw)
    assert str(error.value).startswith("config.json: quantization_config")


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ([], r"quantization_config is \[\]; it must be an object"),
        ({**DEEPSEEK_V3, "weight_block_size": [128]}, r"weight_block_size is \[128\]; it must be \[rows, cols\]"),
        (
            {**DEEPSEEK_V3, "modules_to_not_convert": "lm_head"},
            "modules_to_not_convert is 'lm_head'; it must be a list",
        ),
        ({**DEEPSEEK_V3, "modules_to_not_convert": ["("]}, r"'re:\(' is not a pattern"),
        ({**W8A8, "config_groups": {}}, "config_groups is {}; it must name at least one group"),
        ({**W8A8, "ignore": ["re:("]}, r"quantization_config.ignore: 're:\(' is not a pattern"),
        (changed(W8A8, strategy="group", group_size=0), "group_size is 0; strategy group needs a whole number from 1"),
        (changed(W8A8, strategy="block"), "block_structure is None; it must be"),
        (changed(KIMI_K3, group_size=16), r"mxfp4 is 4-bit float in \[1, 32\], not 4-bit float in blocks of \[1, 16\]"),
    ],
)
def test_what_makes_no_sense_is_a_config_error(raw: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_of(raw)
