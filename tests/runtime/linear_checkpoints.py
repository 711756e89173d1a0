"""Small random checkpoints of families with linear attention, made and saved by transformers itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from checkpoints import SIZES

# Families with linear attention: more value heads than key heads, key and value heads of unequal size.
LINEAR_FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3_next": {
        "num_hidden_layers": 5,
        "head_dim": 24,
        "full_attention_interval": 2,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 12,
        "linear_value_head_dim": 10,
        "num_experts": 6,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 20,
        "shared_expert_intermediate_size": 28,
        "mlp_only_layers": [1],
    },
    "qwen3_5_moe_text": {
        "num_hidden_layers": 4,
        "head_dim": 24,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 8,
        "linear_key_head_dim": 12,
        "linear_value_head_dim": 10,
        "linear_conv_kernel_dim": 3,
        "num_experts": 6,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 20,
        "shared_expert_intermediate_size": 28,
    },
    "kimi_linear": {
        "num_hidden_layers": 4,
        "num_key_value_heads": 8,
        "layer_types": ["linear_attention", "full_attention", "linear_attention", "full_attention"],
        "kv_lora_rank": 18,
        "qk_rope_head_dim": 6,
        "qk_nope_head_dim": 10,
        "v_head_dim": 14,
        "linear_num_heads": 4,
        "linear_head_dim": 12,
        "num_local_experts": 6,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 20,
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": None,
    },
}


def save_linear(directory: Path, family: str, seed: int) -> Path:
    """A checkpoint of a family under `directory`; decays, convolutions and norms are random too."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(seed)
    config = AutoConfig.for_model(family, **{**SIZES, **LINEAR_FAMILIES[family]})
    model = AutoModelForCausalLM.from_config(config).float()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if any(part in name for part in ("A_log", "dt_bias", "conv1d", "mlp.gate.weight")):
                parameter.copy_(0.5 * torch.randn_like(parameter))
            elif "norm" in name:
                plain = family == "kimi_linear" or "linear_attn" in name  # all others scale by 1 + weight
                parameter.copy_(plain + 0.3 * torch.randn_like(parameter))
        for name, buffer in model.named_buffers():
            if "correction_bias" in name:
                buffer.copy_(0.2 * torch.randn_like(buffer))
    path = directory / f"{family}-{seed}"
    model.save_pretrained(path)
    return path
