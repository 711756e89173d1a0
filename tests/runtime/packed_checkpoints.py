"""Small checkpoints packed as publishers pack them: by compressed-tensors, or by DeepSeek's and gpt-oss's rules."""

import json
from pathlib import Path
from typing import Any

import torch
from pack_oracles import compress, decompress, scales_of
from safetensors.torch import load_file, save_file

from siltwin.isa.dtype import FP32
from siltwin.models.checkpoint import Checkpoint

GROUP = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "int4": ("pack-quantized", GROUP),
    "int4-asymmetric": ("pack-quantized", {**GROUP, "symmetric": False}),
    "int8-packed": ("pack-quantized", {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}),
    "int8": ("int-quantized", {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}),
    "fp8": ("float-quantized", {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel"}),
    "mxfp4": (
        "mxfp4-pack-quantized",
        {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "group", "group_size": 32}
        | {"scale_dtype": "torch.uint8"},
    ),
    "nvfp4": (
        "nvfp4-pack-quantized",
        {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "tensor_group", "group_size": 16}
        | {"scale_dtype": "torch.float8_e4m3fn"},
    ),
}
FP8_BLOCK = (16, 32)


def is_packed(name: str, tensor: torch.Tensor) -> bool:
    """Whether a publisher would pack it: matrices that multiply activations, save routers and the head."""
    plain = ("embed_tokens", "lm_head", "mlp.gate.weight", "shared_expert_gate", "router", "bias")
    return tensor.ndim == 2 and not any(part in name for part in plain)


def pack(path: Path, form: str, scale_dtype: torch.dtype = torch.float32) -> Path:
    """The checkpoint at `path` rewritten in place; `form` is "deepseek" or one of FORMS."""
    tensors, packed = load_file(path / "model.safetensors"), dict[str, torch.Tensor]()
    for name, tensor in tensors.items():
        if not is_packed(name, tensor):
            packed[name] = tensor
            continue
        module = name.removesuffix(".weight")
        state = deepseek(tensor.float(), scale_dtype) if form == "deepseek" else compressed(tensor, form, scale_dtype)
        packed |= {f"{module}.{local}": part.contiguous() for local, part in state.items()}
    save_file(packed, path / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"] = quantization_config(form)
    (path / "config.json").write_text(json.dumps(config))
    return path


def library_weights(path: Path, form: str) -> dict[str, torch.Tensor]:
    """Every packed weight of the checkpoint as compressed-tensors decompresses it."""
    tensors, kept = load_file(path / "model.safetensors"), dict[str, dict[str, torch.Tensor]]()
    for name, tensor in tensors.items():
        module, _, local = name.rpartition(".")
        kept.setdefault(module, {})[local] = tensor
    return {
        f"{module}.weight": decompress(FORMS[form][0], state, FORMS[form][1])
        for module, state in kept.items()
        if "weight_scale" in state
    }


def rewrite(path: Path, checkpoint: Checkpoint) -> None:
    """The checkpoint at `path` with the weights that `checkpoint` reads, in fp32."""
    tensors = {name: torch.from_numpy(checkpoint.load(name, FP32)) for name in checkpoint.names()}
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((path / "config.json").read_text())
    config.pop("quantization_config", None)
    (path / "config.json").write_text(json.dumps(config))


def quantization_config(form: str) -> dict[str, Any]:
    """What config.json says of it."""
    if form == "deepseek":
        return {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": list(FP8_BLOCK)}
    kind, args = FORMS[form]
    return {
        "quant_method": "compressed-tensors",
        "format": kind,
        "quantization_status": "compressed",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": args}},
        "ignore": ["lm_head"],
    }


def deepseek(weight: torch.Tensor, scale_dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """e4m3 codes and `weight_scale_inv` by blocks; the last of an axis may be partial."""
    rows, cols = FP8_BLOCK
    out, into = weight.shape
    padded = torch.nn.functional.pad(weight, (0, -into % cols, 0, -out % rows))
    cells = padded.reshape(padded.shape[0] // rows, rows, padded.shape[1] // cols, cols)
    scale = (cells.abs().amax(dim=(1, 3)) / 448).to(scale_dtype)
    spread = scale.float().repeat_interleave(rows, 0)[:out].repeat_interleave(cols, 1)[:, :into]
    return {"weight": (weight / spread).to(torch.float8_e4m3fn), "weight_scale_inv": scale}


def compressed(weight: torch.Tensor, form: str, scale_dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The library's compressed state of a weight, by local name."""
    kind, args = FORMS[form]
    weight = weight.to(scale_dtype)
    group = args.get("group_size", weight.shape[1])
    if form == "nvfp4":
        divisor = (448 * 6 / weight.abs().max()).float().reshape(1)
        cells = weight.float().reshape(weight.shape[0], -1, group).abs().amax(-1)
        scale = (divisor * cells / 6).to(torch.float8_e4m3fn).float()
        return compress(kind, {"weight": weight, "weight_scale": scale, "weight_global_scale": divisor}, args)
    if form == "mxfp4":
        cells = weight.float().reshape(weight.shape[0], -1, group).abs().amax(-1)
        scale = torch.exp2(torch.floor(torch.log2(cells)) - 2)
        return compress(kind, {"weight": weight, "weight_scale": scale}, args)
    scale, zero = scales_of(weight, args, 1, group)
    state = {"weight": weight, "weight_scale": scale.to(scale_dtype)}
    return compress(kind, state | ({"weight_zero_point": zero} if args["type"] == "int" else {}), args)


def gpt_oss(path: Path, seed: int) -> Path:
    """gpt-oss's experts rewritten as random `_blocks` and `_scales`."""
    tensors = load_file(path / "model.safetensors")
    generator = torch.Generator().manual_seed(seed)
    for name in [name for name in tensors if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        experts, into, out = tensors.pop(name).shape
        shape = (experts, out, into // 32)
        tensors[f"{name}_blocks"] = torch.randint(0, 256, (*shape, 16), dtype=torch.uint8, generator=generator)
        tensors[f"{name}_scales"] = torch.randint(121, 126, shape, dtype=torch.uint8, generator=generator)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
    (path / "config.json").write_text(json.dumps(config))
    return path
