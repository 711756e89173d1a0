"""The fusions of products: with the norm before them, and with the gate after them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ....isa.experts import GROUPED_GATED, GROUPED_MATMUL
from ....isa.fused import FUSED_GROUPED_MATMUL, FUSED_MATMUL
from ....isa.tensor import MATMUL
from ....isa.vector import ADD_RMSNORM, GATED, RMSNORM
from .window import Found, Window, fusion


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
