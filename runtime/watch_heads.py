"""Heads by column: whose numbers stand where in the buffers of an attention block."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..isa.operands import Ref
from ..isa.recurrent import GATED_DELTA
from ..models.blocks import Attention, DeltaNet, LatentAttention
from .layout import Layout, kv_heads_of
from .lowering.passes.overlap import SECOND

if TYPE_CHECKING:  # kernels, which a run without numbers does without
    from ..emulator.payload import Site

Run = tuple[str, int, int, int]  # what the heads are, the first one's number, how many, columns of each


def head_of(
    attention: Attention | LatentAttention | DeltaNet, layout: Layout, site: Site, ref: Ref, column: int
) -> str | None:
    """The head that a column of a buffer belongs to; None where it is no head's, or of a block not known here."""
    index = layout.tp_index_of(site.image.rank)
    heads = attention.num_heads // layout.tp
    first, name = index * heads, ref.buffer.removesuffix(SECOND)
    if isinstance(attention, Attention):
        kv = kv_heads_of(attention.num_kv_heads, layout.tp, index)
        runs = _grouped(attention, first, heads, kv).get(name, ())
    elif isinstance(attention, LatentAttention):
        runs = _latent(attention, first, heads).get(name, ())
    elif isinstance(site.instruction, GATED_DELTA) and isinstance(attention, DeltaNet):
        is_state = ref == site.instruction.state
        width = attention.value_dim * (attention.key_dim if is_state else 1)
        runs, column = (("head", first, heads, width),), column - ref.start
    else:
        runs = ()
    return _found(runs, column)


def _grouped(attention: Attention, first: int, heads: int, kv: tuple[int, int]) -> dict[str, tuple[Run, ...]]:
    dim = attention.head_dim
    keys, values = ("key head", *kv, dim), ("value head", *kv, dim)
    queries = ("query head", first, heads, dim)
    return {
        "qkv": (queries, keys, values, ("gate head", first, heads, dim)),
        "cache": (keys, values),
        "attended": (("head", first, heads, dim),),
    }


def _latent(attention: LatentAttention, first: int, heads: int) -> dict[str, tuple[Run, ...]]:
    parts = tuple(("query head", first, heads, dim) for dim in (attention.nope_dim, attention.rope_dim))
    return {"q": parts, "attended": (("head", first, heads, attention.v_dim),)}


def _found(runs: tuple[Run, ...], column: int) -> str | None:
    for what, first, count, width in runs:
        if column < count * width:
            return f"{what} {first + column // width}"
        column -= count * width
    return None
