"""DeepSeek-V3.2: DeepSeek-V3 whose attention is sparse; every layer's indexer chooses the tokens."""

from dataclasses import replace

from ...isa.errors import UnsupportedError
from ..dense_decoder import build_dense, num_layers, read_dense
from ..family import Family
from ..fields import Fields
from ..indexer import read_indexer
from ..latent import LatentConfig, read_latent
from ..model_config import ModelConfig
from ..moe import read_sigmoid_experts, sparse_by_kind

ARCHITECTURE = "DeepseekV32ForCausalLM"


def read(fields: Fields, name: str) -> ModelConfig:
    """A deepseek_v32 config.json; the indexer's heads are turned half with half, the attention's by neighbours."""
    layers = num_layers(fields)
    moe = read_sigmoid_experts(fields, sparse_by_kind(fields, layers, 3), 8, 4)
    latent = read_sparse_latent(fields)
    index = read_indexer(fields, layers, latent.rope_dim, default_heads=64, interleaved=False)
    return read_dense(fields, name, ARCHITECTURE, (0,) * layers, moe=moe, latent=replace(latent, index=index))


def read_sparse_latent(fields: Fields, default_q_rank: int = 1536, **defaults: int) -> LatentConfig:
    """Latent attention beside an indexer, which makes its queries of the attention's own query latent."""
    for key, value in (("rope_interleave", True), ("mlp_bias", False)):
        fields.neutral(key, value, None)
    latent = read_latent(fields, fields.integer("num_attention_heads"), default_q_rank, **defaults)
    if not latent.q_rank:
        raise UnsupportedError(
            f"{fields.where}: q_lora_rank=None is not supported; the indexer makes its queries of that latent"
        )
    return latent


FAMILY = Family("deepseek_v32", ARCHITECTURE, read, build_dense)
