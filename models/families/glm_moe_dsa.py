"""GLM-5: latent attention that is sparse; some layers' indexers choose the tokens, others share the last choice."""

from dataclasses import replace

from ..dense_decoder import build_dense, num_layers, read_dense
from ..family import Family
from ..fields import Fields
from ..indexer import read_indexer, read_sharing
from ..model_config import ModelConfig
from ..moe import read_sigmoid_experts, sparse_by_kind
from .deepseek_v32 import read_sparse_latent

ARCHITECTURE = "GlmMoeDsaForCausalLM"


def read(fields: Fields, name: str) -> ModelConfig:
    """A glm_moe_dsa config.json; rope turns neighbours in indexer and attention alike."""
    layers = num_layers(fields)
    moe = read_sigmoid_experts(fields, sparse_by_kind(fields, layers, 3), 1, 1)
    latent = read_sparse_latent(fields, default_q_rank=2048, qk_nope_head_dim=192, v_head_dim=256)
    index = read_indexer(fields, layers, latent.rope_dim, default_heads=32, interleaved=True)
    latent = replace(latent, index=read_sharing(fields, index))
    return read_dense(fields, name, ARCHITECTURE, (0,) * layers, moe=moe, latent=latent)


FAMILY = Family("glm_moe_dsa", ARCHITECTURE, read, build_dense)
