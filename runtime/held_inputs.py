"""Which inputs of products become codes on the cards, and by which scales, for the reference to do alike."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..isa.activations import GROUPED_QUANTISE, GROUPED_QUANTISE_STATIC, QUANTISE, QUANTISE_STATIC, activation_scheme
from ..isa.dtype import FP32
from ..isa.formats.quantise import Scales, dequantise, quantise
from ..isa.formats.scheme import QuantScheme
from ..isa.instruction import Array
from ..isa.products import QUANTISED_GROUPED_MATMUL, QUANTISED_MATMUL
from ..isa.program import Block
from .lowering.passes.packed import scale_beside
from .lowering.weights import WeightBuffer
from .plan import JobPlan

Quantise = QUANTISE | GROUPED_QUANTISE | QUANTISE_STATIC | GROUPED_QUANTISE_STATIC
Product = QUANTISED_MATMUL | QUANTISED_GROUPED_MATMUL


@dataclass(frozen=True)
class InputCodes:
    """Columns [start, stop) of an input (stop 0: all) as codes: of a scale found by token and block, or of one given.

    The first block of a row is without its first `phase` columns.
    """

    start: int
    stop: int
    scheme: QuantScheme
    phase: int = 0
    scale: float | None = None

    def meant(self, x: Array) -> Array:
        """The values of the codes of rows [tokens, columns] of these columns."""
        if self.scale is not None:
            given = Scales(np.array([[self.scale]], np.float32))
            return dequantise(quantise(x, self.scheme, scales=given))
        filled = np.concatenate([np.zeros((len(x), self.phase), np.float32), x], axis=-1)
        values: Array = dequantise(quantise(filled, self.scheme))[:, self.phase :]
        return values


def input_codes(plan: JobPlan, scales: Mapping[str, float]) -> dict[str, tuple[InputCodes, ...]]:
    """By checkpoint tensor, how the inputs of products with it become codes; `scales` are those of a calibration."""
    found: dict[str, dict[tuple[int, int], InputCodes]] = defaultdict(dict)
    if plan.activations is None:
        return {}
    for rank in dict.fromkeys(plan.twins):
        built = plan.built(rank, plan.variants[0])
        weights = {weight.name: weight for weight in plan.weights(rank)}
        for call in built.program.calls:
            block = built.program.block[call.block]
            for product, maker in _quantised(block):
                name = call.arguments[[param for param, _ in block.params].index(product.codes.buffer)]
                scale = None
                if isinstance(maker, QUANTISE_STATIC | GROUPED_QUANTISE_STATIC):
                    scale = scales[scale_beside(call, block, product.codes.buffer)]
                for codes, tensor in _codes(weights[name.removesuffix(".codes")], maker, scale):
                    found[tensor][codes.start, codes.stop] = codes
    return {tensor: tuple(codes for _, codes in sorted(cuts.items())) for tensor, cuts in found.items()}


def _quantised(block: Block) -> Iterator[tuple[Product, Quantise]]:
    """Products of codes by codes, each with what made the codes of its input."""
    makers: dict[str, Quantise] = {}
    for issue in block.body:
        instruction = issue.instruction
        if isinstance(instruction, Quantise):
            makers[instruction.dst.buffer] = instruction
        elif isinstance(instruction, Product):
            yield instruction, makers[instruction.a.buffer]


def _codes(weight: WeightBuffer, maker: Quantise, scale: float | None) -> Iterator[tuple[InputCodes, str]]:
    """How the input of a product with a weight becomes codes, for each tensor that the weight is made of."""
    if isinstance(maker, QUANTISE | GROUPED_QUANTISE):
        scheme, phase = activation_scheme(maker.form, maker.amax, maker.rule), maker.phase
    else:
        scheme, phase = QuantScheme("given", maker.form.element, FP32, (0, 0), 1.0), 0
    for piece in weight.pieces:
        start, stop = (piece.start, piece.stop) if piece.axis == 1 else (0, 0)
        yield InputCodes(start, stop, scheme, phase, scale), piece.tensor


def rounded(x: Array, codes: Sequence[InputCodes]) -> Array:
    """Inputs [tokens, columns] in float32 as what their codes mean, each cut of the columns by itself."""
    found = x.copy()
    for cut in codes:
        columns = slice(cut.start, cut.stop or x.shape[-1])
        found[:, columns] = cut.meant(np.ascontiguousarray(x[:, columns]))
    return found
