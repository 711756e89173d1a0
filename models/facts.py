"""What there is to say about a model before anything runs: its parameters, its KV cache, its blocks."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from .blocks import Attention, DecoderLayer, DeltaNet, GatedMlp, LatentAttention, Moe, Norm
from .graph import active_parameters, build_graph, kv_elements_per_token, state_bytes_per_sequence, total_parameters
from .model_config import ModelConfig

_KV_BYTES = 2  # an element of a 16-bit cache


@dataclass(frozen=True)
class ModelFacts:
    """One row of `siltwin models`; `blocks` says in words what the layers are made of, with how many of each.

    Active parameters are those that one token meets, with and without the input embedding. The KV cache is that of
    the layers that grow with length: one with a window holds its window and no more. States of fixed size, which
    linear attention keeps a sequence, are in fp32 with the convolutions' last inputs at 16 bits.
    """

    name: str
    family: str
    architecture: str
    total_params: int
    active_params: int
    active_params_excl_embedding: int
    kv_bytes_per_token: int
    state_bytes_per_sequence: int
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    tied: bool
    dtype: str
    blocks: tuple[str, ...]


def describe(config: ModelConfig) -> ModelFacts:
    """The facts of a supported model, counted from its graph; the KV cache is counted at 16 bits an element."""
    graph = build_graph(config)
    active = active_parameters(graph)
    return ModelFacts(
        name=config.name,
        family=config.family,
        architecture=config.architecture,
        total_params=total_parameters(graph),
        active_params=active,
        active_params_excl_embedding=active - config.vocab_size * config.hidden_size,
        kv_bytes_per_token=kv_elements_per_token(graph) * _KV_BYTES,
        state_bytes_per_sequence=state_bytes_per_sequence(graph, _KV_BYTES),
        num_layers=config.num_layers,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        vocab_size=config.vocab_size,
        max_position_embeddings=config.max_position_embeddings,
        tied=config.tied,
        dtype=config.dtype.name,
        blocks=_blocks(graph.layers),
    )


def _blocks(layers: tuple[DecoderLayer, ...]) -> tuple[str, ...]:
    """The distinct blocks in the order they first appear, each with its count."""
    counts = Counter(
        words
        for layer in layers
        for words in (
            _norm_words(layer.input_norm),
            _attention_words(layer.attention),
            *(_norm_words(norm) for norm in (layer.attention_out_norm, layer.mlp_out_norm) if norm is not None),
            _norm_words(layer.post_attention_norm),
            _mlp_words(layer.mlp),
            *(["attention residuals"] if layer.residuals is not None else []),
            *(["snapshot of the residual stream"] if layer.residuals is not None and layer.residuals.takes else []),
        )
    )
    return tuple(f"{count} x {words}" for words, count in counts.items())


def _norm_words(norm: Norm) -> str:
    return f"{norm.kind} norm" + (" of 1 + weight" if norm.plus_one else "")


def _latent_words(attention: LatentAttention) -> str:
    dims = f"{attention.nope_dim}+{attention.rope_dim}"
    parts = [f"latent attention {attention.num_heads} heads of {dims}, values of {attention.v_dim}"]
    parts += [f"latent of {attention.latent_dim}"]
    parts += [f"query latent of {attention.q_norm.size}"] if attention.q_norm is not None else []
    parts += [f"{attention.rope.scaling.rule} rope"] if attention.rope else []
    parts += ["output gate"] if attention.gate is not None else []
    parts += ["bias"] if attention.kv.biases else []
    if attention.indexer is not None:
        parts += [
            f"{attention.top_k} tokens chosen by {attention.indexer.heads} index heads of {attention.indexer.dim}"
        ]
    elif attention.top_k:
        parts += [f"{attention.top_k} tokens chosen by a layer before"]
    return ", ".join(parts)


def _attention_words(attention: Attention | LatentAttention | DeltaNet) -> str:
    if isinstance(attention, DeltaNet):
        return _delta_words(attention)
    if isinstance(attention, LatentAttention):
        return _latent_words(attention)
    parts = [f"attention {attention.num_heads}/{attention.num_kv_heads} heads of {attention.head_dim}"]
    parts += [f"window {attention.window}"] if attention.window else []
    parts += [f"chunks of {attention.chunk}"] if attention.chunk else []
    parts += [f"{attention.rope.scaling.rule} rope" if attention.rope else "no rope"]
    parts += [f"soft cap {attention.soft_cap:g}"] if attention.soft_cap else []
    parts += ["unit heads"] if attention.unit_eps is not None else []
    parts += ["temperature by position"] if attention.temperature else []
    if attention.q_norm is not None:
        parts += ["head norms" if attention.q_norm.size == attention.head_dim else "norms over all heads"]
    parts += ["sinks"] if attention.sinks else []
    parts += ["output gate"] if attention.output_gate else []
    parts += ["bias"] if attention.qkv.biases else []
    return ", ".join(parts)


def _delta_words(delta: DeltaNet) -> str:
    parts = [f"gated delta rule {delta.heads}/{delta.key_heads} heads of {delta.key_dim} x {delta.value_dim}"]
    parts += [f"decay a {'head' if delta.decay.size == 1 else 'channel'}"]
    parts += [f"log decay above {delta.lower_bound:g}"] if delta.lower_bound else []
    return ", ".join([*parts, f"convolution of {delta.kernel}", f"{delta.gate_activation} output gate"])


def _mlp_words(mlp: GatedMlp | Moe) -> str:
    if isinstance(mlp, Moe):
        return _moe_words(mlp)
    return f"gated {mlp.activation} mlp of {mlp.intermediate_size}" + (", bias" if mlp.down.biases else "")


def _moe_words(moe: Moe) -> str:
    experts, router = moe.experts, moe.router
    parts = [f"{router.top_k} of {experts.count} {experts.activation} experts of {experts.intermediate_size}"]
    parts += [f"{router.scoring.replace('_', ' ')} router"]
    parts += ["weights scale inputs"] if router.scales_input else []
    parts += [f"{router.top_groups} of {router.groups} groups"] if router.groups > 1 else []
    parts += [f"latents of {experts.hidden_size}"] if moe.latent is not None else []
    if moe.shared is not None:
        gated = "gated " if moe.shared_gate is not None else ""
        parts += [f"{gated}shared expert of {moe.shared.intermediate_size}"]
    return ", ".join(parts)
