"""Wrapper configs: a text model beside other towers, whose config.json nests the text model's own in text_config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..isa.errors import ConfigError, UnsupportedError
from .fields import short

TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")
# Keys of the wrapper that hold for its text model where that has none of its own.
SHARED = ("architectures", "dtype", "torch_dtype", "tie_word_embeddings", "quantization_config", *TOKENS)
_TOWERS = ("vision_config", "audio_config", "_tensor_shapes_read")


@dataclass(frozen=True)
class Wrapper:
    """A wrapper's text model: the model_type it is read as by the one its text_config states (None: none stated).

    `ignored` are keys beside text_config that say nothing of the text model, `classes` the wrapper's own names in
    `architectures`, which say nothing of it either. `unheeded` are keys that transformers heeds in the text model alone
    but not inside its wrapper, so that only null is one and the same model.
    """

    text_types: Mapping[str | None, str]
    ignored: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    unheeded: tuple[str, ...] = ()


_IMAGES = ("image_token_index", "boi_token_index", "eoi_token_index", "image_token_id")
_VIDEOS = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
WRAPPERS = {
    "gemma3": Wrapper(
        {"gemma3_text": "gemma3_text", None: "gemma3_text"},
        (*_IMAGES, "mm_tokens_per_image"),
        ("Gemma3ForConditionalGeneration",),
        ("final_logit_softcapping",),
    ),
    "llama4": Wrapper(
        {"llama4_text": "llama4_text", None: "llama4_text"}, _IMAGES, ("Llama4ForConditionalGeneration",)
    ),
    "qwen3_5_moe": Wrapper(
        {"qwen3_5_moe_text": "qwen3_5_moe_text", None: "qwen3_5_moe_text"},
        _VIDEOS,
        ("Qwen3_5MoeForConditionalGeneration",),
    ),
    "kimi_k25": Wrapper(
        {"kimi_k2": "kimi_k2", "deepseek_v3": "deepseek_v3", None: "deepseek_v3"},
        (
            *_VIDEOS,
            "media_placeholder_token_id",
            "ignore_index",
            "use_unified_vision_chunk",
            "video_placeholder",
            "projection_hidden_size",
            "projection_layer_norm_eps",
        ),
        ("KimiK25ForConditionalGeneration", "Kimi_K25ForConditionalGeneration"),
    ),
    "kimi_k3": Wrapper(
        {"kimi_linear": "kimi_k3", "kimi_k3": "kimi_k3", None: "kimi_k3"}, ("media_placeholder_token_id",)
    ),
}


def text_part(raw: Mapping[str, Any], where: str, harmless: frozenset[str]) -> dict[str, Any]:
    """The text model's config.json: `raw` itself, or what a known wrapper nests, with the keys both share.

    Raises UnsupportedError for a key beside text_config that may change the text model, or a text model of another
    type than the wrapper is known to hold.
    """
    wrapper = WRAPPERS.get(str(raw.get("model_type")))
    if wrapper is None or "text_config" not in raw:
        return dict(raw)
    text = raw["text_config"]
    if not isinstance(text, Mapping):
        raise ConfigError(f"{where}: text_config is {short(text)}; it must be an object")
    known = {"model_type", "text_config", *SHARED, *_TOWERS, *wrapper.ignored, *harmless}
    left = [key for key in raw if key not in known]
    if left:
        listed = ", ".join(f"{key}={short(raw[key])}" for key in left[:8])
        raise UnsupportedError(f"{where}: {raw['model_type']} does not know {listed} beside text_config")
    stated = text.get("model_type")
    if stated not in wrapper.text_types:
        allowed = ", ".join(str(kind) for kind in wrapper.text_types if kind is not None)
        raise UnsupportedError(
            f"{where}: text_config.model_type={short(stated)} is not supported in {raw['model_type']}; only {allowed}"
        )
    for key in wrapper.unheeded:
        if text.get(key) is not None:
            raise UnsupportedError(
                f"{where}: {key}={short(text[key])} is not supported in text_config: transformers heeds it in the text "
                f"model alone and not in {raw['model_type']}; only null is"
            )
    shared = {key: raw[key] for key in SHARED if key in raw}
    ties = "tie_word_embeddings"
    if ties in text and shared.get(ties, text[ties]) != text[ties]:
        raise ConfigError(f"{where}: {ties} is {raw[ties]} and in text_config {text[ties]}; keep one of them")
    if isinstance(raw.get("architectures"), list) and set(map(str, raw["architectures"])) <= {*wrapper.classes}:
        del shared["architectures"]
    return {**shared, **text, "model_type": wrapper.text_types[stated]}
