"""Small random checkpoints of families that scale rows, Llama 4 and Gemma, made and saved by transformers itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from checkpoints import LLAMA3, SIZES

# Chunks, windows and temperature steps shorter than the prompts; heads that do not fill the hidden size.
SCALED_FAMILIES: dict[str, dict[str, Any]] = {
    "llama4_text": {
        "num_hidden_layers": 4,
        "head_dim": 10,
        "intermediate_size": 20,
        "intermediate_size_mlp": 28,
        "num_local_experts": 6,
        "interleave_moe_layer_step": 2,
        "attention_chunk_size": 12,
        "floor_scale": 9,
        "attn_scale": 0.4,
        "no_rope_layers": [1, 0, 1, 1],
        "use_qk_norm": True,
        "rope_parameters": LLAMA3,
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": None,
    },
    "gemma3_text": {
        "num_hidden_layers": 4,
        "head_dim": 14,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
        "sliding_window": 12,
        "query_pre_attn_scalar": 23,
        "final_logit_softcapping": 1.5,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": None,
    },
    "gemma2": {
        "num_hidden_layers": 3,
        "head_dim": 14,
        "sliding_window": 12,
        "query_pre_attn_scalar": 9,
        "attn_logit_softcapping": 0.7,
        "final_logit_softcapping": 1.5,
        "tie_word_embeddings": False,
        "attention_bias": True,
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": None,
    },
}


def save_scaled(directory: Path, family: str, seed: int, **changes: Any) -> Path:
    """A checkpoint of a family under `directory`; norms, biases and routers are random too."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(seed)
    config = AutoConfig.for_model(family, **{**SIZES, **SCALED_FAMILIES[family], **changes})
    model = AutoModelForCausalLM.from_config(config).float()
    randomise(model, plus_one=family != "llama4_text")
    path = directory / f"{family}-{seed}"
    model.save_pretrained(path)
    return path


def randomise(model: Any, plus_one: bool) -> None:
    """Norms about what leaves rows as they are, biases and routers about 0."""
    import torch

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.copy_((not plus_one) + 0.3 * torch.randn_like(parameter))
            elif name.endswith("bias"):
                parameter.copy_(0.2 * torch.randn_like(parameter))
            elif "router" in name:
                parameter.copy_(0.5 * torch.randn_like(parameter))
