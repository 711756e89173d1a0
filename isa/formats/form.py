"""Form: how the codes of a packed tensor become numbers, as an instruction's operand says it in one word."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..dtype import DTYPES, FP32, DType
from ..errors import ProgramError
from .scheme import Packing, QuantScheme, Shape

ELEMENTS = ("int8", "int4", "fp8_e4m3", "fp8_e5m2", "mxfp4")
PRODUCTS = ("fp32", "fp16", "bf16")
_PACKINGS: tuple[Packing, ...] = ("plain", "nibbles", "words")
_TEXT = re.compile(r"(\w+)/(plain|nibbles|words)/(\d{1,18})x(\d{1,18})/(\w+)\Z", re.ASCII)


@dataclass(frozen=True)
class Form:
    """Elements, how they are packed, the (rows, columns) of a block that shares a scale (0: all), and in what the
    product of code and scale is rounded before anything else reads it. In words: `int4/nibbles/1x128/fp32`.

    Raises ProgramError for what no codec decodes.
    """

    element: DType
    packing: Packing
    rows: int
    cols: int
    product: DType = FP32

    def __post_init__(self) -> None:
        name, bits = self.element.name, self.element.bits
        own = "plain" if bits == 8 else "nibbles"
        packings = (own, "words") if name in ("int8", "int4") else (own,)
        if name not in ELEMENTS or self.packing not in packings:
            raise ProgramError(f"no form has {name} elements packed as {self.packing}; elements: {', '.join(ELEMENTS)}")
        if self.rows < 0 or self.cols < 0 or self.product.name not in PRODUCTS:
            raise ProgramError(f"{self}: blocks have 0 or more rows and columns, products are {', '.join(PRODUCTS)}")

    def __str__(self) -> str:
        return f"{self.element}/{self.packing}/{self.rows}x{self.cols}/{self.product}"

    @property
    def stored(self) -> DType:
        """The element type of the buffer that holds the codes."""
        return {"plain": self.element, "nibbles": DTYPES["uint8"], "words": DTYPES["int32"]}[self.packing]

    @property
    def per_unit(self) -> int:
        """Codes in one element of that buffer."""
        return {"plain": 1, "nibbles": 2, "words": 32 // self.element.bits}[self.packing]

    def codes_shape(self, shape: Shape) -> Shape:
        """The shape of the codes of a tensor of this shape."""
        return (*shape[:-1], -(-shape[-1] // self.per_unit))

    def column_blocks(self, cols: int, phase: int) -> int:
        """Blocks that a row of `cols` elements touches, the first of which has lost its first `phase` elements."""
        return 1 if not self.cols else -(-(phase + cols) // self.cols)

    def row_blocks(self, rows: int) -> int:
        """Blocks along `rows` rows."""
        return 1 if not self.rows else -(-rows // self.rows)


def form_of(scheme: QuantScheme, product: DType = FP32) -> Form:
    """The form of a scheme's codes."""
    return Form(scheme.element, scheme.packing, *scheme.block, product)


def parse_form(text: str) -> Form:
    """The form of a text; ProgramError where it is none."""
    match = _TEXT.match(text)
    if match is None or match[1] not in DTYPES or match[5] not in DTYPES:
        raise ProgramError(f"{text[:60]!r} is no form; write element/packing/ROWSxCOLUMNS/product")
    packing = next(packing for packing in _PACKINGS if packing == match[2])
    return Form(DTYPES[match[1]], packing, int(match[3]), int(match[4]), DTYPES[match[5]])
