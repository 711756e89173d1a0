"""Small random checkpoints of the families with latent attention, as they are and packed in DeepSeek's fp8."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

from checkpoints import MOE_FAMILIES, save

# Latent attention: heads whose parts differ in size, latents that no degree divides, dense layers before the others.
LATENT: dict[str, Any] = {
    "num_key_value_heads": 8,
    "kv_lora_rank": 18,
    "qk_nope_head_dim": 10,
    "qk_rope_head_dim": 6,
    "v_head_dim": 14,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 32,
        "mscale": 0.7,
        "mscale_all_dim": 1.1,
    },
}
LATENT_FAMILIES: dict[str, dict[str, Any]] = {
    "deepseek_v2": LATENT
    | {
        "n_routed_experts": 12,
        "num_experts_per_tok": 3,
        "n_shared_experts": 2,
        "topk_method": "group_limited_greedy",
        "n_group": 4,
        "topk_group": 2,
        "moe_intermediate_size": 20,
        "routed_scaling_factor": 1.5,
        "first_k_dense_replace": 1,
        "q_lora_rank": None,
    },
    "deepseek_v3": LATENT
    | {
        "n_routed_experts": 15,
        "num_experts_per_tok": 4,
        "n_group": 5,
        "topk_group": 3,
        "moe_intermediate_size": 20,
        "first_k_dense_replace": 1,
        "attention_bias": True,
        "q_lora_rank": 26,
    },
}

# Sparse attention: at least 16 index heads, for with few of them many scores are equal zeros, and which of these are
# chosen is nobody's rule. Index heads longer than what rope turns of them; budgets shorter than the longer prompts.
SPARSE = LATENT | {
    "q_lora_rank": 26,
    "index_n_heads": 16,
    "index_head_dim": 10,
    "n_routed_experts": 15,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 20,
    "first_k_dense_replace": 1,
}
SPARSE_FAMILIES: dict[str, dict[str, Any]] = {
    "deepseek_v32": SPARSE | {"index_topk": 16, "n_group": 5, "topk_group": 3, "attention_bias": True},
    "glm_moe_dsa": SPARSE
    | {
        "num_hidden_layers": 5,
        "indexer_types": ["full", "full", "shared", "shared", "full"],
        "index_topk": 23,
        "index_n_heads": 18,
        "v_head_dim": 17,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    },
}


def save_latent(directory: Path, family: str, seed: int, **changes: Any) -> Path:
    """A checkpoint of a family with latent attention, made as all others are."""
    with patch.dict(MOE_FAMILIES, LATENT_FAMILIES | SPARSE_FAMILIES):
        return save(directory, family, seed, **changes)


def pack_fp8(path: Path) -> dict[str, Any]:
    """Pack a checkpoint's matrices as DeepSeek-V3's are, by blocks of 128 x 128; returns the weights that this means.

    Embedding, output head and routers stay as they are.
    """
    import torch
    from safetensors.torch import load_file, save_file

    file = path / "model.safetensors"
    packed: dict[str, Any] = {}
    meant: dict[str, Any] = {}
    for name, tensor in load_file(file).items():
        if tensor.ndim != 2 or any(part in name for part in ("gate.weight", "embed", "lm_head")):
            packed[name] = meant[name] = tensor
            continue
        (rows, columns), (down, across) = tensor.shape, (-(-size // 128) for size in tensor.shape)
        whole = torch.zeros(down * 128, across * 128)
        whole[:rows, :columns] = tensor
        blocks = whole.reshape(down, 128, across, 128)
        scales = blocks.abs().amax((1, 3)) / 448
        codes = (blocks / scales[:, None, :, None]).to(torch.float8_e4m3fn)
        values = codes.float() * scales[:, None, :, None]
        packed[name] = codes.reshape(whole.shape)[:rows, :columns].contiguous()
        packed[f"{name}_scale_inv"] = scales
        meant[name] = values.reshape(whole.shape)[:rows, :columns].contiguous()
    save_file(packed, file, metadata={"format": "pt"})
    config = json.loads((path / "config.json").read_text())
    rules = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
    (path / "config.json").write_text(json.dumps(config | {"quantization_config": rules}))
    return meant
