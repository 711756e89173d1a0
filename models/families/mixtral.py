"""Mixtral: mistral's attention, and in every layer experts chosen by a softmax over all of them, renormalised."""

from ..dense_decoder import build_dense, num_layers, read_dense, window_of
from ..family import Family
from ..fields import Fields
from ..model_config import ModelConfig
from ..moe import MIXTRAL_NAMES, MoeConfig, read_experts

ARCHITECTURE = "MixtralForCausalLM"


def read(fields: Fields, name: str) -> ModelConfig:
    """A mixtral config.json; intermediate_size is that of an expert, and an absent sliding_window is none."""
    fields.neutral("attention_bias", False)
    layers = num_layers(fields)
    experts, top_k = read_experts(fields, "num_local_experts")
    moe = MoeConfig(
        experts,
        top_k,
        fields.integer("intermediate_size"),
        (True,) * layers,
        renormalise=True,
        names=MIXTRAL_NAMES,
    )
    windows = (window_of(fields, None),) * layers
    return read_dense(fields, name, ARCHITECTURE, windows, default_kv_heads=8, moe=moe, default_theta=1e6)


FAMILY = Family("mixtral", ARCHITECTURE, read, build_dense)
