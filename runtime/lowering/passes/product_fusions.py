"""The fusions of products: with the norm before them, and with the gate after them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ....isa.experts import GROUPED_GATED, GROUPED_MATMUL
from ....isa.fused import FUSED_GROUPED_MATMUL, FUSED_MATMUL
from ....isa.fused_packed import FUSED_PACKED_GROUPED_MATMUL, FUSED_PACKED_MATMUL
from ....isa.products import PACKED_GROUPED_MATMUL, PACKED_MATMUL
from ....isa.tensor import MATMUL
from ....isa.vector import ADD_RMSNORM, GATED, RMSNORM
from .window import Found, Window, fusion

Fusable = MATMUL | FUSED_MATMUL | PACKED_MATMUL | FUSED_PACKED_MATMUL
FUSABLE = (MATMUL, FUSED_MATMUL, PACKED_MATMUL, FUSED_PACKED_MATMUL)
BARE = {"total": None, "delta": None, "norm": None, "eps": 0.0, "plus_one": False, "activation": "none"}


def _as_fused(product: Fusable) -> FUSED_MATMUL | FUSED_PACKED_MATMUL:
    """A matrix product in the form that takes a norm before it and a gate after it."""
    own: dict[str, Any] = {name: getattr(product, name) for name in product.operands}
    if isinstance(product, MATMUL):
        return FUSED_MATMUL(**own | BARE)
    if isinstance(product, PACKED_MATMUL):
        return FUSED_PACKED_MATMUL(**own | BARE)
    return product


def _has_form(window: Window, product: Fusable) -> bool:
    """Whether the card has the fused form of a product."""
    packed = isinstance(product, PACKED_MATMUL | FUSED_PACKED_MATMUL)
    return (FUSED_PACKED_MATMUL if packed else FUSED_MATMUL).mnemonic in window.native


@fusion("norm-matmul", FUSED_MATMUL, FUSED_PACKED_MATMUL)
def norm_matmul(window: Window) -> Iterator[Found]:
    """A norm of whole rows whose only reader is a matrix product, which then norms its rows itself."""
    for index in window.at((RMSNORM, ADD_RMSNORM)):
        norm = window.body[index]
        assert isinstance(norm, RMSNORM | ADD_RMSNORM)
        readers = window.only_readers(index, norm.dst)
        if readers is None or len(readers) != 1:
            continue
        place, product = readers[0], window.body[readers[0]]
        if not isinstance(product, Fusable) or product.a != norm.dst or _norms(product):
            continue
        if not _has_form(window, product):
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


def _norms(product: Fusable) -> bool:
    return isinstance(product, FUSED_MATMUL | FUSED_PACKED_MATMUL) and product.norm is not None


@fusion("swiglu", FUSED_MATMUL, FUSED_PACKED_MATMUL, FUSED_GROUPED_MATMUL, FUSED_PACKED_GROUPED_MATMUL)
def swiglu(window: Window) -> Iterator[Found]:
    """The product of gate and up halves with the gate, of whatever activation: dense ones, and those of experts."""
    yield from _swiglu(window)
    yield from _swiglu_of_experts(window)


def _swiglu(window: Window) -> Iterator[Found]:
    """A matrix product of both halves whose only reader is the gate."""
    for index in window.at(FUSABLE):
        product = window.body[index]
        assert isinstance(product, Fusable)
        made = _as_fused(product)
        if made.activation != "none" or not _has_form(window, product):
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
        if made.total is not None and not window.untouched((made.total,), index, place, reads=True):
            continue
        fused = replace(made, dst=gated.dst, activation=gated.activation)
        yield window.replace((index, place), fused), fused


def _swiglu_of_experts(window: Window) -> Iterator[Found]:
    """The grouped product of experts' gate and up halves whose only reader is the gate over the same rows."""
    for index in window.at((GROUPED_MATMUL, PACKED_GROUPED_MATMUL)):
        product = window.body[index]
        assert isinstance(product, GROUPED_MATMUL | PACKED_GROUPED_MATMUL)
        form = FUSED_GROUPED_MATMUL if isinstance(product, GROUPED_MATMUL) else FUSED_PACKED_GROUPED_MATMUL
        readers = window.only_readers(index, product.dst)
        if form.mnemonic not in window.native or readers is None or len(readers) != 1:
            continue
        place, gated = readers[0], window.body[readers[0]]
        if not isinstance(gated, GROUPED_GATED) or gated.x != product.dst:
            continue
        matrices = product.w if isinstance(product, GROUPED_MATMUL) else product.codes
        rows = (product.counts, product.extent, product.at, window.editor.type_of(matrices).shape[0])
        wide, half = window.editor.type_of(product.dst), window.editor.type_of(gated.dst)
        used = [ref for ref, _ in product.refs() if ref != product.dst]
        if rows != (gated.counts, gated.extent, gated.at, gated.experts) or wide.dtype != half.dtype:
            continue
        if gated.dst.overlaps(product.a) or not window.untouched(used, index, place):
            continue
        own: dict[str, Any] = {name: getattr(product, name) for name in product.operands}
        fused = form(**own | {"dst": gated.dst, "activation": gated.activation})
        yield window.replace((index, place), fused), fused
