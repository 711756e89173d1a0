"""PackedStore: a checkpoint whose packed weights appear dequantised under the graph's names, a slice at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ...isa.dtype import BF16, FP32, DType, decode, encode
from ...isa.errors import ConfigError, UnsupportedError
from ...isa.formats.quantise import Packed, dequantise
from ...isa.formats.scheme import QuantScheme
from ...isa.formats.window import Window, covering
from ..of_tensors import OfTensors
from ..store import Array, PackedTensor, Shape, TensorStore
from .plan import PackGroup, QuantPlan
from .stored import Stored

_CODES = ("weight", "weight_packed", "blocks")
_SCALES = ("weight_scale", "weight_scale_inv", "scales")
_INPUT_SCALES = ("input_scale", "activation_scale")
_ZERO, _SHAPE = "weight_zero_point", "weight_shape"
_WORD_BITS = 32
_GPT_OSS_BYTES = 16  # a group of `_blocks`: 32 elements


class RawStore(TensorStore, Protocol):
    """A store that also reads what is no weight: codes, scales and integers, as their bytes stand in the file."""

    def stored_dtype(self, name: str) -> DType:
        """The element type of any tensor."""
        ...

    def read_stored(self, name: str, axis: int | None = None, part: slice = slice(None)) -> Array:
        """A tensor, or a part of one of its axes, in storage form."""
        ...


@dataclass(frozen=True)
class WeightUse:
    """What the graph makes of a tensor: its shape, the kind of module that holds it, whether an expert does."""

    shape: Shape
    kind: str
    is_expert: bool = False


@dataclass(frozen=True)
class PackedWeight:
    """A weight as stored: the tensors by local name, and its own shape, which is the graph's or its transpose."""

    group: PackGroup
    tensors: Mapping[str, str]
    shape: Shape
    transposed: bool
    dtype: DType


class PackedStore:
    """A store in which `packed` weights read as floats; the tensors they are stored in do not appear."""

    def __init__(self, store: RawStore, packed: Mapping[str, PackedWeight]) -> None:
        self._store, self._packed = store, packed
        self._hidden = {stored for weight in packed.values() for stored in weight.tensors.values()}

    def schemes(self) -> Counter[str]:
        """How many weights are packed in each scheme."""
        return Counter(weight.group.weights.name for weight in self._packed.values())

    def names(self) -> Iterable[str]:
        """Every tensor that is a weight as it stands, and every packed weight."""
        return [*(name for name in self._store.names() if name not in self._hidden), *self._packed]

    def shape(self, name: str) -> Shape:
        """The shape of the weight, whatever it is packed in."""
        weight = self._packed.get(name)
        if weight is None:
            return self._store.shape(name)
        return (*weight.shape[:-2], weight.shape[-1], weight.shape[-2]) if weight.transposed else weight.shape

    def dtype(self, name: str) -> DType:
        """fp32 for a packed weight, or the 16-bit float that its format's own library multiplies in."""
        return self._packed[name].dtype if name in self._packed else self._store.dtype(name)

    def where(self, name: str) -> str:
        """The file that holds the tensor, or the codes of a packed weight."""
        weight = self._packed.get(name)
        return self._store.where(name if weight is None else weight.tensors[_codes_of(weight)])

    def read(self, name: str, axis: int, start: int, stop: int) -> Array:
        """The slice in storage form; of a packed weight, the blocks and bytes that cover it are decoded."""
        weight = self._packed.get(name)
        if weight is None:
            return self._store.read(name, axis, start, stop)
        if start == stop:
            shape = self.shape(name)
            return np.zeros((*shape[:axis], 0, *shape[axis + 1 :]), weight.dtype.storage)
        own = axis if not weight.transposed or axis == 0 else 3 - axis
        packed, window = self.read_packed(name, own, start, stop)
        values = dequantise(packed)
        values = values[(slice(None),) * own + (slice(start - window.start, stop - window.start),)]
        values = values.swapaxes(-1, -2) if weight.transposed else values
        return np.ascontiguousarray(values) if weight.dtype is FP32 else encode(values, weight.dtype)

    def packed(self) -> OfTensors[PackedTensor]:
        """How every packed weight is stored, by name."""
        present, known = set(self._store.names()), dict[tuple[int, DType], QuantScheme]()

        def scheme_of(weight: PackedWeight) -> QuantScheme:
            scale = self._store.stored_dtype(weight.tensors[_scales_of(weight)])
            key = id(weight.group), scale
            if key not in known:
                known[key] = weight.group.stored_scheme(scale)
            return known[key]

        def tensor_of(name: str, weight: PackedWeight) -> PackedTensor:
            input_scale = self._input_scale(name.removesuffix(".weight"), weight, present)
            return PackedTensor(scheme_of(weight), weight.dtype, input_scale)

        return OfTensors({name: tensor_of(name, weight) for name, weight in self._packed.items()})

    def _input_scale(self, module: str, weight: PackedWeight, present: set[str]) -> float | None:
        """The scale of a module's inputs that the file gives; None where they are scaled as they come, or not at all.

        ConfigError for one that is not a positive, finite number.
        """
        if weight.group.activations is None or weight.group.dynamic:
            return None
        stored = next((f"{module}.{name}" for name in _INPUT_SCALES if f"{module}.{name}" in present), None)
        if stored is None:
            return None
        values = decode(np.ascontiguousarray(self._store.read_stored(stored)), self._store.stored_dtype(stored))
        if values.size != 1 or not 0 < float(values.reshape(-1)[0]) < float("inf"):
            raise ConfigError(f"{self._store.where(stored)}: {stored} must be one number above 0")
        return float(values.reshape(-1)[0])

    def read_packed(self, name: str, axis: int, start: int, stop: int) -> tuple[Packed, Window]:
        """The fewest whole blocks of a packed weight that cover [start, stop) along an axis of its own, [..., out, in],
        and the window that they are."""
        weight = self._packed[name]
        window = covering(weight.group.weights, weight.shape, axis, start, stop)
        try:
            return weight.group.read(dict(self._parts(weight, axis, window))), window
        except ConfigError as error:
            raise ConfigError(f"{self.where(name)}: {name}: {error}") from None

    def _parts(self, weight: PackedWeight, axis: int, window: Window) -> Iterator[tuple[str, Stored]]:
        """The stored tensors by local name, each cut to the window."""
        for local, name in weight.tensors.items():
            dtype = self._store.stored_dtype(name)
            if local in _CODES:
                array = self._store.read_stored(name, axis, _codes_part(local, axis, window))
            elif local in _SCALES or (local == _ZERO and dtype.name == "int8"):
                array = self._scales(weight, name, axis, window.scales)
            elif local == _ZERO:
                per_word = _WORD_BITS // weight.group.weights.element.bits if axis == 0 else 1
                part = slice(window.scales.start // per_word, -(-window.scales.stop // per_word))
                array = self._store.read_stored(name, axis, part)
            elif local == _SHAPE:
                sides = (window.stop - window.start if at == axis else side for at, side in enumerate(weight.shape))
                array = np.array(list(sides), dtype.storage)
            else:
                array = self._store.read_stored(name)
            yield local, (array, dtype)

    def _scales(self, weight: PackedWeight, name: str, axis: int, part: slice) -> Array:
        """A part of the scales; those stored with fewer axes than the weight has are read whole."""
        expected = weight.group.weights.scales_shape(weight.shape)
        if self._store.shape(name) == expected:
            return self._store.read_stored(name, axis, part)
        return self._store.read_stored(name).reshape(expected)[(slice(None),) * axis + (part,)]


def with_packs(store: RawStore, plan: QuantPlan, uses: Mapping[str, WeightUse]) -> PackedStore:
    """The store, the weights that `plan` quantises and the file holds packed dequantised under the names of `uses`.

    A weight whose packed tensors are not all there is left as the file has it: the file decides. Raises ConfigError
    for packed tensors whose shapes are not those of the weight, UnsupportedError for columns in another order.
    """
    present, packed = set(store.names()), dict[str, PackedWeight]()
    for name, use in uses.items():
        module = name.removesuffix(".weight")
        group = plan.group_of(module, use.kind)
        tensors = group.stored_names(module) if group is not None else {}
        if group is None or not present.issuperset(tensors.values()):
            continue
        if f"{module}.weight_g_idx" in present:
            where = store.where(f"{module}.weight_g_idx")
            raise UnsupportedError(f"{where}: {module}.weight_g_idx: columns regrouped by activation order")
        transposed = is_turned(group)
        shape = (*use.shape[:-2], use.shape[-1], use.shape[-2]) if transposed else use.shape
        scale = next(store.stored_dtype(stored) for local, stored in tensors.items() if local in _SCALES)
        weight = PackedWeight(group, tensors, shape, transposed, decoded_dtype(group, scale, use))
        _check_shapes(store, name, weight)
        packed[name] = weight
    return PackedStore(store, packed)


def pack_warnings(store: PackedStore, plan: QuantPlan, uses: Mapping[str, WeightUse]) -> list[str]:
    """What a report must say: which weights are dequantised, and what the config quantises that is not."""
    schemes = store.schemes()
    found = ", ".join(f"{count} in {name}" for name, count in schemes.items()) or "none is packed"
    warnings = [f"the checkpoint is quantised ({plan.method}; of {len(uses)} matrices {found})"]
    inputs = sorted({group.activations.name for group in plan.groups if group.activations is not None})
    if inputs:
        warnings.append(
            f"the config quantises activations ({', '.join(inputs)}): --activations says whether a run does"
        )
    if plan.kv_cache is not None:
        warnings.append(f"the config quantises the KV cache ({plan.kv_cache.name}); it stays in --kv-dtype")
    return warnings


def is_turned(group: PackGroup) -> bool:
    """Whether the file holds [out, in] of what the model's own parameter is [in, out]."""
    return group.format.name == "mxfp4"


def decoded_dtype(group: PackGroup, scale: DType, use: WeightUse) -> DType:
    """In what a weight's product with its scale is rounded before the run's dtype, as transformers loads it.

    compressed-tensors multiplies in the dtype of a float scale, and in bf16 under scales of 8 bits; DeepSeek's fp8,
    gpt-oss's mxfp4 and the fp8 of experts are multiplied in fp32.
    """
    if group.format.name in ("fp8", "mxfp4") or scale is FP32:
        return FP32
    if scale.bits == 8:
        return BF16
    return FP32 if use.is_expert and group.weights.element.name.startswith("fp8") else scale


def _codes_of(weight: PackedWeight) -> str:
    return next(local for local in weight.tensors if local in _CODES)


def _scales_of(weight: PackedWeight) -> str:
    return next(local for local in weight.tensors if local in _SCALES)


def _codes_part(local: str, axis: int, window: Window) -> slice:
    """The part of a codes tensor; gpt-oss's has groups of 16 bytes for its last axis but one."""
    if local != "blocks" or axis != 2:
        return window.codes
    return slice(window.codes.start // _GPT_OSS_BYTES, window.codes.stop // _GPT_OSS_BYTES)


def _check_shapes(store: RawStore, name: str, weight: PackedWeight) -> None:
    """ConfigError unless codes and scales have the shapes that the weight's own asks for."""
    scheme, shape = weight.group.weights, weight.shape
    for local, stored in weight.tensors.items():
        found = store.shape(stored)
        if local in _CODES:
            wanted = scheme.codes_shape(shape)
            if local == "blocks" and found[3:] == (_GPT_OSS_BYTES,):
                found = (*found[:2], found[2] * _GPT_OSS_BYTES)
            fits = found == wanted
        elif local in _SCALES:
            wanted = scheme.scales_shape(shape)
            fits = [side for side in found if side != 1] == [side for side in wanted if side != 1]
            fits = fits and len(found) <= len(wanted)
        elif local == _SHAPE:
            found, wanted = tuple(map(int, store.read_stored(stored).reshape(-1))), shape
            fits = found == wanted
        else:
            continue
        if not fits:
            raise ConfigError(
                f"{store.where(stored)}: {stored} has shape {list(found)}; {name} {list(shape)} as {scheme.name} "
                f"asks for {list(wanted)}"
            )
