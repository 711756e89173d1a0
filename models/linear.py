"""Layers of linear attention: what a config says about them, and the block they become under published names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..isa.errors import ConfigError, UnsupportedError
from .blocks import DeltaNet, HeadRows, Norm, Projection
from .fields import Fields, is_number, short

KINDS = ("linear_attention", "full_attention")
GATE_KEYS = ("gate_lower_bound", "use_full_rank_gate")


@dataclass(frozen=True)
class LinearConfig:
    """The linear layers of a model; `layers` says of every layer whether it is one.

    `key_dim` and `value_dim` are a head's; `packed` puts query, key, value and gate of a key head side by side in one
    tensor, as Qwen3-Next's files have them; without it each kind stands together. `kda` makes it Kimi delta attention:
    a decay a key channel, above `lower_bound` where that is below 0, and a sigmoid gate, of low rank unless
    `full_rank_gate`. Its A_log is stored as [1, 1, heads, 1], or in `a_log_rows` of which the first are the heads'.
    """

    layers: tuple[bool, ...]
    heads: int
    key_heads: int
    key_dim: int
    value_dim: int
    kernel: int
    packed: bool = False
    kda: bool = False
    lower_bound: float = 0.0
    full_rank_gate: bool = False
    a_log_rows: int = 0


def read_layer_kinds(fields: Fields, layers: int) -> tuple[bool, ...]:
    """Whether each layer is linear: layer_types, or all but every full_attention_interval-th (default 4)."""
    interval = fields.integer("full_attention_interval", 4)
    fields.resolved.pop("full_attention_interval", None)  # layer_types says it
    kinds: Any = fields.take("layer_types", None)
    if kinds is None:
        kinds = [KINDS[(index + 1) % interval == 0] for index in range(layers)]
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise fields.fault("layer_types", f"a list of {layers} layer kinds (num_hidden_layers)")
    unknown = sorted({str(kind) for kind in kinds} - set(KINDS))
    if unknown:
        raise UnsupportedError(
            f"{fields.where}: layer_types holds {', '.join(unknown)}, which is not supported; known: {', '.join(KINDS)}"
        )
    fields.resolved["layer_types"] = list(kinds)
    return tuple(kind == KINDS[0] for kind in kinds)


def require_silu(fields: Fields) -> None:
    """UnsupportedError for another hidden_act: transformers gives it to the convolutions too, which are SiLU here."""
    if fields.raw.get("hidden_act") not in (None, "silu", "swish"):
        raise UnsupportedError(
            f"{fields.where}: hidden_act={short(fields.raw['hidden_act'])} is not supported beside linear attention, "
            "whose convolutions take it too; only silu is"
        )


def read_gated_delta_net(fields: Fields, layers: int, packed: bool) -> LinearConfig:
    """Qwen's keys for its gated delta nets."""
    require_silu(fields)
    heads, key_heads = fields.integer("linear_num_value_heads"), fields.integer("linear_num_key_heads")
    if heads % key_heads:
        raise ConfigError(
            f"{fields.where}: linear_num_key_heads {key_heads} does not divide linear_num_value_heads {heads}"
        )
    return LinearConfig(
        layers=read_layer_kinds(fields, layers),
        heads=heads,
        key_heads=key_heads,
        key_dim=fields.integer("linear_key_head_dim"),
        value_dim=fields.integer("linear_value_head_dim"),
        kernel=fields.integer("linear_conv_kernel_dim", minimum=2, maximum=64),
        packed=packed,
    )


def read_kda(fields: Fields, layers: int, gates: bool = False) -> LinearConfig:
    """Kimi delta attention, by the hub's linear_attn_config (whose lists count from 1) or transformers' own keys.

    With `gates` Kimi K3's keys of its gates are read too, in the one place or the other.
    """
    table: Any = fields.take("linear_attn_config", None, record=False)
    if table is None:
        fields.take("layer_types")  # must be there: transformers' own default is not the pattern of published files
        is_linear = read_layer_kinds(fields, layers)
        heads, dim = fields.integer("linear_num_heads"), fields.integer("linear_head_dim")
        kernel = fields.integer("linear_conv_kernel_dim", 4, 2)
        bound, full_rank = _gates(fields) if gates else (0.0, False)
        return LinearConfig(is_linear, heads, heads, dim, dim, kernel, False, True, bound, full_rank)
    if not isinstance(table, dict):
        raise fields.fault("linear_attn_config", "an object")
    inner = Fields(table, f"{fields.where}: linear_attn_config")
    full, linear = (inner.take(key) for key in ("full_attn_layers", "kda_layers"))
    if (
        not isinstance(full, list)
        or not isinstance(linear, list)
        or sorted(full + linear) != list(range(1, layers + 1))
    ):
        raise inner.fault("kda_layers", f"with full_attn_layers every layer from 1 to {layers} once")
    heads, dim = inner.integer("num_heads"), inner.integer("head_dim")
    kernel = inner.integer("short_conv_kernel_size", 4, 2)
    bound, full_rank = _gates(inner) if gates else (0.0, False)
    inner.refuse_the_rest(frozenset(), "Kimi delta attention")
    fields.take("layer_types", None, record=False)
    is_linear = tuple(index + 1 in linear for index in range(layers))
    fields.resolved["layer_types"] = [KINDS[not linear_here] for linear_here in is_linear]
    fields.resolved |= {"linear_num_heads": heads, "linear_head_dim": dim, "linear_conv_kernel_dim": kernel}
    fields.resolved |= {key: inner.resolved[key] for key in GATE_KEYS if key in inner.resolved}
    return LinearConfig(is_linear, heads, heads, dim, dim, kernel, False, True, bound, full_rank)


def _gates(fields: Fields) -> tuple[float, bool]:
    """The lower bound of the log decay (0: none), and whether the output gate is of full rank."""
    bound = fields.take("gate_lower_bound", None)
    if bound is not None and (not is_number(bound) or bound >= 0):
        raise fields.fault("gate_lower_bound", "a number below 0, or null")
    return float(bound or 0), fields.flag("use_full_rank_gate", False)


def build_linear(config: LinearConfig, prefix: str, hidden: int, eps: float) -> DeltaNet:
    """The gated delta net whose tensors stand below `prefix` (`model.layers.N`)."""
    if config.kda:
        return build_kda(config, f"{prefix}.self_attn", hidden, eps)
    at = f"{prefix}.linear_attn"
    keys, values = config.key_heads * config.key_dim, config.heads * config.value_dim
    rows, shapes = (_packed if config.packed else _apart)(config, at, hidden)
    channels = 2 * keys + values
    conv = f"{at}.conv1d.weight"
    q, k, v, gate, beta, decay = rows
    return DeltaNet(
        hidden_size=hidden,
        heads=config.heads,
        key_heads=config.key_heads,
        key_dim=config.key_dim,
        value_dim=config.value_dim,
        kernel=config.kernel,
        q=q,
        k=k,
        v=v,
        gate=gate,
        beta=beta,
        decay=decay,
        convs=(
            HeadRows(conv, config.key_dim),
            HeadRows(conv, config.key_dim, keys),
            HeadRows(conv, config.value_dim, 2 * keys),
        ),
        a_log=HeadRows(f"{at}.A_log", 1),
        dt_bias=HeadRows(f"{at}.dt_bias", 1),
        norm=Norm("rms", config.value_dim, f"{at}.norm.weight", None, eps),
        gate_activation="silu",
        out=Projection((f"{at}.out_proj.weight",), (), (hidden,), values),
        tensors=(
            *shapes,
            (conv, (channels, 1, config.kernel)),
            (f"{at}.A_log", (config.heads,)),
            (f"{at}.dt_bias", (config.heads,)),
        ),
    )


Rows = tuple[HeadRows, HeadRows, HeadRows, HeadRows, HeadRows, HeadRows]
Shapes = tuple[tuple[str, tuple[int, ...]], ...]


def _packed(config: LinearConfig, at: str, hidden: int) -> tuple[Rows, Shapes]:
    """q, k, v and gate of one key head after another in one tensor, beta and decay so in another."""
    group = config.heads // config.key_heads
    dim, values = config.key_dim, group * config.value_dim
    qkvz, ba = f"{at}.in_proj_qkvz.weight", f"{at}.in_proj_ba.weight"
    stride = 2 * dim + 2 * values
    rows = (
        HeadRows(qkvz, dim, 0, stride),
        HeadRows(qkvz, dim, dim, stride),
        HeadRows(qkvz, config.value_dim, 2 * dim, stride, group),
        HeadRows(qkvz, config.value_dim, 2 * dim + values, stride, group),
        HeadRows(ba, 1, 0, 2 * group, group),
        HeadRows(ba, 1, group, 2 * group, group),
    )
    return rows, ((qkvz, (config.key_heads * stride, hidden)), (ba, (2 * config.heads, hidden)))


def _apart(config: LinearConfig, at: str, hidden: int) -> tuple[Rows, Shapes]:
    """All queries, then all keys, then all values in one tensor; gate, beta and decay in one each."""
    keys, values = config.key_heads * config.key_dim, config.heads * config.value_dim
    qkv, z, b, a = (f"{at}.in_proj_{part}.weight" for part in ("qkv", "z", "b", "a"))
    rows = (
        HeadRows(qkv, config.key_dim),
        HeadRows(qkv, config.key_dim, keys),
        HeadRows(qkv, config.value_dim, 2 * keys),
        HeadRows(z, config.value_dim),
        HeadRows(b, 1),
        HeadRows(a, 1),
    )
    shapes = (
        (qkv, (2 * keys + values, hidden)),
        (z, (values, hidden)),
        (b, (config.heads, hidden)),
        (a, (config.heads, hidden)),
    )
    return rows, shapes


def build_kda(config: LinearConfig, at: str, hidden: int, eps: float) -> DeltaNet:
    """Kimi delta attention below `at`: projections and convolutions of q, k and v in tensors of their own."""
    heads, dim = config.heads, config.key_dim
    width = heads * dim
    down = {part: Projection((f"{at}.{part}_a_proj.weight",), (), (dim,), hidden) for part in "fg"}
    gate = f"{at}.g_proj.weight" if config.full_rank_gate else f"{at}.g_b_proj.weight"
    q, k, v = (HeadRows(f"{at}.{part}_proj.weight", dim) for part in "qkv")
    q_conv, k_conv, v_conv = (HeadRows(f"{at}.{part}_conv1d.weight", dim) for part in "qkv")
    shapes: dict[str, tuple[int, ...]] = {part.tensor: (width, hidden) for part in (q, k, v)}
    shapes |= {part.tensor: (width, 1, config.kernel) for part in (q_conv, k_conv, v_conv)}
    shapes |= {
        down["f"].weights[0]: (dim, hidden),
        f"{at}.f_b_proj.weight": (width, dim),
        f"{at}.b_proj.weight": (heads, hidden),
        gate: (width, hidden if config.full_rank_gate else dim),
        f"{at}.A_log": (config.a_log_rows,) if config.a_log_rows else (1, 1, heads, 1),
        f"{at}.dt_bias": (width,),
    }
    if not config.full_rank_gate:
        shapes[down["g"].weights[0]] = (dim, hidden)
    return DeltaNet(
        hidden_size=hidden,
        heads=heads,
        key_heads=heads,
        key_dim=dim,
        value_dim=dim,
        kernel=config.kernel,
        q=q,
        k=k,
        v=v,
        gate=HeadRows(gate, dim),
        beta=HeadRows(f"{at}.b_proj.weight", 1),
        decay=HeadRows(f"{at}.f_b_proj.weight", dim),
        convs=(q_conv, k_conv, v_conv),
        a_log=HeadRows(f"{at}.A_log", 1, axis=0 if config.a_log_rows else 2),
        dt_bias=HeadRows(f"{at}.dt_bias", dim),
        norm=Norm("rms", dim, f"{at}.o_norm.weight", None, eps),
        gate_activation="sigmoid",
        out=Projection((f"{at}.o_proj.weight",), (), (hidden,), width),
        tensors=tuple(shapes.items()),
        decay_down=down["f"],
        gate_down=None if config.full_rank_gate else down["g"],
        lower_bound=config.lower_bound,
    )
