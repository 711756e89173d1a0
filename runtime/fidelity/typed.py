"""Figures that READMEs state for kernels of H800 cards: each beside what the instruction takes alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from ...emulator.spec import CardSpec, load_card, override
from ...emulator.units.demand import demand
from ...isa.dtype import BF16, FP32, INT32, DType, parse_dtype
from ...isa.errors import ConfigError
from ...isa.formats.form import Form
from ...isa.instruction import Dim, Instruction, TensorType
from ...isa.operands import Ref
from ...isa.products import QUANTISED_GROUPED_MATMUL, QUANTISED_MATMUL
from ...isa.program import Binding, Block, BoundShapes, Issue
from .records import records

PS_PER_US = 10**6
BLOCK = 128  # elements of an input, and sides of a weight, that share a scale
COLUMNS = ("kind", "groups", "m_per_group", "n", "k", "time_us_derived")
KINDS = ("dense", "grouped_contiguous", "grouped_masked")
H800 = {"link.ports": "8", "node.ports_to_peer": "8"}  # of the H100's eighteen; nothing else is known to differ
NO_LAUNCH = {"dispatch.tensor_ps": "0"}  # the times of kernels that are stated are a profiler's, from start to end


@dataclass(frozen=True)
class Beside:
    """A stated figure and the emulated one, in the figure's unit; `error` is by what fraction the emulated is above."""

    name: str
    unit: str
    stated: float
    emulated: float

    @property
    def error(self) -> float:
        """(emulated - stated) / stated."""
        return self.emulated / self.stated - 1


def h800() -> CardSpec:
    """The H100 with its NVLink cut to 400 GB/s, both directions together."""
    return override(load_card("h100-sxm"), H800)


def h800_kernels() -> CardSpec:
    """The same without launches, for times of kernels alone."""
    return override(load_card("h100-sxm"), H800 | NO_LAUNCH)


@dataclass(frozen=True)
class Product:
    """A product of fp8 codes with scales of 128 inputs and of 128 x 128 weights, for `groups` of as many rows."""

    kind: str
    groups: int
    m: int
    n: int
    k: int
    time_us: float

    @property
    def name(self) -> str:
        """Kind and sizes."""
        return f"{self.kind} {self.groups} x [{self.m:,} x {self.n:,} x {self.k:,}]"


def stated_products(path: Path) -> tuple[Product, ...]:
    """The rows of a CSV file with the columns of COLUMNS; ConfigError names the line and what is wrong in it."""
    return tuple(_product(record, where) for record, where in records(path, COLUMNS, "a table of fp8 products"))


def _product(record: Mapping[str, str], where: str) -> Product:
    if record["kind"] not in KINDS:
        raise ConfigError(f"{where}: kind={record['kind']!r} is none of {', '.join(KINDS)}")
    try:
        groups, m, n, k = (int(record[name]) for name in COLUMNS[1:5])
        time_us = float(record["time_us_derived"])
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from error
    if min(groups, m, n, k) < 1 or not (math.isfinite(time_us) and time_us > 0):
        raise ConfigError(f"{where}: sizes must be at least 1, and the time a number of microseconds above 0")
    return Product(record["kind"], groups, m, n, k, time_us)


def products_beside(products: Iterable[Product], card: CardSpec) -> Iterator[Beside]:
    """Microseconds of each product alone on the card."""
    for own in products:
        block, extents = _product_block(own)
        yield Beside(own.name, "us", own.time_us, _alone_ps(block, extents, card) / PS_PER_US)


def _product_block(own: Product) -> tuple[Block, dict[str, tuple[int, ...]]]:
    if own.kind == "dense":
        return _dense(own.n, own.k), {"m": (own.m,)}
    return _grouped(own.groups, own.n, own.k), {"m": (own.groups * own.m,), "counts": (own.m,) * own.groups}


@lru_cache(maxsize=256)
def _dense(n: int, k: int) -> Block:
    product = QUANTISED_MATMUL(Ref("dst"), Ref("a"), Ref("a_scales"), Ref("w"), Ref("w_scales"), _form())
    return _block(product, n, k, ())


@lru_cache(maxsize=256)
def _grouped(groups: int, n: int, k: int) -> Block:
    weights = Ref("w"), Ref("w_scales"), _form()
    product = QUANTISED_GROUPED_MATMUL(Ref("dst"), Ref("a"), Ref("a_scales"), *weights, Ref("rows"), "counts", 0)
    return _block(product, n, k, (groups,))


def _form() -> Form:
    """fp8 with a scale for every 128 x 128 weights."""
    return Form(parse_dtype("fp8"), "plain", BLOCK, BLOCK, FP32)


def _block(instruction: Instruction, n: int, k: int, experts: tuple[int, ...]) -> Block:
    fp8, sides = parse_dtype("fp8"), (-(-n // BLOCK), -(-k // BLOCK))
    types: dict[str, tuple[DType, tuple[Dim, ...]]] = {
        "dst": (BF16, ("m", n)),
        "a": (fp8, ("m", k)),
        "a_scales": (FP32, ("m", sides[1])),
        "w": (fp8, (*experts, n, k)),
        "w_scales": (FP32, (*experts, *sides)),
        "rows": (INT32, experts),
    }
    used = {ref.buffer for ref, _ in instruction.refs()}
    params = tuple((name, TensorType(dtype, shape)) for name, (dtype, shape) in types.items() if name in used)
    return Block("alone", params, (), (Issue("alone", instruction),))


def _alone_ps(block: Block, extents: dict[str, tuple[int, ...]], card: CardSpec) -> int:
    shapes = BoundShapes(block, {}, Binding(extents, {}))
    asked = [demand(issue.instruction.work(shapes), card) for issue in block.body]
    return sum(each.fixed_ps + each.alone_ps for each in asked)
