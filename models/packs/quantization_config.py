"""quantization_config: config.json's own account of how a checkpoint is quantised, read into a QuantPlan or refused.

Three methods are read: "fp8" (DeepSeek's fine-grained fp8), "mxfp4" (gpt-oss) and "compressed-tensors".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ...isa.dtype import parse_dtype
from ...isa.errors import ConfigError, UnsupportedError
from ...isa.formats.scheme import SCHEMES, WHOLE, Packing, QuantScheme
from .plan import FORMATS, PackGroup, QuantPlan

Raw = Mapping[str, Any]

_SKIPS = ("quant_method", "modules_to_not_convert", "dequantize")
_FP8_KEYS = (*_SKIPS, "ignored_layers", "fmt", "activation_scheme", "weight_block_size", "scale_fmt", "expert_dtype")
_EXPERTS = r"re:.*\.experts\.(gate_up_proj|down_proj)$"
_DENSE_MLP = r"re:.*mlp\.(gate|up|gate_up|down)_proj.*"


def read_quantization(config: Raw, where: str) -> QuantPlan | None:
    """The plan of a config.json (or of its text part), None when the checkpoint is not quantised.

    `where` names the file in errors. ConfigError for values of a wrong kind, UnsupportedError for a method, format or
    option that is not read: never a near miss.
    """
    raw = _section(config, where)
    if raw is None:
        return None
    method = raw.get("quant_method")
    readers: dict[str, Callable[[Raw, str], QuantPlan]] = {
        "fp8": _fp8,
        "mxfp4": _gpt_oss,
        "compressed-tensors": _compressed_tensors,
    }
    if method not in readers:
        known = ", ".join(readers)
        raise UnsupportedError(f"{where}: quantization_config.quant_method={method!r} is not supported; known: {known}")
    return readers[method](raw, f"{where}: quantization_config")


def _section(config: Raw, where: str) -> Raw | None:
    for holder in (config, config.get("text_config") or {}):
        raw = holder.get("quantization_config")
        if raw is not None:
            if not isinstance(raw, Mapping):
                raise ConfigError(f"{where}: quantization_config is {raw!r}; it must be an object")
            return raw
    return None


def _fp8(raw: Raw, where: str) -> QuantPlan:
    _refuse_others(raw, where, _FP8_KEYS)
    _choice(raw, where, "fmt", ("e4m3", "float8_e4m3fn", None))
    _choice(raw, where, "expert_dtype", ("fp8", None))
    _choice(raw, where, "activation_scheme", ("dynamic", "static", None))
    scheme = SCHEMES["fp8_e4m3_block128x128"]
    if raw.get("weight_block_size", [128, 128]) is None:
        scheme = SCHEMES["fp8_e4m3_tensor"]
    else:
        block = _pair(raw.get("weight_block_size", [128, 128]), f"{where}.weight_block_size")
        scheme = _renamed(replace(scheme, block=block))
    if _choice(raw, where, "scale_fmt", ("float", "ue8m0", None)) == "ue8m0":
        scheme = _renamed(replace(scheme, scale=parse_dtype("e8m0"), scale_rule="ceil"))
    dynamic = raw.get("activation_scheme", "dynamic") != "static"
    inputs = "block1x128" if dynamic and scheme.granularity == "block" else "token" if dynamic else "tensor"
    group = PackGroup(FORMATS["fp8"], ("Linear",), scheme, SCHEMES[f"fp8_e4m3_{inputs}"], dynamic)
    skipped = _names(raw, where, "modules_to_not_convert") or _names(raw, where, "ignored_layers")
    return QuantPlan("fp8", (group,), ("re:(.*\\.)?lm_head$", *map(_transformers_pattern, skipped)))


def _gpt_oss(raw: Raw, where: str) -> QuantPlan:
    _refuse_others(raw, where, _SKIPS)
    group = PackGroup(FORMATS["mxfp4"], (_EXPERTS,), SCHEMES["mxfp4"])
    skipped = _names(raw, where, "modules_to_not_convert")
    return QuantPlan("mxfp4", (group,), tuple(map(_transformers_pattern, skipped)))


def _compressed_tensors(raw: Raw, where: str) -> QuantPlan:
    if _choice(raw, where, "quantization_status", ("compressed", "frozen", None)) == "frozen":
        raise UnsupportedError(f"{where}.quantization_status=frozen: the weights are not packed; save them compressed")
    if raw.get("sparsity_config") or raw.get("transform_config"):
        raise UnsupportedError(f"{where}: sparsity_config and transform_config are not supported")
    default = raw.get("format")
    groups = raw.get("config_groups")
    ignore = [_checked_pattern(name, "ignore") for name in _names(raw, where, "ignore")]
    if groups is None and "weights" in raw:  # a summary, which names parts of a model in words
        groups = {"weights": {"targets": ["Linear"], "weights": raw["weights"]}}
        ignore = [_DENSE_MLP if name == "dense mlp" else _part(name) for name in ignore]
    if not isinstance(groups, Mapping) or not groups:
        raise ConfigError(f"{where}.config_groups is {groups!r}; it must name at least one group")
    cache = raw.get("kv_cache_scheme")
    return QuantPlan(
        "compressed-tensors",
        tuple(_group(group, default, f"{where}.config_groups.{name}") for name, group in groups.items()),
        tuple(ignore),
        None if cache is None else _scheme(cache, "naive-quantized", f"{where}.kv_cache_scheme"),
    )


def _group(raw: Any, default: Any, where: str) -> PackGroup:
    if not isinstance(raw, Mapping) or not isinstance(raw.get("weights"), Mapping):
        raise UnsupportedError(f"{where} has no weights; groups that quantise activations alone are not supported")
    if raw.get("output_activations") is not None:
        raise UnsupportedError(f"{where}.output_activations is not supported")
    name = raw.get("format") or default
    known = [key for key in FORMATS if key not in ("fp8", "mxfp4")]
    if name not in known:
        raise UnsupportedError(f"{where}: format={name!r} is not supported; known: {', '.join(known)}")
    inputs = raw.get("input_activations")
    weights = _scheme(raw["weights"], name, f"{where}.weights")
    activations = None if inputs is None else _scheme(inputs, "naive-quantized", f"{where}.input_activations")
    dynamic = inputs is None or bool(inputs.get("dynamic", False))
    return PackGroup(FORMATS[name], tuple(_names(raw, where, "targets")), weights, activations, dynamic)


def _scheme(raw: Any, pack: str, where: str) -> QuantScheme:
    """The scheme of a QuantizationArgs object, in the packing that its format gives it."""
    if not isinstance(raw, Mapping):
        raise ConfigError(f"{where} is {raw!r}; it must be an object")
    if raw.get("actorder") == "group":
        raise UnsupportedError(f"{where}.actorder=group: columns regrouped by activation order are not supported")
    kind, bits = raw.get("type", "int"), raw.get("num_bits", 8)
    symmetric = raw.get("symmetric", True)
    block = _block(raw, where)
    if pack in _FIXED or (kind, bits) == ("float", 4):
        scheme = _fixed(pack, kind, bits, block, where)
    elif (kind, bits) in _ELEMENTS:
        packing: Packing = "words" if pack == "pack-quantized" else "plain" if bits == 8 else "nibbles"
        scheme = replace(SCHEMES[_ELEMENTS[kind, bits]], block=block, packing=packing, symmetric=symmetric is not False)
    else:
        raise UnsupportedError(
            f"{where}: {bits}-bit {kind} is not supported; known: 4 and 8-bit int, 4 and 8-bit float"
        )
    if scheme.packing == "words" and kind != "int":
        raise ConfigError(f"{where}: pack-quantized holds integers, not {kind}")
    return _renamed(scheme)


_ELEMENTS = {("int", 8): "int8_tensor", ("int", 4): "int4_g128", ("float", 8): "fp8_e4m3_tensor"}
_FIXED = {"mxfp4-pack-quantized": "mxfp4", "nvfp4-pack-quantized": "nvfp4", "mxfp8-quantized": "mxfp8_e4m3"}


def _fixed(pack: str, kind: Any, bits: Any, block: tuple[int, int], where: str) -> QuantScheme:
    """The scheme of a format that leaves nothing to choose (or of 4-bit float activations), checked against it."""
    name = _FIXED.get(pack) or ("nvfp4" if block[1] == SCHEMES["nvfp4"].block[1] else "mxfp4")
    scheme = SCHEMES[name]
    if (kind, bits, block) != ("float", scheme.element.bits, scheme.block):
        found = f"{bits}-bit {kind} in blocks of {list(block)}"
        raise ConfigError(f"{where}: {name} is {scheme.element.bits}-bit float in {list(scheme.block)}, not {found}")
    return scheme


def _block(raw: Raw, where: str) -> tuple[int, int]:
    """(rows, cols) that share a scale, from `strategy`, `group_size` and `block_structure`."""
    size = raw.get("group_size")
    inferred = "tensor" if size is None else "channel" if size == -1 else "group"
    strategy = raw.get("strategy") or inferred
    if strategy in ("group", "tensor_group"):
        if type(size) is not int or size < 1:
            raise ConfigError(f"{where}.group_size is {size!r}; strategy {strategy} needs a whole number from 1")
        return (1, size)
    if strategy == "block":
        return _pair(raw.get("block_structure"), f"{where}.block_structure")
    blocks = {"tensor": (WHOLE, WHOLE), "channel": (1, WHOLE), "token": (1, WHOLE)}
    if strategy not in blocks:
        known = ", ".join([*blocks, "group", "tensor_group", "block"])
        raise UnsupportedError(f"{where}.strategy={strategy!r} is not supported; known: {known}")
    return blocks[strategy]


def _renamed(scheme: QuantScheme) -> QuantScheme:
    """The shipped scheme that is the same in all but name, else this one under a name that says what it is."""
    for known in SCHEMES.values():
        if replace(scheme, name=known.name) == known:
            return known
    rows, cols = (str(side) if side else "all" for side in scheme.block)
    parts = [scheme.element.name, f"block{rows}x{cols}"]
    parts += ["ue8m0"] if scheme.scale.name == "e8m0" else []
    parts += [] if scheme.symmetric else ["asymmetric"]
    parts += [scheme.packing] if scheme.packing == "words" else []
    return replace(scheme, name="_".join(parts))


def _transformers_pattern(entry: str) -> str:
    """A `modules_to_not_convert` entry as transformers reads it: a pattern from the start or a suffix, up to a dot."""
    _checked_pattern(f"re:{entry}", "modules_to_not_convert")
    return rf"re:(?:(?:{entry})(?:(?<=\.)|(?=\.|$))|.*{re.escape(entry)}$)"


def _part(entry: str) -> str:
    """A pattern for all modules that have this run of names in theirs; a pattern stays as it is."""
    return entry if entry.startswith("re:") else rf"re:(.*\.)?{re.escape(entry)}(\..*)?$"


def _checked_pattern(entry: str, key: str) -> str:
    """The entry; ConfigError when it claims to be a pattern and is none."""
    if entry.startswith("re:"):
        try:
            re.compile(entry.removeprefix("re:"))
        except re.error as error:
            raise ConfigError(f"quantization_config.{key}: {entry!r} is not a pattern: {error}") from error
    return entry


def _refuse_others(raw: Raw, where: str, known: tuple[str, ...]) -> None:
    others = sorted(set(raw) - set(known))
    if others:
        raise UnsupportedError(f"{where}.{others[0]}={raw[others[0]]!r} is not supported; known: {', '.join(known)}")


def _choice(raw: Raw, where: str, key: str, allowed: tuple[str | None, ...]) -> Any:
    value = raw.get(key)
    if value not in allowed:
        known = ", ".join(str(entry) for entry in allowed if entry is not None)
        raise UnsupportedError(f"{where}.{key}={value!r} is not supported; known: {known}")
    return value


def _names(raw: Raw, where: str, key: str) -> list[str]:
    value = raw.get(key) or []
    if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
        raise ConfigError(f"{where}.{key} is {value!r}; it must be a list of names")
    return value


def _pair(value: Any, where: str) -> tuple[int, int]:
    if (
        not isinstance(value, list | tuple)
        or len(value) != 2
        or any(type(side) is not int or side < 1 for side in value)
    ):
        raise ConfigError(f"{where} is {value!r}; it must be [rows, cols], whole numbers from 1")
    return (value[0], value[1])
