"""From a row of a measured table to the Work of the instructions that do the same: what lowering would emit for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache

from ...isa.activations import QUANTISE
from ...isa.dma import SCATTER
from ...isa.dtype import BF16, DTYPES, FP32, INT32, parse_dtype
from ...isa.errors import UnsupportedError
from ...isa.formats.form import Form
from ...isa.latent import LATENT_ATTENTION
from ...isa.operands import Ref
from ...isa.program import Binding, Block, BoundShapes
from ...isa.tensor import ATTENTION, MATMUL
from ...isa.work import Work
from .blocks import Extents, Row, Types, block_of
from .expert_works import moe_block
from .rowwise_works import rowwise_block
from .tables import MeasuredTable

PAGE_TOKENS = 16
PAGES, TABLE_PAGES = 1 << 20, 1 << 16  # shapes only: no byte of them is allocated, and no Work counts them
NOPE_DIM, ROPE_DIM, LATENT_V_DIM, LATENT_DIM = 128, 64, 128, 512  # DeepSeek-V3's, which every table of MLA times
COLUMN_BLOCKS = {"fp8": 0, "fp8_block": 128}  # columns of a row that share a scale; 0: all


def works_of(table: MeasuredTable) -> Iterator[tuple[Work, ...]]:
    """The Work of each row's instructions, one after the other on one card.

    UnsupportedError for an operation, or a type of operands, that no instruction stands for here.
    """
    if table.op not in _ROWS:
        raise UnsupportedError(f"{table.path}: no single card's instructions stand for {table.op}")
    build = _ROWS[table.op]
    names = list(table.columns)
    for values in zip(*(table.columns[name].tolist() for name in names), strict=True):
        yield _works(*build(dict(zip(names, values, strict=True))))


def gemm_works(kind: str, m: int, n: int, k: int) -> tuple[Work, ...]:
    """The Work of one product of [m, k] and [n, k], as `works_of` has it."""
    return _works(*gemm_block({"gemm_dtype": kind, "m": m, "n": n, "k": k}))


def _works(block: Block, extents: Extents) -> tuple[Work, ...]:
    shapes = BoundShapes(block, {}, Binding(extents, {}))
    return tuple(issue.instruction.work(shapes) for issue in block.body)


def can_stand_for(op: str) -> bool:
    """Whether one card's instructions stand for a measured operation."""
    return op in _ROWS


def gemm_block(row: Row) -> tuple[Block, Extents]:
    """A matrix product with m bound as an extent; fp8 input is quantised first, as libraries do in that row."""
    kind = str(row["gemm_dtype"])
    return _gemm(kind, int(row["n"]), int(row["k"])), {"m": (int(row["m"]),)}


@lru_cache(maxsize=4096)
def _gemm(kind: str, n: int, k: int) -> Block:
    product = MATMUL(Ref("dst"), Ref("a"), Ref("w"), None)
    if kind in DTYPES:
        dtype = parse_dtype(kind)
        out = dtype if dtype.is_float else BF16
        return block_of("gemm", (product,), {"dst": (out, ("m", n)), "a": (dtype, ("m", k)), "w": (dtype, (n, k))})
    if kind not in COLUMN_BLOCKS:
        raise UnsupportedError(f"no instruction stands here for a product of {kind}")
    dtype, cols = parse_dtype("fp8"), COLUMN_BLOCKS[kind]
    form = Form(dtype, "plain", 1, cols, FP32)
    quantise = QUANTISE(Ref("a"), Ref("scales"), Ref("x"), form, 448.0, "nearest")
    return block_of("gemm", (quantise, product), {
        "x": (BF16, ("m", k)), "scales": (FP32, ("m", form.column_blocks(k, 0))),
        "dst": (BF16, ("m", n)), "a": (dtype, ("m", k)), "w": (dtype, (n, k)),
    })  # fmt: skip


def prefill_block(row: Row) -> tuple[Block, Extents]:
    """Attention of whole prompts."""
    batch, length = int(row["batch_size"]), int(row["isl"])
    return _attention_of(row), _lengths(batch, length, length)


def decode_block(row: Row) -> tuple[Block, Extents]:
    """Attention of one new token a sequence."""
    return _attention_of(row), _lengths(int(row["batch_size"]), 1, int(row["step"]) + 1)


def _lengths(batch: int, queries: int, length: int) -> Extents:
    return {"q": (queries,) * batch, "kv": (length,) * batch, "tokens": (batch * queries,), "batch": (batch,)}


def _attention_of(row: Row) -> Block:
    heads, kv_heads, dim = int(row["num_heads"]), int(row["num_key_value_heads"]), int(row["head_dim"])
    return _attention(heads, kv_heads, dim, int(row["window_size"]), str(row["attn_dtype"]), str(row["kv_cache_dtype"]))


_CONTEXT = (Ref("tables"), Ref("q_lens"), Ref("kv_lens"), "q", "kv")
_TABLES: Types = {
    "tables": (INT32, ("batch", TABLE_PAGES)), "q_lens": (INT32, ("batch",)), "kv_lens": (INT32, ("batch",)),
}  # fmt: skip


@lru_cache(maxsize=4096)
def _attention(heads: int, kv_heads: int, dim: int, window: int, attn_dtype: str, kv_dtype: str) -> Block:
    """New keys and values put into the cache, which libraries do in what is measured, and attention to it."""
    put = SCATTER(dst=Ref("cache"), src=Ref("new"), index=Ref("slots"))
    attention = ATTENTION(
        Ref("dst"), Ref("query"), Ref("cache"), *_CONTEXT, heads, kv_heads, dim, dim, dim**-0.5, window
    )
    dtype, row = parse_dtype(attn_dtype), kv_heads * 2 * dim
    return block_of("attention", (put, attention), {
        "dst": (BF16, ("tokens", heads * dim)), "query": (dtype, ("tokens", heads * dim)),
        "new": (BF16, ("tokens", row)), "slots": (INT32, ("tokens",)),
        "cache": (parse_dtype(kv_dtype), (PAGES, PAGE_TOKENS, row)), **_TABLES,
    })  # fmt: skip


def mla_prefill_block(row: Row) -> tuple[Block, Extents]:
    """Latent attention of whole prompts, whose keys and values were expanded before what is measured."""
    batch, length = int(row["batch_size"]), int(row["isl"])
    return _expanded(int(row["num_heads"]), str(row["kv_cache_dtype"])), _lengths(batch, length, length)


@lru_cache(maxsize=256)
def _expanded(heads: int, kv_dtype: str) -> Block:
    """New latents put into the cache, and attention to the keys and values that were made of them."""
    put = SCATTER(dst=Ref("latents"), src=Ref("new"), index=Ref("slots"))
    key, made = NOPE_DIM + ROPE_DIM, heads * (NOPE_DIM + ROPE_DIM + LATENT_V_DIM)
    attention = ATTENTION(
        Ref("dst"), Ref("query"), Ref("cache"), *_CONTEXT, heads, heads, key, LATENT_V_DIM, key**-0.5, 0
    )
    return block_of("expanded", (put, attention), {
        "dst": (BF16, ("tokens", heads * LATENT_V_DIM)), "query": (BF16, ("tokens", heads * key)),
        "new": (BF16, ("tokens", LATENT_DIM + ROPE_DIM)), "slots": (INT32, ("tokens",)),
        "latents": (parse_dtype(kv_dtype), (PAGES, PAGE_TOKENS, LATENT_DIM + ROPE_DIM)),
        "cache": (BF16, (PAGES, PAGE_TOKENS, made)), **_TABLES,
    })  # fmt: skip


def mla_decode_block(row: Row) -> tuple[Block, Extents]:
    """Latent attention of one new token a sequence."""
    lengths = _lengths(int(row["batch_size"]), 1, int(row["step"]) + 1)
    return _latent(int(row["num_heads"]), str(row["kv_cache_dtype"])), lengths


@lru_cache(maxsize=256)
def _latent(heads: int, kv_dtype: str) -> Block:
    attention = LATENT_ATTENTION(
        Ref("dst"), Ref("q_nope"), Ref("q_rope"), Ref("cache"), Ref("w"), *_CONTEXT,
        heads, NOPE_DIM, ROPE_DIM, LATENT_V_DIM, (NOPE_DIM + ROPE_DIM) ** -0.5,
    )  # fmt: skip
    return block_of("latent", (attention,), {
        "dst": (BF16, ("tokens", heads * LATENT_V_DIM)), "q_nope": (BF16, ("tokens", heads * NOPE_DIM)),
        "q_rope": (BF16, ("tokens", heads * ROPE_DIM)), "w": (BF16, (heads * (NOPE_DIM + LATENT_V_DIM), LATENT_DIM)),
        "cache": (parse_dtype(kv_dtype), (PAGES, PAGE_TOKENS, LATENT_DIM + ROPE_DIM)), **_TABLES,
    })  # fmt: skip


_ROWS: dict[str, Callable[[Row], tuple[Block, Extents]]] = {
    "gemm": gemm_block,
    "prefill": prefill_block,
    "decode": decode_block,
    "mla_prefill": mla_prefill_block,
    "mla_decode": mla_decode_block,
    "moe": moe_block,
    "rowwise": rowwise_block,
}
