"""Packed checkpoints load to the bits that transformers and compressed-tensors load, and run equal to transformers."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from checkpoints import reference, save  # noqa: E402
from packed_checkpoints import FORMS, gpt_oss, library_weights, pack, rewrite  # noqa: E402

from siltwin.isa.dtype import BF16, FP32, decode  # noqa: E402
from siltwin.models.checkpoint import Checkpoint, open_checkpoint  # noqa: E402
from siltwin.runtime.align import align  # noqa: E402
from siltwin.runtime.job import Job  # noqa: E402
from siltwin.runtime.run import run_job  # noqa: E402

SIZES = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16, "num_attention_heads": 8}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": SIZES,
    "qwen3": SIZES,
    "qwen3_moe": SIZES | {"moe_intermediate_size": 32, "num_experts": 6, "mlp_only_layers": [0]},
}
# Of packed experts transformers reads neither int8 nor zero points, and it leaves out nvfp4's global scale: the next
# test asks the library for those.
UNREAD_EXPERTS, LOST_FOR_EXPERTS = ("int8", "int4-asymmetric"), ("nvfp4",)
DTYPES = {"fp32": (FP32, torch.float32), "bf16": (BF16, torch.bfloat16)}


@pytest.fixture(autouse=True)
def no_accelerate(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers asks for accelerate before it reads fp8, though on one device nothing needs it."""
    from transformers.quantizers import quantizer_finegrained_fp8

    monkeypatch.setattr(quantizer_finegrained_fp8, "is_accelerate_available", lambda: True)


def theirs(path: Path, dtype: torch.dtype) -> dict[str, np.ndarray]:
    """transformers' own parameters of a packed checkpoint, dequantised as it loads them."""
    import transformers

    config = transformers.AutoConfig.from_pretrained(path)
    config.quantization_config["dequantize"] = True
    model = transformers.AutoModelForCausalLM.from_pretrained(path, config=config, dtype=dtype)
    # It leaves packed experts in the dtype of their scales, whatever was asked for.
    return {name: tensor.to(dtype).float().numpy() for name, tensor in model.state_dict().items()}


def fused(checkpoint: Checkpoint, name: str, dtype: Any) -> np.ndarray:
    """A parameter of transformers 5 from our tensors: those of experts are stacked, gate before up."""

    def load(tensor: str) -> np.ndarray:
        return decode(checkpoint.load(tensor, dtype), dtype)

    if ".experts." not in name:
        return load(name)
    prefix, _, part = name.rpartition(".")
    parts = ["gate_proj", "up_proj"] if part == "gate_up_proj" else [part]
    count = checkpoint.config.moe.num_experts
    return np.stack([np.concatenate([load(f"{prefix}.{e}.{part}.weight") for part in parts]) for e in range(count)])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("form", ["deepseek", *FORMS])
@pytest.mark.parametrize("family", FAMILIES)
def test_weights_are_those_of_transformers_to_the_bit(
    tmp_path: Path, family: str, form: str, scale_dtype: Any, dtype: str
) -> None:
    if family == "qwen3_moe" and form in UNREAD_EXPERTS:
        pytest.skip(f"transformers reads no experts in {form}")
    path = pack(save(tmp_path, family, 0, **FAMILIES[family]), form, scale_dtype)
    ours = open_checkpoint(path)
    own, their_dtype = DTYPES[dtype]
    reference = theirs(path, their_dtype)
    for name, tensor in reference.items():
        if name == "lm_head.weight" and ours.graph.tied or (form in LOST_FOR_EXPERTS and ".experts." in name):
            continue
        assert np.array_equal(fused(ours, name, own), tensor), name
    assert any("the checkpoint is quantised" in warning for warning in ours.warnings)


@pytest.mark.parametrize("scale_dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("form", FORMS)
def test_experts_are_those_of_compressed_tensors_to_the_bit(tmp_path: Path, form: str, scale_dtype: Any) -> None:
    path = pack(save(tmp_path, "qwen3_moe", 0, **FAMILIES["qwen3_moe"]), form, scale_dtype)
    ours, experts = open_checkpoint(path), 0
    for name, tensor in library_weights(path, form).items():
        if ".experts." not in name:
            continue
        experts += 1
        loaded = torch.from_numpy(ours.load(name, FP32))
        if form == "fp8":  # which transformers multiplies in fp32 for experts, the library in the dtype of the scales
            loaded = loaded.to(scale_dtype).float()
        assert torch.equal(loaded, tensor.float()), name
    assert experts == 6 * 3


@pytest.mark.parametrize("form", ["deepseek", *FORMS])
def test_slices_of_either_axis_are_those_of_the_whole(tmp_path: Path, form: str) -> None:
    path = pack(save(tmp_path, "llama", 0, **SIZES | {"hidden_size": 96, "intermediate_size": 160}), form)
    ours = open_checkpoint(path)
    for name in ours.names():
        whole = ours.load(name, FP32)
        for axis, side in enumerate(whole.shape):
            for start, stop in ((0, side // 3), (side // 3, side // 2), (side - 5, side), (3, 4), (2, 2)):
                part = ours.load(name, FP32, start, stop, axis)
                assert np.array_equal(part, whole.take(range(start, stop), axis)), (name, axis, start, stop)


PROMPTS = [[(7 * index + 3 * length) % 131 for index in range(length)] for length in (1, 9, 40, 70)]
LAYOUTS = ["tp=1", "tp=2", "tp=4", "pp=2"]


RUNS = [("llama", "deepseek"), ("qwen3", "int4"), ("qwen3_moe", "mxfp4")]
MORE_RUNS = [(family, form) for family in FAMILIES for form in ("deepseek", *FORMS) if (family, form) not in RUNS]


@pytest.mark.parametrize(
    ("family", "form"), [*RUNS, *(pytest.param(*run, marks=pytest.mark.long) for run in MORE_RUNS)]
)
def test_logits_and_tokens_equal_those_of_transformers(tmp_path: Path, family: str, form: str) -> None:
    path = save(tmp_path, family, 0, **FAMILIES[family])
    shape = path.rename(tmp_path / "plain")
    packed = pack(Path(shutil.copytree(shape, tmp_path / "packed")), form)
    rewrite(shape, open_checkpoint(packed))
    expected = [reference(shape, prompt, 24) for prompt in PROMPTS]
    for layout in LAYOUTS:
        check(packed, expected, layout)


def check(path: Path, expected: list[Any], layout: str) -> None:
    job = Job(
        str(path),
        layout=layout,
        dtype="float32",
        kv_dtype="float32",
        prompt_ids=tuple(map(tuple, PROMPTS)),
        max_new_tokens=24,
        ignore_eos=True,
        logits=True,
    )
    result = run_job(job)
    assert any("packed weights lie in HBM as stored" in warning for warning in result.report.warnings)
    for index, (logits, tokens, rows) in enumerate(expected):
        assert np.abs(result.logits[f"logits_{index}"] - logits).max() <= 1e-4 * logits.std()
        assert np.abs(result.logits[f"decode_logits_{index}"] - np.stack(rows)).max() <= 1e-4 * logits.std()
        assert list(result.report.requests[index].tokens) == tokens


def test_a_packed_checkpoint_aligns_with_the_reference(tmp_path: Path) -> None:
    path = pack(save(tmp_path, "qwen3_moe", 0, **FAMILIES["qwen3_moe"]), "deepseek")
    report = align(Job(str(path), layout="tp=2", dtype="float32", kv_dtype="float32"))
    assert report.verdict == "aligned"


@pytest.mark.parametrize("layout", ["tp=1", "tp=4,ep=2", "pp=2"])
def test_gpt_oss_experts_in_mxfp4_run_equal_to_transformers(tmp_path: Path, layout: str) -> None:
    packed = gpt_oss(save(tmp_path, "gpt_oss", 0, hidden_size=64, intermediate_size=96), 0)
    ours = open_checkpoint(packed)
    for name, tensor in theirs(packed, torch.float32).items():
        assert np.array_equal(ours.load(name, FP32), tensor), name
        for axis in range(tensor.ndim) if "experts" in name else ():
            side = tensor.shape[axis]
            part = ours.load(name, FP32, side // 3, side - 1, axis)
            assert np.array_equal(part, tensor.take(range(side // 3, side - 1), axis)), (name, axis)
    plain = Path(shutil.copytree(packed, tmp_path / "plain"))
    rewrite(plain, ours)
    check(packed, [reference(plain, prompt, 24) for prompt in PROMPTS], layout)
