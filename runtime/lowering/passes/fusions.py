"""The fusions: which instructions each joins, where it may, and what comes of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace

from ....isa.dma import SCATTER
from ....isa.experts import GROUPED_GATED, GROUPED_MATMUL
from ....isa.fused import FUSED_GROUPED_MATMUL, FUSED_MATMUL, ROPE_ATTENTION
from ....isa.operands import Ref
from ....isa.tensor import ATTENTION, MATMUL
from ....isa.vector import ADD_RMSNORM, GATED, RMSNORM, ROPE
from .window import FUSIONS, Found, Window, fusion

__all__ = ["FUSIONS"]


def _as_fused(product: MATMUL | FUSED_MATMUL) -> FUSED_MATMUL:
    """A matrix product in the form that takes a norm before it and a gate after it."""
    if isinstance(product, FUSED_MATMUL):
        return product
    return FUSED_MATMUL(
        dst=product.dst,
        total=None,
        a=product.a,
        delta=None,
        norm=None,
        w=product.w,
        bias=product.bias,
        eps=0.0,
        plus_one=False,
        activation="none",
    )


@fusion("norm-matmul", FUSED_MATMUL)
def norm_matmul(window: Window) -> Iterator[Found]:
    """A norm of whole rows whose only reader is a matrix product, which then norms its rows itself."""
    for index in window.at((RMSNORM, ADD_RMSNORM)):
        norm = window.body[index]
        assert isinstance(norm, RMSNORM | ADD_RMSNORM)
        readers = window.only_readers(index, norm.dst)
        if readers is None or len(readers) != 1:
            continue
        place, product = readers[0], window.body[readers[0]]
        if not isinstance(product, MATMUL | FUSED_MATMUL) or product.a != norm.dst or _norms(product):
            continue
        dst, x = window.editor.type_of(norm.dst), window.editor.type_of(norm.x)
        if dst != x or window.editor.type_of(norm.weight).shape != x.shape[-1:]:
            continue
        delta = norm.delta if isinstance(norm, ADD_RMSNORM) else None
        still = window.untouched((norm.x, delta, norm.weight), index, place)
        if not still or (delta is not None and not window.untouched((norm.x,), index, place, reads=True)):
            continue
        fused = replace(
            _as_fused(product),
            total=norm.x if delta is not None else None,
            a=norm.x,
            delta=delta,
            norm=norm.weight,
            eps=norm.eps,
            plus_one=norm.plus_one,
        )
        yield window.replace((index, place), fused), fused


def _norms(product: MATMUL | FUSED_MATMUL) -> bool:
    return isinstance(product, FUSED_MATMUL) and product.norm is not None


@fusion("swiglu", FUSED_MATMUL, FUSED_GROUPED_MATMUL)
def swiglu(window: Window) -> Iterator[Found]:
    """The product of gate and up halves with the gate, of whatever activation: dense ones, and those of experts."""
    if FUSED_MATMUL.mnemonic in window.native:
        yield from _swiglu(window)
    if FUSED_GROUPED_MATMUL.mnemonic in window.native:
        yield from _swiglu_of_experts(window)


def _swiglu(window: Window) -> Iterator[Found]:
    """A matrix product of both halves whose only reader is the gate."""
    for index in window.at((MATMUL, FUSED_MATMUL)):
        product = window.body[index]
        assert isinstance(product, MATMUL | FUSED_MATMUL)
        if isinstance(product, FUSED_MATMUL) and product.activation != "none":
            continue
        readers = window.only_readers(index, product.dst)
        if readers is None or len(readers) != 1:
            continue
        place, gated = readers[0], window.body[readers[0]]
        if not isinstance(gated, GATED) or gated.x != product.dst:
            continue
        wide, half = window.editor.type_of(product.dst), window.editor.type_of(gated.dst)
        used = [ref for ref, _ in product.refs() if ref != product.dst]
        if wide.dtype != half.dtype or gated.dst.overlaps(product.a) or not window.untouched(used, index, place):
            continue
        made = _as_fused(product)
        if made.total is not None and not window.untouched((made.total,), index, place, reads=True):
            continue
        fused = replace(made, dst=gated.dst, activation=gated.activation)
        yield window.replace((index, place), fused), fused


def _swiglu_of_experts(window: Window) -> Iterator[Found]:
    """The grouped product of experts' gate and up halves whose only reader is the gate over the same rows."""
    for index in window.at(GROUPED_MATMUL):
        product = window.body[index]
        assert isinstance(product, GROUPED_MATMUL)
        readers = window.only_readers(index, product.dst)
        if readers is None or len(readers) != 1:
            continue
        place, gated = readers[0], window.body[readers[0]]
        if not isinstance(gated, GROUPED_GATED) or gated.x != product.dst:
            continue
        rows = (product.counts, product.extent, product.at, window.editor.type_of(product.w).shape[0])
        wide, half = window.editor.type_of(product.dst), window.editor.type_of(gated.dst)
        used = [ref for ref, _ in product.refs() if ref != product.dst]
        if rows != (gated.counts, gated.extent, gated.at, gated.experts) or wide.dtype != half.dtype:
            continue
        if gated.dst.overlaps(product.a) or not window.untouched(used, index, place):
            continue
        own = {name: getattr(product, name) for name in product.operands if name != "dst"}
        fused = FUSED_GROUPED_MATMUL(dst=gated.dst, activation=gated.activation, **own)
        yield window.replace((index, place), fused), fused


@fusion("rope-attention", ROPE_ATTENTION)
def rope_attention(window: Window) -> Iterator[Found]:
    """A rotation of queries and keys, the scatter of keys and values, and the attention that follows."""
    for index in window.at(ROPE):
        rope = window.body[index]
        assert isinstance(rope, ROPE)
        readers = window.only_readers(index, rope.x)
        if readers is None or len(readers) != 2:
            continue
        scatter, attention = (window.body[place] for place in readers)
        if not isinstance(scatter, SCATTER) or not isinstance(attention, ATTENTION):
            continue
        qkv = _fused_rows(rope, scatter, attention)
        if qkv is None or window.only_readers(index, qkv) != readers:
            continue
        tables = (rope.cos, rope.sin, rope.positions, scatter.index)
        inputs = [ref for ref, _ in attention.refs() if ref not in (attention.dst, attention.cache, attention.q)]
        still = window.untouched((qkv, *tables, *inputs), index, readers[1], reads=False)
        if not still or not _alone(window, (index, readers[0], readers[1]), scatter.dst):
            continue
        fused = _rope_attention(rope, scatter, attention, qkv)
        yield window.replace((index, *readers), fused), fused


def _alone(window: Window, places: tuple[int, int, int], cache: Ref) -> bool:
    """Whether nothing between the scatter and the attention uses the cache."""
    return window.untouched((cache,), places[0], places[1], reads=True) and window.untouched(
        (cache,), places[1], places[2], reads=True
    )


def _fused_rows(rope: ROPE, scatter: SCATTER, attention: ATTENTION) -> Ref | None:
    """Columns of queries, keys and values that stand side by side; None where they do not."""
    i, start = attention, attention.q.start
    queries, keys = i.heads * i.qk_dim, i.kv_heads * i.qk_dim
    cached = i.kv_heads * (i.qk_dim + i.v_dim)
    wanted = (
        Ref(i.q.buffer, start, queries),
        Ref(i.q.buffer, start, queries + keys),
        Ref(i.q.buffer, start + queries, cached),
    )
    matches = (i.q, rope.x, scatter.src) == wanted and scatter.dst == i.cache and rope.head_dim == i.qk_dim
    return Ref(i.q.buffer, start, queries + cached) if matches and not _unknown(i) else None


def _unknown(attention: ATTENTION) -> list[str]:
    """Options of an attention that its fused form has no operand for."""
    defaults = {field.name: field.default for field in fields(attention)}
    own = {"q", *ROPE_ATTENTION.operands}
    return [name for name in attention.operands if name not in own and getattr(attention, name) != defaults[name]]


def _rope_attention(rope: ROPE, scatter: SCATTER, attention: ATTENTION, qkv: Ref) -> ROPE_ATTENTION:
    both = ROPE_ATTENTION.operands.keys() & attention.operands.keys() - {"cache"}
    own = {name: getattr(attention, name) for name in both}
    return ROPE_ATTENTION(
        cache=scatter.dst,
        qkv=qkv,
        cos=rope.cos,
        sin=rope.sin,
        positions=rope.positions,
        slots=scatter.index,
        rotary_dim=rope.rotary_dim,
        interleaved=rope.interleaved,
        **own,
    )
