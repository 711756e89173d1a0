"""Kimi K2: DeepSeek-V3's mathematics under a name of its own in the published files."""

from dataclasses import replace

from ..dense_decoder import build_dense
from ..family import Family
from ..fields import Fields
from ..model_config import ModelConfig
from . import deepseek_v3


def read(fields: Fields, name: str) -> ModelConfig:
    """A kimi_k2 config.json, as the deepseek_v3 config that it is to transformers too."""
    config = deepseek_v3.read(fields, name)
    return replace(config, family="deepseek_v3", resolved={**config.resolved, "model_type": "deepseek_v3"})


FAMILY = Family("kimi_k2", deepseek_v3.ARCHITECTURE, read, build_dense)
