"""What an unknown config's keys betray about it, so that a refusal can say which mathematics siltwin lacks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Mathematics that no family has, by the keys that ask for it.
_LACKING = {
    "compress_ratios": "attention over compressed tokens",
    "compress_rope_theta": "attention over compressed tokens",
    "index_block_size": "attention over chosen blocks of tokens",
    "index_kpool": "attention over chosen pools of tokens",
    "ssm_state_size": "state space (Mamba)",
    "mamba_d_state": "state space (Mamba)",
    "linear_attn_alpha_factor": "lightning attention and weighted residuals",
    "attention_value_scale": "scaled values, and kv heads and sizes that differ by kind of layer",
    "num_sliding_attention_heads": "heads that differ by kind of layer",
    "o_groups": "output projections in groups",
    "hc_mult": "hyper-connections",
    "hc_count": "hyper-connections",
    "ngram_size": "embeddings of n-grams",
    "zero_expert_num": "experts that pass their input on",
    "expert_ffn_hidden_size": "two attentions a layer, with experts beside the second",
    "num_hash_layers": "routing by token id",
    "moe_layer_interval": "experts in layers of an interval, chosen by a bias on softmax scores",
    "shared_expert_combination_strategy": "attention and feed-forward side by side, averaged shared experts",
    "residual_multiplier": "multipliers of embeddings, attention, residuals and logits",
    "residual_gate_temperature": "gated residuals",
    "mlp_hidden_act": "feed-forwards without a gate",
    "vision_config": "vision tower",
}
# What families have, though not put together as here.
_KNOWN_ATTENTION = {
    "kv_lora_rank": "multi-head latent attention",
    "index_topk": "sparse attention by an indexer",
    "linear_attn_config": "linear attention (KDA)",
    "linear_num_value_heads": "linear attention (gated delta net)",
    "attention_chunk_size": "chunked attention",
}
_KNOWN_PARTS = {
    "n_routed_experts": "mixture of experts",
    "num_local_experts": "mixture of experts",
    "num_experts": "mixture of experts",
    "attn_res_block_size": "attention residuals",
}


def what_is_missing(raw: Mapping[str, Any]) -> str:
    """The mathematics that siltwin lacks by a config's keys, then the parts of it that other families have."""
    inner = raw.get("text_config")
    keys = {**raw, **inner} if isinstance(inner, Mapping) else raw
    lacking, attention = _signs(keys, _LACKING), _signs(keys, _KNOWN_ATTENTION)
    scoring = keys.get("scoring_func")
    if isinstance(scoring, str) and scoring not in ("softmax", "sigmoid"):
        lacking.append(f"experts scored by {scoring}")
    known = ([f"attention kind {', '.join(attention)}"] if attention else []) + _signs(keys, _KNOWN_PARTS)
    said = "no family has " + (", ".join(lacking) if lacking else "this model_type")
    return said + (f"; other families have {'; '.join(known)}" if known else "")


def _signs(keys: Mapping[str, Any], signs: Mapping[str, str]) -> list[str]:
    found: dict[str, str] = {}
    for key, meaning in signs.items():
        if keys.get(key):
            value = keys[key]
            shown = f"{key}={value}" if isinstance(value, int | float | str) else key
            found.setdefault(meaning, f"{meaning} ({shown})")
    return list(found.values())
