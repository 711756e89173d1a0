"""The geometry of an instruction's work in words, its numbers that change from card to card or step to step apart."""

from __future__ import annotations

from typing import NamedTuple

from ..isa.work import (
    AttentionShape,
    CollectiveShape,
    FusedShape,
    GroupedShape,
    IndexShape,
    LatentShape,
    MatmulShape,
    MoveShape,
    TransferShape,
    VectorShape,
    Work,
)


class ShapeText(NamedTuple):
    """A pattern with a place for each number; what has the same pattern is the same instruction on other amounts."""

    pattern: str
    numbers: tuple[int, ...]


def shape_text(work: Work, mnemonic: str = "") -> ShapeText:
    """What an instruction works on; who shares a grouped product's matrices depends on which instruction it is."""
    shape = work.shape
    if isinstance(shape, FusedShape):
        return shape_text(max(shape.parts, key=lambda part: part.ops), mnemonic)
    dtype = f" {work.dtype}" if work.dtype else ""
    found = _grouped(shape, mnemonic) if isinstance(shape, GroupedShape) else _geometry(shape)
    return ShapeText(found.pattern + dtype, found.numbers)


def _grouped(shape: GroupedShape, mnemonic: str) -> ShapeText:
    """Experts where their products are asked for; elsewhere each head of a sequence has a matrix of its own."""
    used = sum(1 for rows in shape.rows if rows)
    groups = "experts" if "grouped" in mnemonic else "groups"
    text = f"[{{}} rows x {shape.k}] x {{}} of {len(shape.rows)} {groups} [{shape.k} x {shape.n}]"
    return ShapeText(text, (sum(shape.rows), used))


def _geometry(shape: object) -> ShapeText:
    if isinstance(shape, MatmulShape):
        times = f"{shape.batch} x " if shape.batch > 1 else ""
        return ShapeText(f"{times}[{{}} x {shape.k}] x [{shape.k} x {shape.n}]", (shape.m,))
    if isinstance(shape, AttentionShape):
        reach = f", window {shape.window}" if shape.window else f", chunks of {shape.chunk}" if shape.chunk else ""
        heads = f"{shape.num_heads} heads of {shape.qk_dim} on {shape.num_kv_heads}{reach}"
        return ShapeText(f"{{}} queries, {{}} cached, {heads}", (sum(shape.q_lens), sum(shape.kv_lens)))
    if isinstance(shape, LatentShape):
        heads = f"{shape.num_heads} heads on latents of {shape.latent_dim}+{shape.rope_dim}"
        heads += f", {shape.top_k} chosen" if shape.top_k else ""
        return ShapeText(f"{{}} queries, {{}} cached, {heads}", (sum(shape.q_lens), sum(shape.kv_lens)))
    if isinstance(shape, IndexShape):
        text = f"{{}} queries, {{}} cached, {shape.num_heads} heads of {shape.dim}, {shape.top_k} to choose"
        return ShapeText(text, (sum(shape.q_lens), sum(shape.kv_lens)))
    if isinstance(shape, VectorShape):
        return ShapeText(f"[{{}} x {shape.cols}]", (shape.rows,))
    if isinstance(shape, MoveShape):
        return ShapeText(f"{{}} x {shape.row_bytes} B", (shape.rows,))
    if isinstance(shape, TransferShape):
        return ShapeText(f"{{}} B over {shape.group}", (shape.num_bytes,))
    if isinstance(shape, CollectiveShape):
        return ShapeText(f"{{}} B over {shape.group}", (sum(shape.part_bytes),))
    return ShapeText("", ())


def ranged(pattern: str, least: tuple[int, ...], most: tuple[int, ...]) -> str:
    """A pattern with its numbers, as a range where they differ."""
    pairs = zip(least, most, strict=True)
    return pattern.format(*(f"{low:,}" if low == high else f"{low:,}-{high:,}" for low, high in pairs))
