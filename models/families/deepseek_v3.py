"""DeepSeek-V3 and R1: latent attention, sigmoid experts in groups with a correction, dense layers first."""

from dataclasses import replace

from ..dense_decoder import build_dense, num_layers, read_dense
from ..family import Family
from ..fields import Fields
from ..latent import read_latent
from ..model_config import ModelConfig
from ..moe import first_dense, read_sigmoid_experts

ARCHITECTURE = "DeepseekV3ForCausalLM"


def read(fields: Fields, name: str) -> ModelConfig:
    """A deepseek_v3 config.json; multi-token-prediction layers stand in its files and are no part of a forward pass."""
    layers = num_layers(fields)
    moe = read_sigmoid_experts(fields, first_dense(fields, layers, 3), 8, 4)
    latent = read_latent(fields, fields.integer("num_attention_heads"))
    latent = replace(latent, interleaved=fields.flag("rope_interleave", True))
    return read_dense(fields, name, ARCHITECTURE, (0,) * layers, moe=moe, latent=latent)


FAMILY = Family("deepseek_v3", ARCHITECTURE, read, build_dense)
