"""The rope part of a config.json, as transformers 4 (rope_scaling, rope_theta) and 5 (rope_parameters) spell it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ..isa.errors import ConfigError, UnsupportedError
from .blocks import Rope, RopeScaling
from .fields import Fields, numbers
from .rope import attention_scaling, inv_frequencies

DEFAULT_THETA = 10_000.0
LARGEST_HEAD_DIM = 1 << 16  # no published head comes near; a larger one is a damaged file
_HARMLESS = frozenset({"type", "rope_type", "finetuned"})


def read_rope(
    fields: Fields,
    head_dim: int,
    max_position_embeddings: int,
    default_theta: float = DEFAULT_THETA,
    partial: float | None = None,
    ignored: frozenset[str] = frozenset(),
) -> Rope:
    """The Rope of a model with heads of `head_dim` elements.

    Precedence is that of transformers: `rope_scaling` or `rope_parameters`, in it `rope_theta`, then the top-level
    `rope_theta`, then `default_theta`; so it is with `partial_rotary_factor`, the part of each head that is turned, for
    families that give a default for it (None: whole heads only). `ignored` keys say nothing to the family. Raises
    ConfigError for bad numbers, UnsupportedError for rules and keys not known.
    """
    table = _table(fields)
    theta = _theta(fields, table, default_theta)
    factor = _partial(fields, table, partial)
    rotary_dim = int(head_dim * factor)
    if rotary_dim % 2:
        what = "head_dim" if rotary_dim == head_dim else f"the part of head_dim {head_dim} that rope turns,"
        raise ConfigError(f"{fields.where}: {what} {rotary_dim} is odd; rope turns pairs, so it must be even")
    if rotary_dim > LARGEST_HEAD_DIM:
        raise ConfigError(f"{fields.where}: heads of {rotary_dim} elements (head_dim) are beyond {LARGEST_HEAD_DIM}")
    rule = _rule(fields, table)
    scaling = _READERS[rule](fields, table, rotary_dim, max_position_embeddings)
    table.refuse_the_rest(_HARMLESS | ignored, f"the {rule} rope rule")
    fields.resolved["rope_parameters"] = {"rope_type": rule, "rope_theta": theta, **table.resolved}
    if partial is not None:
        fields.resolved["rope_parameters"]["partial_rotary_factor"] = factor
    rope = Rope(theta=theta, rotary_dim=rotary_dim, interleaved=False, scaling=scaling)
    _check_frequencies(rope, max_position_embeddings, table)
    return rope


def read_ropes_by_kind(
    fields: Fields, head_dim: int, max_position_embeddings: int, thetas: tuple[float, float]
) -> tuple[Rope, Rope]:
    """The ropes of full and of sliding layers: a table a kind (v5), or rope_theta, rope_local_base_freq, rope_scaling.

    As in transformers, the second spelling's rope_scaling bends full layers alone, and yarn's range is truncated to
    whole pairs whatever a kind's `truncate` says, which is looked for beside the tables; `thetas` are the defaults.
    """
    kinds = ("full_attention", "sliding_attention")
    given: Any = fields.take("rope_parameters", None, record=False)
    scaling = fields.take("rope_scaling", None, record=False) or {}
    outer = [fields.take(key, None, record=False) for key in ("rope_theta", "rope_local_base_freq")]
    tables: Any = {kinds[0]: scaling} if given is None else given
    if not isinstance(tables, Mapping) or not all(isinstance(t, Mapping | None) for t in [scaling, *tables.values()]):
        raise fields.fault("rope_scaling" if given is None else "rope_parameters", "an object of rope numbers, or null")
    if set(tables) - set(kinds) or (given is not None and scaling):
        raise fields.fault("rope_parameters", f"a table each of {' and '.join(kinds)}, and rope_scaling absent")
    ropes = []
    for kind, theta, default in zip(kinds, outer, thetas, strict=True):
        table = {"rope_theta": theta, **(tables.get(kind) or {})}
        inner = Fields({"rope_parameters": table}, f"{fields.where}: {kind}")
        rope = read_rope(inner, head_dim, max_position_embeddings, default)
        ropes.append(replace(rope, scaling=replace(rope.scaling, truncate=True)))
        fields.assumed += inner.assumed
        tables = {**tables, kind: inner.resolved["rope_parameters"]}
    fields.resolved["rope_parameters"] = tables
    return ropes[0], ropes[1]


def _check_frequencies(rope: Rope, longest: int, table: Fields) -> None:
    """Refuse numbers, each legal, that together turn a head by no finite angle."""
    try:
        with np.errstate(all="ignore"):
            found = np.concatenate([inv_frequencies(rope, length) for length in (1, longest)])
            factor = float(np.float32(attention_scaling(rope.scaling)))
    except (ArithmeticError, ValueError) as error:
        raise ConfigError(f"{table.where}: these numbers cannot be computed with ({error})") from None
    if not (np.isfinite(found).all() and (found > 0).all() and math.isfinite(factor)):
        raise ConfigError(
            f"{table.where}: rope_theta {rope.theta:g} and the numbers of the {rope.scaling.rule} rule give "
            f"frequencies from {found.min():g} to {found.max():g} and a factor of {factor:g}; "
            "they must be finite and above 0 in float32"
        )


def _table(fields: Fields) -> Fields:
    """The one dictionary of rope numbers, whichever key holds it."""
    old = fields.take("rope_scaling", None, record=False) or {}
    new = fields.take("rope_parameters", None, record=False) or {}
    for key, value in (("rope_scaling", old), ("rope_parameters", new)):
        if not isinstance(value, Mapping):
            raise fields.fault(key, "an object of rope numbers, or null")
    if old and new and dict(old) != dict(new):
        raise ConfigError(f"{fields.where}: rope_scaling and rope_parameters disagree; keep one of them")
    key = "rope_scaling" if old else "rope_parameters"
    table = old or new
    nested = [name for name, value in table.items() if isinstance(value, Mapping)]
    if nested:
        raise UnsupportedError(
            f"{fields.where}: {key} holds one table a layer kind ({', '.join(nested)}); "
            "only one table for all layers is supported"
        )
    return Fields(table, f"{fields.where}: {key}")


def _partial(fields: Fields, table: Fields, default: float | None) -> float:
    """The part of every head that is turned."""
    if default is None:
        for holder in (fields, table):
            holder.neutral("partial_rotary_factor", 1.0, None)
        return 1.0
    given = [h for h in (table, fields) if h.take("partial_rotary_factor", None, record=False) is not None]
    factors = [holder.number("partial_rotary_factor", maximum=1.0) for holder in given]
    fields.resolved.pop("partial_rotary_factor", None)
    if len(set(factors)) > 1:
        raise ConfigError(f"{fields.where}: partial_rotary_factor is {factors[1]} and {factors[0]}; keep one of them")
    return factors[0] if factors else default


def _theta(fields: Fields, table: Fields, default: float) -> float:
    outer = fields.take("rope_theta", None, record=False)
    holder = table if table.raw.get("rope_theta") is not None else fields
    if holder is fields and outer is None:
        fields.assumed.append(f"rope_theta={default} (not in {fields.where}; the default of transformers)")
        table.take("rope_theta", None, record=False)
        return default
    theta = holder.number("rope_theta", minimum=1.0)
    fields.resolved.pop("rope_theta", None)
    table.take("rope_theta", None, record=False)
    table.resolved.pop("rope_theta", None)
    return theta


def _rule(fields: Fields, table: Fields) -> Any:
    rule = table.raw.get("rope_type", table.raw.get("type", "default"))
    if not isinstance(rule, str) or rule not in _READERS:
        raise UnsupportedError(f"{table.where}: rope rule {rule!r} is not supported; known: {', '.join(_READERS)}")
    return rule


def _plain(fields: Fields, table: Fields, dim: int, limit: int) -> RopeScaling:
    table.neutral("factor", 1.0, None)
    return RopeScaling(rule="default", max_position_embeddings=limit)


def _linear(fields: Fields, table: Fields, dim: int, limit: int) -> RopeScaling:
    return RopeScaling(rule="linear", factor=table.number("factor"), max_position_embeddings=limit)


def _dynamic(fields: Fields, table: Fields, dim: int, limit: int) -> RopeScaling:
    if dim <= 2:
        raise ConfigError(f"{table.where}: the dynamic rule needs more than {dim} rotated elements a head")
    return RopeScaling(rule="dynamic", factor=table.number("factor"), max_position_embeddings=limit)


def _llama3(fields: Fields, table: Fields, dim: int, limit: int) -> RopeScaling:
    low, high = table.number("low_freq_factor"), table.number("high_freq_factor")
    if high < low:
        raise table.fault("high_freq_factor", f"at least low_freq_factor ({low})")
    return RopeScaling(
        rule="llama3",
        factor=table.number("factor"),
        max_position_embeddings=limit,
        original_max_position_embeddings=_original(fields, table, limit),
        low_freq_factor=low,
        high_freq_factor=high,
    )


def _yarn(fields: Fields, table: Fields, dim: int, limit: int) -> RopeScaling:
    original = _original(fields, table, limit)
    return RopeScaling(
        rule="yarn",
        factor=_factor(table, limit, original),
        max_position_embeddings=limit,
        original_max_position_embeddings=original,
        attention_factor=_optional(table, "attention_factor"),
        beta_fast=_optional(table, "beta_fast") or 32.0,
        beta_slow=_optional(table, "beta_slow") or 1.0,
        mscale=_optional(table, "mscale"),
        mscale_all_dim=_optional(table, "mscale_all_dim"),
        truncate=table.flag("truncate", True),
    )


def _longrope(fields: Fields, table: Fields, dim: int, limit: int) -> RopeScaling:
    original = _original(fields, table, limit)
    lists = {}
    for key in ("short_factor", "long_factor"):
        values = numbers(table.take(key))
        if values is None or len(values) != dim // 2 or min(values) <= 0:
            raise table.fault(key, f"a list of {dim // 2} positive numbers, one a rotated pair")
        lists[key] = values
    return RopeScaling(
        rule="longrope",
        factor=_factor(table, limit, original),
        max_position_embeddings=limit,
        original_max_position_embeddings=original,
        attention_factor=_optional(table, "attention_factor"),
        short_factor=lists["short_factor"],
        long_factor=lists["long_factor"],
    )


def _original(fields: Fields, table: Fields, limit: int) -> int:
    """The length before scaling: the top-level key wins (Phi-3 style), then the table's, then the model's own limit."""
    inner = table.integer_or_none("original_max_position_embeddings", minimum=2)
    outer = fields.take("original_max_position_embeddings", None, record=False)
    if outer is not None:
        inner = fields.integer("original_max_position_embeddings", minimum=2)
        fields.resolved.pop("original_max_position_embeddings")
    table.resolved["original_max_position_embeddings"] = inner or limit
    return inner or limit


def _factor(table: Fields, limit: int, original: int) -> float:
    """The stretch; absent or null it is the ratio of the lengths."""
    factor = _optional(table, "factor")
    table.resolved["factor"] = factor or limit / original
    return factor or limit / original


def _optional(table: Fields, key: str) -> float | None:
    """A positive number, or None when the key is absent or null; absent, it stays so in the config written back."""
    if table.take(key, None) is None:
        del table.resolved[key]
        return None
    return table.number(key)


_READERS = {
    "default": _plain,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}
