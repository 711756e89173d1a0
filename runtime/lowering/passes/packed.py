"""Packed weights in products: decoded on their way into the array, or multiplied as codes by quantised activations.

Lowering decodes a packed weight into a local of its block and multiplies that. Where a product alone reads the local,
these passes give both instructions' place to one that reads codes and scales.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from ....isa.activations import GROUPED_QUANTISE, GROUPED_QUANTISE_STATIC, QUANTISE, QUANTISE_STATIC, Rule
from ....isa.dtype import DTYPES, FP32, DType
from ....isa.experts import GROUPED_MATMUL
from ....isa.formats.form import Form
from ....isa.instruction import Instruction, TensorType
from ....isa.operands import Ref
from ....isa.products import (
    CODES,
    PACKED_GROUPED_MATMUL,
    PACKED_MATMUL,
    QUANTISED_GROUPED_MATMUL,
    QUANTISED_MATMUL,
)
from ....isa.program import Block, Buffer, Call, Issue, Program, Space
from ....isa.quantised import DEQUANTISE
from ....isa.tensor import MATMUL
from ....isa.work import Unit
from .rewrite import BlockEditor, Rewritten, with_blocks
from .window import DEQUANTISE_MATMUL

INPUT_SCALE = "input_scale"
LARGEST = {"int8": 127.0, "fp8_e4m3": 448.0, "fp8_e5m2": 57344.0}
Product = MATMUL | GROUPED_MATMUL


@dataclass(frozen=True)
class Activations:
    """How the inputs of products with packed weights are quantised: as codes of `element`, by scales found for each
    token, or by one given for all (static).

    Blocks of a row are those of the weights' form; `rule` "ceil" makes their scales powers of two.
    """

    element: DType
    scales: Literal["dynamic", "static"] = "dynamic"
    rule: Rule = "nearest"


@dataclass(frozen=True)
class Pair:
    """A packed weight decoded at `first` of a block's body and multiplied at `second`, by nothing else."""

    first: int
    second: int
    decode: DEQUANTISE
    product: Product


def pairs(block: Block) -> list[Pair]:
    """Decoded weights that one product reads and nothing else does."""
    readers: Counter[str] = Counter()
    for issue in block.body:
        readers.update(ref.buffer for ref, _ in issue.instruction.refs())
    decoded = {
        issue.instruction.dst.buffer: (at, issue.instruction)
        for at, issue in enumerate(block.body)
        if isinstance(issue.instruction, DEQUANTISE) and readers[issue.instruction.dst.buffer] == 2
    }
    found = []
    for at, issue in enumerate(block.body):
        product = issue.instruction
        if isinstance(product, MATMUL | GROUPED_MATMUL) and product.w.buffer in decoded and product.w.size is None:
            first, decode = decoded[product.w.buffer]
            found.append(Pair(first, at, decode, product))
    return found


def fuse_decoding(
    program: Program, native: Collection[str], queue_of: Mapping[Unit, str]
) -> tuple[Program, tuple[Rewritten, ...]]:
    """Products that decode packed weights themselves, where the card has such."""
    done: list[Rewritten] = []
    blocks = []
    for block in program.blocks:
        editor, fused = BlockEditor(program, block, queue_of), dict[int, Instruction]()
        gone = set[int]()
        for pair in pairs(block):
            made = _decoding(pair)
            if made.mnemonic in native:
                fused[pair.second] = made
                gone.add(pair.first)
                done.append(Rewritten(f"fuse {DEQUANTISE_MATMUL}", block.name, (pair.decode, pair.product), (made,)))
        body = [
            editor.issue(fused[at]) if at in fused else issue for at, issue in enumerate(block.body) if at not in gone
        ]
        blocks.append(editor.done(body) if fused else block)
    return with_blocks(program, blocks), tuple(done)


def _decoding(pair: Pair) -> PACKED_MATMUL | PACKED_GROUPED_MATMUL:
    d, p = pair.decode, pair.product
    parts: dict[str, Any] = {"zeros": d.zeros, "divisors": d.divisors, "index": d.index, "phase": d.phase}
    if isinstance(p, MATMUL):
        return PACKED_MATMUL(p.dst, p.a, d.codes, d.scales, d.form, p.bias, **parts)
    return PACKED_GROUPED_MATMUL(p.dst, p.a, d.codes, d.scales, d.form, p.counts, p.extent, p.at, p.bias, **parts)


class _Quantising:
    """One block whose products come to multiply codes, and the parameters that it needs for that."""

    def __init__(self, program: Program, block: Block, how: Activations, queue_of: Mapping[Unit, str]) -> None:
        self.program, self.block, self.how = program, block, how
        self.editor = BlockEditor(program, block, queue_of)
        self.params: dict[str, str] = {}  # new parameter to the one that holds the weight's codes
        self.done: list[Rewritten] = []

    def rewrite(self) -> Block:
        """The block; a product whose weights are no codes of the element stays as it is."""
        new: dict[int, tuple[Instruction, ...]] = {}
        for pair in pairs(self.block):
            if self._fits(pair.decode):
                made = tuple(self._parts(pair))
                new |= {pair.first: (), pair.second: made}
                self.done.append(Rewritten("quantise inputs", self.block.name, (pair.decode, pair.product), made))
        body: list[Issue] = []
        for at, issue in enumerate(self.block.body):
            body += [self.editor.issue(part) for part in new[at]] if at in new else [issue]
        made_block = self.editor.done(body)
        params = [*self.block.params, *((name, TensorType(FP32, (1, 1))) for name in self.params)]
        return replace(made_block, params=tuple(params))

    def _fits(self, decode: DEQUANTISE) -> bool:
        form = decode.form
        plain = form.packing == "plain" and decode.zeros is None and decode.divisors is None
        blocks_fit = form.cols == 0 or self.how.scales == "dynamic"
        return plain and form.element is self.how.element and form.element.name in CODES and blocks_fit

    def _parts(self, pair: Pair) -> Iterator[Instruction]:
        d, p = pair.decode, pair.product
        kind, form = self.editor.type_of(p.a), Form(d.form.element, "plain", 1, d.form.cols)
        *rows, cols = kind.shape
        codes = self.editor.local("codes", form.element, *rows, cols)
        grouped = isinstance(p, GROUPED_MATMUL)
        experts = self.editor.type_of(d.codes).shape[0] if grouped else 0
        at: dict[str, Any] = {}
        if isinstance(p, GROUPED_MATMUL):
            at = {"counts": p.counts, "extent": p.extent, "at": p.at, "experts": experts}
        if self.how.scales == "static":
            scales = self._param(d)
            yield (GROUPED_QUANTISE_STATIC if grouped else QUANTISE_STATIC)(codes, p.a, scales, form, **at)
        else:
            assert isinstance(cols, int), "columns are numbers"
            scale = FP32 if self.how.rule == "nearest" else DTYPES["e8m0"]
            scales = self.editor.local("code_scales", scale, *rows, form.column_blocks(cols, d.phase))
            which = GROUPED_QUANTISE if grouped else QUANTISE
            amax = LARGEST[form.element.name]
            yield which(codes, scales, p.a, form, amax, self.how.rule, phase=d.phase, **at)
        last: dict[str, Any] = {"index": d.index, "phase": d.phase}
        if isinstance(p, MATMUL):
            yield QUANTISED_MATMUL(p.dst, codes, scales, d.codes, d.scales, d.form, p.bias, **last)
        else:
            yield QUANTISED_GROUPED_MATMUL(
                p.dst, codes, scales, d.codes, d.scales, d.form, p.counts, p.extent, p.at, p.bias, **last
            )

    def _param(self, decode: DEQUANTISE) -> Ref:
        name = f"{decode.codes.buffer.removesuffix('_codes')}_{INPUT_SCALE}"
        self.params[name] = decode.codes.buffer
        return Ref(name)


def quantise_inputs(
    program: Program, how: Activations, queue_of: Mapping[Unit, str]
) -> tuple[Program, tuple[Rewritten, ...]]:
    """Products of packed weights whose inputs become codes too; scales that are given lie in buffers of their own."""
    made = {block.name: _Quantising(program, block, how, queue_of) for block in program.blocks}
    blocks = [one.rewrite() for one in made.values()]
    buffers, calls = dict(program.buffer), []
    for call in program.calls:
        added = [scale_beside(call, program.block[call.block], codes) for codes in made[call.block].params.values()]
        buffers |= {name: Buffer(name, TensorType(FP32, (1, 1)), Space.SCALE) for name in added}
        calls.append(replace(call, arguments=(*call.arguments, *added)))
    done = tuple(entry for one in made.values() for entry in one.done)
    program = replace(program, buffers=tuple(buffers.values()), calls=tuple(calls))
    return with_blocks(program, blocks), done


def scale_beside(call: Call, block: Block, codes: str) -> str:
    """The buffer of the inputs' scale that stands beside the codes which a call binds to a parameter."""
    names = [name for name, _ in block.params]
    return call.arguments[names.index(codes)].removesuffix("codes") + INPUT_SCALE
