"""scaled: any supported config shrunk to one that runs in milliseconds and still has every part of its architecture."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

from .blocks import RopeScaling
from .checkpoint import Checkpoint, open_config, random_checkpoint
from .config import read_config
from .latent import LatentConfig
from .linear import LinearConfig
from .model_config import ModelConfig
from .moe import MoeConfig

RESIDUAL_BLOCK = 3  # layers between snapshots: a few of them, and a block that is not whole
LONGEST_TEST = 128  # tokens a scaled model must be able to hold
LONGEST_PROMPT = 64  # windows and original lengths stay below this, so that a test prompt crosses them
_HEAD_DIMS = (10, 12, 14, 18, 20)  # even for rope, and no powers of two
_MANY_HEADS, _SMALL_HEAD_DIMS = 9, (6, 10, 12)  # a high ratio of heads to kv heads makes many heads
_ODD_WIDTHS = (11, 13, 17, 19)  # times 12: any tp of 1, 2, 3, 4, 6 and 12 divides, and no power of two hides a bug
# what a layer may have: a window, experts, linear attention, rope where not all layers turn, a choice made before it
WINDOW, EXPERTS, LINEAR, TURNED, SHARED = 1, 2, 4, 8, 16


def scaled(config: ModelConfig, seed: int = 0) -> ModelConfig:
    """A small config of the same architecture; `seed` varies the sizes, none of which is a power of two.

    Kept: family, dtype, activation, biases, norms, tying, the ratio of heads to kv heads, whether hidden_size is
    heads * head_dim, the rope rule and its factors, and every kind of layer in its order (two whole periods where the
    pattern repeats), the routing rules. Shrunk: widths, vocabulary, experts, windows (odd, and shorter than 16 tokens)
    and the length before rope scaling (at most 64), so that a test prompt of 70 tokens crosses them. The result is a
    config that transformers accepts (`to_hf`).
    """
    draw = random.Random(f"scaled {config.family} {seed}")
    raw = config.to_hf()
    kinds = scaled_pattern(_layer_kinds(config))
    is_linear, turned = (tuple(bool(kind & bit) for kind in kinds) for bit in (LINEAR, TURNED))
    windows = _shrink_windows(tuple(kind & WINDOW for kind in kinds), draw)
    heads, kv_heads = _heads(config, draw)
    head_dim = draw.choice(_head_dims(config, heads))
    width = heads * head_dim
    if config.hidden_size != config.num_heads * config.head_dim:
        width += heads * 2 * draw.choice((1, 3))
    raw |= {
        "num_hidden_layers": len(windows),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "hidden_size": width,
        "intermediate_size": 12 * draw.choice(_ODD_WIDTHS),
        "vocab_size": 24 * draw.choice(_ODD_WIDTHS),
    }
    raw |= _windows_to_hf(raw, windows, is_linear)
    if config.turned is not None:
        raw |= {"no_rope_layers": list(map(int, turned)), "floor_scale": draw.choice((5, 9, 14))}
    if config.linear is not None:
        raw |= _linear_to_hf(config.linear, draw)
    if config.residual_block:
        raw["attn_res_block_size"] = min(config.residual_block, RESIDUAL_BLOCK)
    rotary_dim = int(head_dim * config.rope.rotary_dim / config.head_dim)
    if config.latent is not None:
        del raw["head_dim"]
        raw |= (sizes := _latent_to_hf(config.latent, draw))
        rotary_dim = sizes["qk_rope_head_dim"]
        if config.latent.index is not None:
            raw |= _indexer_to_hf(raw, kinds, rotary_dim, draw)
    raw |= _rope_to_hf(config, rotary_dim)
    if config.moe is not None:
        raw |= _experts_to_hf(raw, config.moe, tuple(bool(kind & EXPERTS) for kind in kinds), draw)
        if config.moe.latent_size:
            raw["routed_expert_hidden_size"] = draw.choice((26, 33, 38))
    for key in ("bos_token_id", "eos_token_id"):
        raw[key] = _within(raw.get(key), raw["vocab_size"])
    return read_config(raw, name=f"{config.name}-scaled-{seed}", where=f"scaled({config.name}, seed={seed})")


def scaled_checkpoint(model: str, seed: int = 0) -> Checkpoint:
    """`model` shrunk, with seeded random weights whatever weights it has; one with a tokenizer loses it."""
    return random_checkpoint(scaled(open_config(model), seed), seed)


def scaled_pattern(kinds: Sequence[int]) -> tuple[int, ...]:
    """A short list that still shows a pattern of layers: two periods of what repeats, be it all or a stretch of it.

    >>> scaled_pattern([8, 8, 8, 0] * 5)
    (8, 8, 8, 0, 8, 8, 8, 0)
    >>> scaled_pattern([1, *[8, 0] * 9, 0])
    (1, 8, 0, 8, 0, 0)
    """
    for period in range(1, len(kinds) // 2 + 1):
        if all(kinds[at] == kinds[at - period] for at in range(period, len(kinds))):
            return tuple(kinds[: 2 * period])
    found = [_repeats(kinds, period) for period in range(1, len(kinds) // 3 + 1)]
    start, length = max(found, key=_length, default=(0, 0))
    return scaled_pattern([*kinds[:start], *kinds[start + length :]]) if length else tuple(kinds)


def _length(stretch: tuple[int, int]) -> int:
    return stretch[1]


def _repeats(kinds: Sequence[int], period: int) -> tuple[int, int]:
    """(start, layers) of the most whole periods that follow two of their like; no layers where there are none."""
    best = start = 0
    equal = 0  # layers up to here that are as the one a period before
    for at in range(period, len(kinds)):
        equal = equal + 1 if kinds[at] == kinds[at - period] else 0
        if equal > best:
            best, start = equal, at + 1 - equal - period
    return start, max(0, best // period - 1) * period


def _layer_kinds(config: ModelConfig) -> tuple[int, ...]:
    """A number a layer: the sum of what it has."""
    none = (False,) * config.num_layers
    index = config.latent.index if config.latent is not None else None
    parts = (
        (WINDOW, config.windows),
        (EXPERTS, config.moe.sparse if config.moe is not None else none),
        (LINEAR, config.linear.layers if config.linear is not None else none),
        (TURNED, config.turned or none),
        (SHARED, tuple(not full for full in index.full) if index is not None else none),
    )
    return tuple(sum(kind * bool(part[layer]) for kind, part in parts) for layer in range(config.num_layers))


def _linear_to_hf(linear: LinearConfig, draw: random.Random) -> dict[str, Any]:
    """Small linear heads, key and value heads in the original ratio; the convolution keeps its taps."""
    key_heads = min(linear.key_heads, draw.choice((2, 4)))
    key_dim, value_dim = draw.sample((10, 12, 14, 18), 2)
    if linear.kda:
        return {"linear_num_heads": key_heads, "linear_head_dim": key_dim}
    return {
        "linear_num_key_heads": key_heads,
        "linear_num_value_heads": key_heads * (linear.heads // linear.key_heads),
        "linear_key_head_dim": key_dim,
        "linear_value_head_dim": value_dim,
    }


def _head_dims(config: ModelConfig, heads: int) -> list[int]:
    """Head dims of which rope can turn the same part as in the original."""
    factor = config.rope.rotary_dim / config.head_dim
    choices = _SMALL_HEAD_DIMS if heads > _MANY_HEADS else _HEAD_DIMS
    fitting = [dim for dim in choices if int(dim * factor) % 2 == 0 and int(dim * factor) > 0]
    return fitting or [config.head_dim]


def _experts_to_hf(
    raw: dict[str, Any], moe: MoeConfig, sparse: tuple[bool, ...], draw: random.Random
) -> dict[str, Any]:
    """Few small experts, chosen by the same rules; groups keep their number where that is at most four."""
    groups = min(moe.groups, 4)
    experts = groups * max(moe.group_best + 1, draw.choice((6, 9, 10, 12)) // groups)
    top_groups = min(moe.top_groups, max(1, groups - 1)) if moe.groups > moe.top_groups else groups
    top_k = min(moe.top_k, max(1, experts // 3), top_groups * experts // groups)
    small = {
        "num_experts_per_tok": top_k,
        "moe_intermediate_size": 12 * draw.choice(_ODD_WIDTHS),
        "shared_expert_intermediate_size": 12 * draw.choice(_ODD_WIDTHS),
        "num_experts_per_token": top_k,
        "mlp_layer_types": ["sparse" if experts_here else "dense" for experts_here in sparse],
        "num_expert_group": groups,
        "n_group": groups,
        "topk_group": top_groups,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [index for index, experts_here in enumerate(sparse) if not experts_here],
        "moe_layers": [index for index, experts_here in enumerate(sparse) if experts_here],
        "intermediate_size_mlp": 12 * draw.choice(_ODD_WIDTHS),
        "first_k_dense_replace": sparse.index(True) if True in sparse else len(sparse),
    }
    small |= dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), experts)
    return {key: value for key, value in small.items() if key in raw}


def _heads(config: ModelConfig, draw: random.Random) -> tuple[int, int]:
    """Heads and kv heads in the original ratio, with at least two kv heads where there were two, and four heads."""
    group = config.num_heads // config.num_kv_heads
    choices = (4, 6) if group == 1 else (2, 4) if group <= 4 else (2,)
    kv_heads = min(config.num_kv_heads, draw.choice(choices))
    return kv_heads * group, kv_heads


def _shrink_windows(windows: tuple[int, ...], draw: random.Random) -> tuple[int, ...]:
    window = draw.choice((5, 7, 11, 13))
    return tuple(window if kind else 0 for kind in windows)


def _windows_to_hf(raw: dict[str, Any], windows: tuple[int, ...], is_linear: tuple[bool, ...]) -> dict[str, Any]:
    """The windows, and which layers are linear, in whichever keys the family spelled them with."""
    changed: dict[str, Any] = {}
    limited = "chunked_attention" if "attention_chunk_size" in raw else "sliding_attention"
    for key in ("sliding_window", "attention_chunk_size"):
        if raw.get(key) is not None:
            changed[key] = max(windows) or 7
    if raw.get("layer_types") is not None:
        changed["layer_types"] = [
            "linear_attention" if linear else limited if window else "full_attention"
            for window, linear in zip(windows, is_linear, strict=True)
        ]
    if "max_window_layers" in raw:
        changed["max_window_layers"] = next((at for at, window in enumerate(windows) if window), len(windows))
    return changed


def _latent_to_hf(latent: LatentConfig, draw: random.Random) -> dict[str, Any]:
    """Latents and parts of a head, no two of one size."""
    nope, rope, v = draw.choice((10, 14, 18)), draw.choice((6, 12)), draw.choice((9, 11, 13))
    return {
        "q_lora_rank": draw.choice((26, 30)) if latent.q_rank else None,
        "kv_lora_rank": draw.choice((20, 22, 28)),
        "qk_nope_head_dim": nope,
        "qk_rope_head_dim": rope,
        "v_head_dim": v,
    }


def _indexer_to_hf(raw: dict[str, Any], kinds: tuple[int, ...], rope_dim: int, draw: random.Random) -> dict[str, Any]:
    """Enough index heads that no score is a tie by chance, and fewer choices than a test prompt has tokens."""
    small: dict[str, Any] = {
        "index_n_heads": 16,
        "index_head_dim": rope_dim + draw.choice((4, 6, 10)),
        "index_topk": draw.choice((17, 21, 26)),
        "indexer_types": ["shared" if kind & SHARED else "full" for kind in kinds],
    }
    return {key: value for key, value in small.items() if key in raw}


def _rope_to_hf(config: ModelConfig, rotary_dim: int) -> dict[str, Any]:
    """The rope table, or that of each kind of layer, and the length that they allow."""
    tables = config.to_hf()["rope_parameters"]
    if config.local_rope is None:
        table, limit = _table_to_hf(tables, config.rope.scaling, rotary_dim)
        return {"rope_parameters": table, "max_position_embeddings": limit}
    ropes = {"full_attention": config.rope, "sliding_attention": config.local_rope}
    made = {kind: _table_to_hf(tables[kind], rope.scaling, rotary_dim) for kind, rope in ropes.items()}
    return {
        "rope_parameters": {kind: table for kind, (table, _) in made.items()},
        "max_position_embeddings": max(limit for _, limit in made.values()),
    }


def _table_to_hf(given: dict[str, Any], scaling: RopeScaling, rotary_dim: int) -> tuple[dict[str, Any], int]:
    """A table with a short original length and factor lists of the new head, and the length it then allows."""
    table = dict(given)
    if not scaling.original_max_position_embeddings:
        return table, LONGEST_TEST
    original = min(LONGEST_PROMPT, max(16, math.ceil(LONGEST_TEST / scaling.factor)))
    table["original_max_position_embeddings"] = original
    for key in ("short_factor", "long_factor"):
        if key in table:
            table[key] = _resampled(table[key], rotary_dim // 2)
    return table, max(LONGEST_TEST, round(original * scaling.factor))


def _resampled(values: Sequence[float], count: int) -> list[float]:
    """`count` of the values, evenly spread from the first to the last."""
    return [values[round(at * (len(values) - 1) / max(1, count - 1))] for at in range(count)]


def _within(ids: Any, vocab_size: int) -> Any:
    """Token ids brought into a smaller vocabulary."""
    if isinstance(ids, list):
        return [index % vocab_size for index in ids]
    return None if ids is None else ids % vocab_size
