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

    `ignored` are keys beside text_config that say nothing of the text model.
    """

    text_types: Mapping[str | None, str]
    ignored: tuple[str, ...] = ()


WRAPPERS = {
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
    shared = {key: raw[key] for key in SHARED if key in raw}
    return {**shared, **text, "model_type": wrapper.text_types[stated]}
