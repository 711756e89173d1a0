"""Family: what one file in families/ says about a model type."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .blocks import Graph
from .fields import Fields
from .model_config import ModelConfig


@dataclass(frozen=True)
class Family:
    """One `model_type`: how its config.json is read, and which blocks it is made of.

    `read` takes the fields and a display name; the keys it asks for are the family's allow-list, and the caller refuses
    the rest. `build` is a pure function. `gguf_architectures` are the names llama.cpp gives to its files. `claims`
    finds the family's own configs among those that state another model_type.
    """

    name: str
    architecture: str
    read: Callable[[Fields, str], ModelConfig]
    build: Callable[[ModelConfig], Graph]
    gguf_architectures: tuple[str, ...] = ()
    claims: Callable[[Mapping[str, Any]], bool] = lambda raw: False
