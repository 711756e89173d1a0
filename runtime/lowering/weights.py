"""Which slices of which checkpoint tensors make up each weight buffer of a rank: the load recipe, and its bytes."""

from __future__ import annotations

from dataclasses import dataclass

from ...isa.dtype import DType
from ...isa.instruction import TensorType, split_even
from ...models.blocks import Attention, DecoderLayer, GatedMlp, Graph, Norm, Projection
from ..layout import Layout, kv_heads_of


@dataclass(frozen=True)
class Piece:
    """Rows or columns [start, stop) of one checkpoint tensor; `axis` None takes the whole tensor."""

    tensor: str
    axis: int | None = None
    start: int = 0
    stop: int = 0


@dataclass(frozen=True)
class WeightBuffer:
    """A device buffer, made of pieces laid one after the other along its first dimension."""

    name: str
    type: TensorType
    pieces: tuple[Piece, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes on the device."""
        count = 1
        for dim in self.type.shape:
            assert isinstance(dim, int), "weight shapes are numbers"
            count *= dim
        return self.type.dtype.bytes_of(count)


class WeightPlan:
    """The weight buffers of one rank, collected while its blocks are lowered."""

    def __init__(self, layout: Layout, rank: int, dtype: DType) -> None:
        self.tp, self.index, self.dtype = layout.tp, layout.tp_index_of(rank), dtype
        self.buffers: dict[str, WeightBuffer] = {}

    def _add(self, name: str, shape: tuple[int, ...], pieces: list[Piece]) -> WeightBuffer:
        buffer = WeightBuffer(name, TensorType(self.dtype, shape), tuple(pieces))
        return self.buffers.setdefault(name, buffer)

    def whole(self, name: str, tensor: str, *shape: int) -> WeightBuffer:
        """A tensor that every tensor-parallel rank holds in full."""
        return self._add(name, shape, [Piece(tensor)])

    def norm(self, name: str, norm: Norm) -> WeightBuffer:
        """A norm's weight."""
        return self.whole(name, norm.weight, norm.size)

    def vocabulary(self, name: str, tensor: str, vocab_size: int, hidden_size: int) -> tuple[WeightBuffer, int]:
        """This rank's rows of an embedding or an output head, and the first id among them."""
        first, rows = split_even(vocab_size, self.tp)[self.index]
        return self._add(name, (rows, hidden_size), [Piece(tensor, 0, first, first + rows)]), first

    def _share(self, size: int) -> tuple[int, int]:
        share = size // self.tp
        return self.index * share, (self.index + 1) * share

    def qkv_rows(self, attention: Attention) -> list[tuple[int, int]]:
        """[start, stop) rows of the q, k and v projections that this rank computes."""
        dim = attention.head_dim
        first, count = kv_heads_of(attention.num_kv_heads, self.tp, self.index)
        kv_rows = (first * dim, (first + count) * dim)
        return [self._share(attention.num_heads * dim), kv_rows, kv_rows]

    def fused(
        self, name: str, projection: Projection, rows: list[tuple[int, int]]
    ) -> tuple[WeightBuffer, WeightBuffer | None]:
        """Column-parallel matrices with one input, fused along their outputs, and their biases."""
        total = sum(stop - start for start, stop in rows)
        weight, bias = (
            [Piece(tensor, 0, *span) for tensor, span in zip(tensors, rows, strict=False)]
            for tensors in (projection.weights, projection.biases)
        )
        return (
            self._add(name, (total, projection.in_features), weight),
            self._add(f"{name}.bias", (total,), bias) if bias else None,
        )

    def gate_up(self, name: str, mlp: GatedMlp) -> tuple[WeightBuffer, WeightBuffer | None]:
        """This rank's gate rows, then its up rows."""
        return self.fused(name, mlp.gate_up, [self._share(mlp.intermediate_size)] * 2)

    def row_parallel(self, name: str, projection: Projection) -> tuple[WeightBuffer, WeightBuffer | None]:
        """A matrix cut along its inputs; its bias stands on the first rank alone, since the partial sums are added."""
        start, stop = self._share(projection.in_features)
        weight = self._add(
            name, (projection.out_features[0], stop - start), [Piece(projection.weights[0], 1, start, stop)]
        )
        if not projection.biases or self.index:
            return weight, None
        return weight, self.whole(f"{name}.bias", projection.biases[0], projection.out_features[0])


def layer_name(layer: DecoderLayer) -> str:
    """The prefix of a layer's buffers."""
    return f"layers.{layer.index}"


def head_name(graph: Graph, layout: Layout) -> str:
    """The buffer that the output head reads: the embedding itself when tied and both stand on one stage."""
    return "embedding" if graph.tied and layout.pp == 1 else "lm_head"
