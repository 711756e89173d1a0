"""Small random checkpoints of models that wrap a text model with other towers, saved by transformers' own classes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from checkpoints import SIZES
from latent_checkpoints import LATENT_FAMILIES
from linear_checkpoints import LINEAR_FAMILIES
from scaled_checkpoints import SCALED_FAMILIES

_LLAMA4_VISION = {
    "hidden_size": 16,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
    "projector_input_dim": 16,
    "projector_output_dim": 16,
    "vision_output_dim": 16,
}
_SIGLIP = {
    "model_type": "siglip_vision_model",
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
_QWEN_VISION = {
    "depth": 1,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_heads": 2,
    "out_hidden_size": SIZES["hidden_size"],
    "patch_size": 2,
}
_KIMI_VISION = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "patch_size": 2,
    "pos_emb_height": 4,
    "pos_emb_width": 4,
}
NONE = {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
# wrapper: its class, its text model's sizes, its vision tower's, and keys of its own
WRAPPED: dict[str, tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "gemma3": (
        "Gemma3ForConditionalGeneration",
        SCALED_FAMILIES["gemma3_text"] | {"final_logit_softcapping": None},
        _SIGLIP,
        {"image_token_index": 130, "boi_token_index": 3, "eoi_token_index": 4, "mm_tokens_per_image": 4},
    ),
    "llama4": ("Llama4ForConditionalGeneration", SCALED_FAMILIES["llama4_text"], _LLAMA4_VISION, {}),
    "qwen3_5_moe": (
        "Qwen3_5MoeForConditionalGeneration",
        LINEAR_FAMILIES["qwen3_5_moe_text"],
        _QWEN_VISION,
        {"image_token_id": 128, "video_token_id": 129, "vision_start_token_id": 127, "vision_end_token_id": 126},
    ),
    "kimi_k25": (
        "Kimi_K25ForConditionalGeneration",
        LATENT_FAMILIES["deepseek_v3"] | {"attention_bias": False},
        _KIMI_VISION,
        {"image_token_id": 128, "tie_word_embeddings": False, "projection_hidden_size": 16},
    ),
}


def save_wrapped(directory: Path, wrapper: str, seed: int = 0, **changes: Any) -> Path:
    """A checkpoint of the whole wrapper under `directory`, vision tower included; `changes` are the text model's."""
    import torch
    import transformers

    name, text, vision, own = WRAPPED[wrapper]
    torch.manual_seed(seed)
    kind = getattr(transformers, name)
    config = kind.config_class(text_config={**SIZES, **text, **NONE, **changes}, vision_config=vision, **own)
    model = kind(config).float()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "vision" not in key and "visual" not in key and parameter.ndim == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
        for key, buffer in model.named_buffers():
            if "correction_bias" in key:
                buffer.copy_(0.2 * torch.randn_like(buffer))
    path = directory / wrapper
    model.save_pretrained(path)
    return path


def wrapped_reference(path: Path, wrapper: str, prompt: list[int], new_tokens: int) -> tuple[Any, list[int], Any]:
    """(prompt logits, greedy tokens, the logits each was picked from) by the whole wrapper, given text alone."""
    import torch
    import transformers

    eager = {"attn_implementation": "eager", "experts_implementation": "eager"}
    kind = getattr(transformers, WRAPPED[wrapper][0])
    model = kind.from_pretrained(path, dtype=torch.float32, **eager).eval()
    if wrapper == "llama4":
        model = model.language_model  # without an image the wrapper itself looks for one and fails
    with torch.no_grad():
        out = model(torch.tensor([prompt]), use_cache=True)
        prompt_logits, rows, tokens = out.logits[0].numpy(), [out.logits[0, -1].numpy()], []
        for index in range(new_tokens):
            tokens.append(int(rows[-1].argmax()))
            if index + 1 < new_tokens:
                out = model(torch.tensor([[tokens[-1]]]), past_key_values=out.past_key_values, use_cache=True)
                rows.append(out.logits[0, -1].numpy())
    return prompt_logits, tokens, rows


def as_the_hub_has_kimi(path: Path) -> None:
    """Rewrite a kimi_k25 config.json as the hub has it: the text model's own type, and keys of the remote code."""
    config = json.loads((path / "config.json").read_text())
    config["text_config"] |= {"model_type": "kimi_k2", "architectures": ["DeepseekV3ForCausalLM"]}
    config |= {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "auto_map": {"AutoConfig": "configuration_kimi_k25.KimiK25Config"},
        "ignore_index": -100,
        "media_placeholder_token_id": 128,
        "use_unified_vision_chunk": True,
        "video_placeholder": "<|kimi_k25_video_placeholder|>",
    }
    (path / "config.json").write_text(json.dumps(config))
