"""QuantScheme: which elements, scales and blocks a quantised tensor has, by name, and its exact bytes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from ..dtype import DTYPES, FP32, DType
from ..errors import ConfigError
from .elements import FLOAT_FORMATS, INTEGER_RANGES

Shape = tuple[int, ...]
Packing = Literal["plain", "nibbles", "words"]
ScaleRule = Literal["nearest", "floor", "ceil"]

WHOLE = 0  # a block side that spans the whole axis
SCALES = ("fp32", "fp16", "bf16", "fp8_e4m3", "e8m0")
_WORD_BITS = 32
_GLOBAL_SCALE_BYTES = 4


@dataclass(frozen=True)
class QuantScheme:
    """How a tensor [..., rows, cols] is quantised: blocks of its last two axes share one scale.

    `block` is (rows, cols) of a block, `WHOLE` for a side that spans its axis: (WHOLE, WHOLE) is per tensor, (1, WHOLE)
    is per channel of a weight [out, in] and per token of activations [tokens, features], (1, 32) is groups of 32.
    Leading axes (experts) never share a scale; the last block of an axis may be partial. A vector is one row.

    `amax_code` is the element value that the largest magnitude of a block is scaled to: the largest finite one unless
    said otherwise (7 or 127 for integers; compressed-tensors' own observers use 7.5 and 127.5). `scale_rule` says how a
    scale becomes its dtype: "nearest" for floats, "floor" (OCP Microscaling) or "ceil" (DeepGEMM) for e8m0.
    `has_global_scale`: one fp32 number for the tensor, by which every block scale is divided (nvfp4).
    `packing` "nibbles" puts two 4-bit codes in a byte, the first low; "words" puts them in int32 with an offset, as
    compressed-tensors does. Asymmetric schemes (integers only) have a zero point for each scale.
    """

    name: str
    element: DType
    scale: DType
    block: tuple[int, int]
    amax_code: float
    scale_rule: ScaleRule = "nearest"
    has_global_scale: bool = False
    symmetric: bool = True
    packing: Packing = "plain"

    def __post_init__(self) -> None:
        if self.element.name not in (*FLOAT_FORMATS, *INTEGER_RANGES):
            raise self._fault(f"element={self.element}", f"one of {', '.join((*FLOAT_FORMATS, *INTEGER_RANGES))}")
        if self.scale.name not in SCALES:
            raise self._fault(f"scale={self.scale}", f"one of {', '.join(SCALES)}")
        if len(self.block) != 2 or min(self.block) < 0:
            raise self._fault(f"block={self.block}", "(rows, cols), each 1 or more, or 0 for the whole axis")
        if not self.amax_code > 0:
            raise self._fault(f"amax_code={self.amax_code}", "above 0")
        if (self.scale.name == "e8m0") != (self.scale_rule in ("floor", "ceil")):
            raise self._fault(
                f"scale_rule={self.scale_rule!r}", "'floor' or 'ceil' for e8m0 scales, 'nearest' for others"
            )
        packings = ("nibbles" if self.element.bits == 4 else "plain", *(("words",) if self._is_integer else ()))
        if self.packing not in packings:
            raise self._fault(f"packing={self.packing!r}", f"one of {', '.join(packings)} for {self.element}")
        if not self.symmetric and not self._is_integer:
            raise self._fault("symmetric=False", "True: floats have no zero point")

    @property
    def _is_integer(self) -> bool:
        return self.element.name in INTEGER_RANGES

    @property
    def granularity(self) -> Literal["tensor", "row", "group", "block"]:
        """What shares a scale: the tensor, a row (a channel or a token), a group of a row, or a block of both axes."""
        rows, cols = self.block
        if self.block == (WHOLE, WHOLE):
            return "tensor"
        if rows != 1:
            return "block"
        return "row" if cols == WHOLE else "group"

    def block_of(self, shape: Shape) -> tuple[int, int]:
        """(rows, cols) of a whole block in a tensor of this shape."""
        rows, cols = matrix_of(shape)
        return (self.block[0] or max(rows, 1), self.block[1] or max(cols, 1))

    def scales_shape(self, shape: Shape) -> Shape:
        """[..., row blocks, column blocks]: the scales of a tensor of this shape, partial last blocks counted."""
        rows, cols = matrix_of(shape)
        block_rows, block_cols = self.block_of(shape)
        return (*shape[:-2], -(-rows // block_rows), -(-cols // block_cols))

    def codes_shape(self, shape: Shape) -> Shape:
        """The stored codes of a tensor of this shape: its own, with the last axis in bytes or words when packed."""
        matrix_of(shape)
        per_unit = {"plain": 1, "nibbles": 2, "words": _WORD_BITS // self.element.bits}[self.packing]
        return (*shape[:-1], -(-shape[-1] // per_unit))

    def codes_bytes(self, shape: Shape) -> int:
        """Bytes of the codes; a packed row fills whole bytes or words."""
        unit_bytes = {"plain": self.element.bits // 8, "nibbles": 1, "words": _WORD_BITS // 8}[self.packing]
        return math.prod(self.codes_shape(shape)) * unit_bytes

    def scales_bytes(self, shape: Shape) -> int:
        """Bytes of block scales, global scale and zero points (packed along the rows into words where codes are)."""
        scales = self.scales_shape(shape)
        total = math.prod(scales) * self.scale.itemsize_bytes + self.has_global_scale * _GLOBAL_SCALE_BYTES
        if self.symmetric:
            return total
        if self.packing == "words":
            words = -(-scales[-2] * self.element.bits // _WORD_BITS)
            return total + math.prod(scales[:-2]) * words * scales[-1] * _WORD_BITS // 8
        return total + math.prod(scales)

    def bytes_of(self, shape: Shape) -> int:
        """Bytes that a tensor of this shape takes in memory: codes, scales, zero points."""
        return self.codes_bytes(shape) + self.scales_bytes(shape)

    def _fault(self, found: str, wanted: str) -> ConfigError:
        return ConfigError(f"quantisation scheme {self.name}: {found}; it must be {wanted}")


def matrix_of(shape: Shape) -> tuple[int, int]:
    """(rows, cols) of the last two axes; a vector is one row. ConfigError for a scalar."""
    if not shape:
        raise ConfigError("a scalar cannot be quantised; give a vector, a matrix or a stack of matrices")
    return (shape[-2] if len(shape) > 1 else 1, shape[-1])


def _floats() -> list[QuantScheme]:
    schemes = []
    for short, largest in (("fp8_e4m3", 448.0), ("fp8_e5m2", 57344.0)):
        element = DTYPES[short]
        blocks = {"tensor": (WHOLE, WHOLE), "channel": (1, WHOLE), "token": (1, WHOLE)}
        blocks |= {"block128x128": (128, 128), "block1x128": (1, 128)}
        schemes += [QuantScheme(f"{short}_{name}", element, FP32, block, largest) for name, block in blocks.items()]
        for name in ("block128x128", "block1x128"):
            scheme = QuantScheme(f"{short}_{name}_ue8m0", element, DTYPES["e8m0"], blocks[name], largest, "ceil")
            schemes.append(scheme)
        schemes.append(QuantScheme(f"mx{short}", element, DTYPES["e8m0"], (1, 32), largest, "floor"))
    fp4 = DTYPES["mxfp4"]
    schemes.append(QuantScheme("mxfp4", fp4, DTYPES["e8m0"], (1, 32), 6.0, "floor", packing="nibbles"))
    nvfp4 = QuantScheme("nvfp4", fp4, DTYPES["fp8_e4m3"], (1, 16), 6.0, has_global_scale=True, packing="nibbles")
    return [*schemes, nvfp4]


def _integers() -> list[QuantScheme]:
    int8, int4, bf16 = DTYPES["int8"], DTYPES["int4"], DTYPES["bf16"]
    blocks = {"tensor": (WHOLE, WHOLE), "channel": (1, WHOLE), "token": (1, WHOLE), "g128": (1, 128)}
    schemes = [QuantScheme(f"int8_{name}", int8, FP32, block, 127.0) for name, block in blocks.items()]
    for group in (32, 128):
        block = (1, group)
        schemes += [
            QuantScheme(f"int4_g{group}", int4, bf16, block, 7.0, packing="nibbles"),
            QuantScheme(f"int4_g{group}_words", int4, bf16, block, 7.0, packing="words"),
            QuantScheme(f"int4_g{group}_asymmetric", int4, bf16, block, 7.0, symmetric=False, packing="words"),
        ]
    return schemes


SCHEMES: dict[str, QuantScheme] = {scheme.name: scheme for scheme in (*_floats(), *_integers())}
