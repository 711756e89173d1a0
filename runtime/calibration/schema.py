"""The tables that can be read: their files, their columns with units and defaults, and what a row measures."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, NamedTuple

from ...isa.dtype import ALIASES, DTYPES, DType

Kind = Literal["count", "text"]
PS_PER_MS = 10**9
PS_PER_US = 10**6


class Column(NamedTuple):
    """A column of a table: whole numbers of at least `least`, or text; without a `default` it must be there."""

    name: str
    about: str
    kind: Kind = "count"
    default: int | str | None = None
    least: int = 1
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class TableKind:
    """One kind of table: files whose stem matches `stem` hold it, and the group `library` names the kernels timed.

    `op` is what its rows measure, or stands in the column `op_column`, spelled as `ops` says. The time of a row is in
    the column `time`, in units of `unit_ps` picoseconds.
    """

    stem: str
    op: str
    about: str
    columns: tuple[Column, ...]
    time: str = "latency_ms"
    unit_ps: int = PS_PER_MS
    op_column: str | None = None

    def library_of(self, stem: str) -> str | None:
        """The library that a file of this stem times, "" where it names none; None for another kind's file."""
        found = re.fullmatch(self.stem, stem)
        if found is None:
            return None
        return found.groupdict().get("library") or ""


def _text(name: str, about: str, default: str | None = None, choices: tuple[str, ...] = ()) -> Column:
    return Column(name, about, "text", default, choices=choices)


PRECISIONS = ("bf16", "fp16", "fp8", "int8", "fp32")
_SOURCE = _text("kernel_source", "which kernel of the library ran", "")
_HEADS = (
    Column("num_heads", "query heads"),
    Column("num_key_value_heads", "key and value heads"),
    Column("head_dim", "elements of a head's key, and of its value", default=128),
    Column("window_size", "tokens a query sees back; 0: all", default=0, least=0),
    _text("attn_dtype", "type of queries and products", "bf16", PRECISIONS),
    _text("kv_cache_dtype", "type of the cache", "bf16", (*PRECISIONS, "nvfp4")),
)
_MLA = (
    _text("kv_cache_dtype", "type of the cache", "bf16", (*PRECISIONS, "nvfp4")),
    Column("num_heads", "query heads on this card"),
    Column("batch_size", "sequences"),
)
_TP = Column("tp_size", "cards that the heads of the model were dealt over", default=1)
ROWWISE = ("rmsnorm", "gated", "add", "softmax")
COLLECTIVES = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "all_to_all": "all_to_all",
}
# of the products
TYPE_COLUMNS = {"gemm": "gemm_dtype", "prefill": "attn_dtype", "decode": "attn_dtype", "moe": "moe_dtype"}
KINDS = (
    TableKind(
        "gemm",
        "gemm",
        "one matrix product [m, k] x [n, k]^T",
        (
            _SOURCE,
            _text("gemm_dtype", "type of the operands; fp8 quantises its input first", "bf16",
                  (*PRECISIONS, "fp8_block", "fp8_static", "nvfp4", "mxfp4", "int8_wo", "int4_wo", "sq")),
            Column("m", "rows of the input: tokens"),
            Column("n", "columns of the output"),
            Column("k", "columns of the input"),
        ),
    ),
    TableKind(
        "context_attention_(?P<library>[a-z0-9]+)",
        "prefill",
        "attention of whole prompts",
        (_SOURCE, Column("batch_size", "prompts"), Column("isl", "tokens of each prompt"), *_HEADS),
    ),
    TableKind(
        "generation_attention_(?P<library>[a-z0-9]+)",
        "decode",
        "attention of one new token a sequence over its cache",
        (_SOURCE, Column("batch_size", "sequences"), *_HEADS, Column("step", "tokens cached before this one", least=0)),
    ),
    TableKind(
        "context_mla",
        "mla_prefill",
        "latent attention of whole prompts, as DeepSeek-V3 has it",
        (*_MLA, Column("isl", "tokens of each prompt"), _TP),
    ),
    TableKind(
        "generation_mla",
        "mla_decode",
        "latent attention of one new token a sequence over its cache, as DeepSeek-V3 has it",
        (*_MLA, _TP, Column("step", "tokens cached before this one", least=0)),
    ),
    TableKind(
        "nccl",
        "collective",
        "one collective of all cards of a node",
        (
            _text("op_name", "the collective", choices=tuple(COLLECTIVES)),
            _text("nccl_dtype", "type of the elements", "fp16", PRECISIONS),
            Column("num_gpus", "cards", least=2),
            Column("message_size", "elements (not bytes) of the whole buffer"),
        ),
        op_column="op_name",
    ),
    TableKind(
        "layers",
        "rowwise",
        "one row-wise operator of a layer",
        (
            _text("op_name", "the operator; gated is silu(x) * y of rows twice as wide", choices=ROWWISE),
            _text("dtype", "type of the elements", "bf16", ("bf16", "fp16", "fp32")),
            Column("num_tokens", "rows"),
            Column("width", "elements of a row of the result"),
        ),
    ),
    TableKind(
        "moe",
        "moe",
        "the experts of one layer, from routed tokens to their sum",
        (
            _SOURCE,
            _text("moe_dtype", "type of weights and activations", "bf16"),
            Column("num_tokens", "tokens"),
            Column("hidden_size", "columns of a token"),
            Column("inter_size", "inner columns of an expert"),
            Column("topk", "experts of a token"),
            Column("num_experts", "experts of the layer"),
            Column("moe_tp_size", "cards that share an expert", default=1),
            Column("moe_ep_size", "cards that the experts were dealt over", default=1),
            _text("distribution", "how tokens were routed", "balanced"),
        ),
    ),
)  # fmt: skip


def table_kind(stem: str) -> tuple[TableKind, str] | None:
    """The kind of table that a file of this stem holds, and the library it times; None for an unknown stem."""
    for kind in KINDS:
        library = kind.library_of(stem)
        if library is not None:
            return kind, library
    return None


def canonical(column: Column, text: str) -> str:
    """Text of a column as siltwin spells it: element types by their usual aliases (bfloat16 is bf16)."""
    name = text.strip()
    if name in column.choices or not column.name.endswith("dtype"):
        return name
    name = name.lower()
    return name if name in column.choices else ALIASES.get(name, name)


def operand_type(name: str) -> DType | None:
    """The element type that products of this spelling take (blocks of a scale aside); None where there is none."""
    name = name.removesuffix("_block")
    return DTYPES.get(ALIASES.get(name, name))
