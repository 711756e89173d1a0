"""QuantPlan: which modules of a checkpoint are quantised, how, and under which names their tensors are stored."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from ...isa.dtype import DType
from ...isa.formats.quantise import Packed
from ...isa.formats.scheme import QuantScheme
from .compressed_tensors import mxfp4_pack, nvfp4_pack, plain_pack, words_pack
from .fp8 import fp8_pack
from .gpt_oss import gpt_oss_pack
from .stored import Stored


@dataclass(frozen=True)
class PackFormat:
    """One way to store a weight: its reader, and the suffixes of its tensors by the local names the reader takes.

    `zero_point` is read only where the scheme is asymmetric.
    """

    name: str
    read: Callable[[Mapping[str, Stored], QuantScheme], Packed]
    suffixes: Mapping[str, str]
    zero_point: str | None = None


def _dotted(*names: str) -> dict[str, str]:
    return {name: f".{name}" for name in names}


# Patterns that may tell one expert's number from another of the same length: by digits, ranges or named groups.
_LOOKS_AT_DIGITS = re.compile(r"[0-9]|\[[^\]]*[^a-zA-Z]-|\(\?P=|\\N")

_WORDS = _dotted("weight_packed", "weight_scale", "weight_shape")
_PLAIN = _dotted("weight", "weight_scale")
_NIBBLES = _dotted("weight_packed", "weight_scale")
_ZERO = "weight_zero_point"

FORMATS: dict[str, PackFormat] = {
    entry.name: entry
    for entry in (
        PackFormat("fp8", fp8_pack, _dotted("weight", "weight_scale_inv")),
        PackFormat("mxfp4", gpt_oss_pack, {"blocks": "_blocks", "scales": "_scales"}),
        PackFormat("pack-quantized", words_pack, _WORDS, _ZERO),
        PackFormat("int-quantized", plain_pack, _PLAIN, _ZERO),
        PackFormat("float-quantized", plain_pack, _PLAIN),
        PackFormat("naive-quantized", plain_pack, _PLAIN, _ZERO),
        PackFormat("mxfp4-pack-quantized", mxfp4_pack, _NIBBLES),
        PackFormat("mxfp8-quantized", plain_pack, _PLAIN),
        PackFormat("nvfp4-pack-quantized", nvfp4_pack, {**_NIBBLES, **_dotted("weight_global_scale")}),
    )
}


@dataclass(frozen=True)
class PackGroup:
    """The modules that one entry of a quantization_config targets, and how their weights and inputs are quantised.

    `activations` None leaves the inputs as they are; `dynamic` False means that the checkpoint holds their scales.
    """

    format: PackFormat
    targets: tuple[str, ...]
    weights: QuantScheme
    activations: QuantScheme | None = None
    dynamic: bool = True

    def stored_names(self, module: str) -> dict[str, str]:
        """Names in the checkpoint of a module's tensors, by the local name that the format's reader takes."""
        suffixes = dict(self.format.suffixes)
        if self.format.zero_point is not None and not self.weights.symmetric:
            suffixes[self.format.zero_point] = f".{self.format.zero_point}"
        return {name: module + suffix for name, suffix in suffixes.items()}

    def stored_scheme(self, scale: DType) -> QuantScheme:
        """The scheme of a weight whose scales are stored in this dtype: e8m0 may stand as plain bytes."""
        scheme = self.weights
        if scheme.scale.name == "e8m0" and scale.name == "uint8":
            return scheme
        rule = scheme.scale_rule if (scale.name == "e8m0") == (scheme.scale.name == "e8m0") else "nearest"
        return replace(scheme, scale=scale, scale_rule="ceil" if scale.name == "e8m0" and rule == "nearest" else rule)

    def read(self, tensors: Mapping[str, Stored]) -> Packed:
        """The quantised weight of a module's tensors, given by local name; ConfigError when they do not fit."""
        return self.format.read(tensors, self.weights)


@dataclass(frozen=True)
class QuantPlan:
    """What a checkpoint's quantization_config asks for.

    `ignore` and the groups' targets are module names, patterns after "re:", or kinds of module ("Linear").
    """

    method: str
    groups: tuple[PackGroup, ...]
    ignore: tuple[str, ...] = ()
    kv_cache: QuantScheme | None = None

    def group_of(self, module: str, kind: str = "Linear") -> PackGroup | None:
        """How this module's weight is stored; None when it is not quantised.

        `module` is the checkpoint's name without ".weight"; `kind` is "Linear" for every matrix that multiplies
        activations, an expert's included, save a router, and another word ("Embedding", "Router") for what is not.
        A name, then a pattern, outranks a kind.
        """
        names, patterns = self._ignored
        if module in names or kind in names or any(pattern.match(module) for pattern in patterns):
            return None
        ranked = [
            (rank, group)
            for group in self.groups
            for target in group.targets
            for rank in (_rank(target),)
            if _matches(target, module, kind)
        ]
        return min(ranked, key=lambda pair: pair[0])[1] if ranked else None

    def telling(self, pattern: str, count: int) -> Iterable[int]:
        """Which of `count` experts' numbers in the name of a weight tell whether the plan holds all of them alike.

        Those that some entry names and one of each length, unless a pattern of the plan looks at digits.
        """
        entries = {*self.ignore, *(target for group in self.groups for target in group.targets)}
        if any(_LOOKS_AT_DIGITS.search(entry) for entry in entries if entry.startswith("re:")):
            return range(count)
        before, _, after = pattern.removesuffix(".weight").partition("{}")
        lengths = {10**length for length in range(1, len(str(count))) if 10**length < count}
        named = (entry[len(before) : len(entry) - len(after)] for entry in entries if _fits(entry, before, after))
        return sorted({*range(min(count, 1)), *lengths, *(int(n) for n in named if n.isdecimal() and int(n) < count)})

    @cached_property
    def _ignored(self) -> tuple[frozenset[str], tuple[re.Pattern[str], ...]]:
        """Names and kinds, and patterns, of `ignore`: a model may have a quarter of a million modules to hold to it."""
        patterns = [entry for entry in self.ignore if entry.startswith("re:")]
        names = frozenset(self.ignore) - set(patterns)
        return names, tuple(re.compile(entry.removeprefix("re:")) for entry in patterns)


def _fits(entry: str, before: str, after: str) -> bool:
    return entry.startswith(before) and entry.endswith(after)


def _rank(target: str) -> int:
    """Names before patterns before kinds, which have no dot."""
    return 1 if target.startswith("re:") else 0 if "." in target else 2


def _matches(entry: str, module: str, kind: str) -> bool:
    if entry.startswith("re:"):
        return re.match(entry.removeprefix("re:"), module) is not None
    return entry in (module, kind)
