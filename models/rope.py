"""Rotary position tables: inverse frequencies by scaling rule, and the cosines and sines a card is given.

Every rule follows transformers 5's `modeling_rope_utils.py`, in its order of operations and in float32, because an
inverse frequency that differs in its last bit turns into a visible angle at position 100,000.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..isa.errors import ConfigError
from .blocks import Rope, RopeRule, RopeScaling

Array = np.ndarray[Any, Any]


def inv_frequencies(rope: Rope, length: int) -> Array:
    """Radians a position of each rotated pair, float32 [rotary_dim / 2].

    `length` is the longest sequence of the job in tokens. Only two rules look at it, as transformers does in a
    forward pass over that many tokens: dynamic stretches theta beyond `max_position_embeddings`, and longrope takes
    its long factors beyond `original_max_position_embeddings`. One job keeps one set, so cached keys never disagree
    with the queries that read them (transformers changes set in mid-generation, and so disagrees with itself).
    """
    if length < 1:
        raise ConfigError(f"a rope table of {length} positions; it needs at least 1")
    return _RULES[rope.scaling.rule](rope, length)


def attention_scaling(scaling: RopeScaling) -> float:
    """The factor that yarn and longrope put on cosines and sines; 1 for the other rules."""
    if scaling.rule not in ("yarn", "longrope"):
        return 1.0
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    if scaling.rule == "longrope":
        return _longrope_attention_factor(scaling)
    if scaling.mscale and scaling.mscale_all_dim:
        return _mscale(scaling.factor, scaling.mscale) / _mscale(scaling.factor, scaling.mscale_all_dim)
    return _mscale(scaling.factor, 1.0)


def rope_table(rope: Rope, positions: int) -> tuple[Array, Array]:
    """(cos, sin), each float32 [positions, rotary_dim / 2], for a job whose longest sequence is `positions` tokens.

    Column i turns elements i and i + rotary_dim / 2 (half-split) or 2i and 2i + 1 (interleaved).
    """
    angles = np.arange(positions, dtype=np.float32)[:, None] * inv_frequencies(rope, positions)
    factor = np.float32(attention_scaling(rope.scaling))
    return np.cos(angles) * factor, np.sin(angles) * factor


def _powers(theta: float, dim: int) -> Array:
    """theta ** (2i / dim), float32 [dim / 2].

    The power is taken in float64 and rounded, which gives torch's float32 result to the last bit in 99% of cases;
    NumPy's own float32 power does so in 83%.
    """
    exponents = np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim)
    return np.power(np.float64(theta), exponents.astype(np.float64)).astype(np.float32)


def _default(rope: Rope, length: int) -> Array:
    return np.float32(1) / _powers(rope.theta, rope.rotary_dim)


def _linear(rope: Rope, length: int) -> Array:
    return _default(rope, length) / np.float32(rope.scaling.factor)


def _dynamic(rope: Rope, length: int) -> Array:
    limit, factor, dim = rope.scaling.max_position_embeddings, rope.scaling.factor, rope.rotary_dim
    stretch = (factor * max(length, limit) / limit) - (factor - 1)
    return np.float32(1) / _powers(rope.theta * stretch ** (dim / (dim - 2)), dim)


def _llama3(rope: Rope, length: int) -> Array:
    """Long waves are slowed by `factor`, short ones kept, those between blended (Llama 3.1)."""
    scaling = rope.scaling
    original = scaling.original_max_position_embeddings
    low, high, factor = scaling.low_freq_factor, scaling.high_freq_factor, np.float32(scaling.factor)
    plain = _default(rope, length)
    wavelength = np.float32(2 * math.pi) / plain
    is_long = wavelength > np.float32(original / low)
    is_short = wavelength < np.float32(original / high)
    slowed = np.where(is_long, plain / factor, plain)
    if low == high:
        return slowed
    smooth = (np.float32(original) / wavelength - np.float32(low)) / np.float32(high - low)
    blended = (np.float32(1) - smooth) * slowed / factor + smooth * slowed
    bent: Array = np.where(~is_short & ~is_long, blended, slowed)
    return bent


def _yarn(rope: Rope, length: int) -> Array:
    """NTK by parts (arXiv 2309.00071): interpolate slow pairs, keep fast ones, ramp between."""
    scaling, dim = rope.scaling, rope.rotary_dim
    low, high = _yarn_range(rope)
    span = high - low if high != low else 0.001
    ramp = (np.arange(dim // 2, dtype=np.float32) - np.float32(low)) / np.float32(span)
    keep = np.float32(1) - np.clip(ramp, 0, 1).astype(np.float32)
    powers = _powers(rope.theta, dim)
    interpolated = np.float32(1) / (np.float32(scaling.factor) * powers)
    bent: Array = interpolated * (np.float32(1) - keep) + (np.float32(1) / powers) * keep
    return bent


def _yarn_range(rope: Rope) -> tuple[float, float]:
    """The pairs between which yarn ramps: they turn `beta_fast` and `beta_slow` times in the original length."""
    scaling, dim = rope.scaling, rope.rotary_dim

    def pair_that_turns(turns: float) -> float:
        ratio = scaling.original_max_position_embeddings / (turns * 2 * math.pi)
        return (dim * math.log(ratio)) / (2 * math.log(rope.theta))

    low, high = pair_that_turns(scaling.beta_fast), pair_that_turns(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    return max(low, 0), min(high, dim - 1)


def _mscale(scale: float, mscale: float) -> float:
    return 1.0 if scale <= 1 else 0.1 * mscale * math.log(scale) + 1.0


def _longrope(rope: Rope, length: int) -> Array:
    scaling = rope.scaling
    is_long = length > scaling.original_max_position_embeddings
    factors = np.array(scaling.long_factor if is_long else scaling.short_factor, dtype=np.float32)
    return np.float32(1) / (factors * _powers(rope.theta, rope.rotary_dim))


def _longrope_attention_factor(scaling: RopeScaling) -> float:
    if scaling.factor <= 1.0:
        return 1.0
    return math.sqrt(1 + math.log(scaling.factor) / math.log(scaling.original_max_position_embeddings))


_RULES: dict[RopeRule, Callable[[Rope, int], Array]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}
