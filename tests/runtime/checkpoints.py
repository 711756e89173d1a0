"""Small random checkpoints, made and saved by transformers itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

SIZES: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 48,
    "intermediate_size": 56,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "initializer_range": 0.15,
    "attention_dropout": 0.0,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
    "truncate": False,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"rope_parameters": LLAMA3, "head_dim": 8, "tie_word_embeddings": False},
    "mistral": {"sliding_window": 12, "head_dim": 10, "tie_word_embeddings": False},
    "qwen2": {"tie_word_embeddings": True, "use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1},
    "qwen3": {"head_dim": 16, "tie_word_embeddings": True},
}

# Expert families: expert counts that no degree of the layouts divides, layers without experts where a family has them.
MOE_FAMILIES: dict[str, dict[str, Any]] = {
    "mixtral": {"num_local_experts": 7, "num_experts_per_tok": 2, "sliding_window": 12, "head_dim": 10},
    "qwen2_moe": {
        "num_experts": 9,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 20,
        "shared_expert_intermediate_size": 28,
        "mlp_only_layers": [1],
        "use_sliding_window": True,
        "sliding_window": 16,
        "max_window_layers": 2,
    },
    "qwen3_moe": {
        "num_experts": 10,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 24,
        "norm_topk_prob": True,
        "head_dim": 16,
        "decoder_sparse_step": 2,
    },
    "gpt_oss": {
        "num_local_experts": 7,
        "num_experts_per_tok": 3,
        "sliding_window": 12,
        "head_dim": 16,
        "rope_parameters": YARN,
        "pad_token_id": None,
    },
    "glm4_moe": {
        "n_routed_experts": 12,
        "num_experts_per_tok": 4,
        "n_group": 4,
        "topk_group": 2,
        "moe_intermediate_size": 20,
        "routed_scaling_factor": 2.5,
        "use_qk_norm": True,
        "attention_bias": True,
        "head_dim": 12,
    },
    "minimax_m2": {
        "num_local_experts": 9,
        "num_experts_per_tok": 3,
        "head_dim": 12,
        "rotary_dim": 6,
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": None,
    },
    "olmoe": {"num_experts": 6, "num_experts_per_tok": 3, "pad_token_id": None, "eos_token_id": None},
}


def save(directory: Path, family: str, seed: int, stored_as: str = "float32", **changes: Any) -> Path:
    """A checkpoint of a family under `directory`, biases and norms are random too."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(seed)
    config = AutoConfig.for_model(family, **{**SIZES, **{**FAMILIES, **MOE_FAMILIES}[family], **changes})
    model = AutoModelForCausalLM.from_config(config).float()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.copy_(1 + 0.3 * torch.randn_like(parameter))
            elif name.endswith("bias") or "sinks" in name:
                parameter.copy_(0.2 * torch.randn_like(parameter))
            elif "gate.weight" in name or "router.weight" in name:
                parameter.copy_(0.5 * torch.randn_like(parameter))
        for name, buffer in model.named_buffers():
            if "correction_bias" in name:
                buffer.copy_(0.2 * torch.randn_like(buffer))
    path = directory / f"{family}-{seed}"
    model.to(getattr(torch, stored_as)).save_pretrained(path)
    return path


def reference(path: Path, prompt: list[int], new_tokens: int) -> tuple[Any, list[int], Any]:
    """(prompt logits, greedy tokens, the logits each was picked from) by transformers with its own cache."""
    import torch
    from transformers import AutoModelForCausalLM

    eager = {"attn_implementation": "eager", "experts_implementation": "eager"}  # grouped products refuse odd widths
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, **eager).eval()
    with torch.no_grad():
        out = model(torch.tensor([prompt]), use_cache=True)
        prompt_logits, rows, tokens = out.logits[0].numpy(), [out.logits[0, -1].numpy()], []
        for index in range(new_tokens):
            tokens.append(int(rows[-1].argmax()))
            if index + 1 < new_tokens:
                out = model(torch.tensor([[tokens[-1]]]), past_key_values=out.past_key_values, use_cache=True)
                rows.append(out.logits[0, -1].numpy())
    return prompt_logits, tokens, rows
