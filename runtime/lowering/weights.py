"""Which slices of which checkpoint tensors make up each weight buffer of a rank: the load recipe, and its bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from ...isa.dtype import DType
from ...isa.instruction import TensorType, elements, split_even
from ...isa.program import Space
from ...models.blocks import (
    Attention,
    DecoderLayer,
    Experts,
    GatedMlp,
    Graph,
    HeadRows,
    LatentAttention,
    Norm,
    Projection,
    Router,
)
from ..layout import Layout, kv_heads_of
from .held import Bucket, Holding, PackedBuffer, Piece, packed_buffer, pieces_of_one, space_of


@dataclass(frozen=True)
class WeightBuffer:
    """A device buffer, made of pieces laid one after the other along their first dimension.

    `packed` says how the device holds codes and scales instead, in buffers of their own; `type` is what they decode to.
    `bucket` says how tensor and expert parallelism share the weight out.
    """

    name: str
    type: TensorType
    pieces: tuple[Piece, ...]
    packed: PackedBuffer | None = None
    bucket: Bucket = "sharded"

    @property
    def pieces_of_one(self) -> tuple[Piece, ...]:
        """The pieces of the first of its matrices, as which the others are made."""
        return pieces_of_one(self.shape, self.pieces)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape, of which every side is a number."""
        sides = tuple(dim for dim in self.type.shape if isinstance(dim, int))
        assert len(sides) == len(self.type.shape), "weight shapes are numbers"
        return sides

    def bytes_by_kind(self) -> dict[str, int]:
        """Bytes on the device by element type, of a packed weight those of its codes and of its `scale`s."""
        if self.packed is None:
            return {self.type.dtype.name: self.type.dtype.bytes_of(elements(self.shape))}
        held: dict[str, int] = {}
        for part, kind in self.packed.types.items():
            name = self.packed.form.element.name if part == "codes" else space_of(part).value
            sides = tuple(int(side) for side in kind.shape)
            held[name] = held.get(name, 0) + kind.dtype.bytes_of(elements(sides))
        return {name: size for name, size in held.items() if name != Space.TABLE.value}

    @property
    def num_bytes(self) -> int:
        """Bytes on the device."""
        return sum(self.bytes_by_kind().values())


class WeightPlan:
    """The weight buffers of one rank, collected while its blocks are lowered."""

    def __init__(
        self,
        layout: Layout,
        rank: int,
        dtype: DType,
        holding: Holding | None = None,
        placements: Mapping[str, Sequence[int]] = MappingProxyType({}),
    ) -> None:
        self.layout, self.dtype, self.holding = layout, dtype, holding or Holding()
        self.placements = placements
        self.rank, self.tp, self.index = rank, layout.tp, layout.tp_index_of(rank)
        self.buffers: dict[str, WeightBuffer] = {}

    def _add(
        self,
        name: str,
        shape: tuple[int, ...],
        pieces: list[Piece],
        packs: bool = False,
        bucket: Bucket = "sharded",
    ) -> WeightBuffer:
        """A buffer; `packs` says that it is a matrix which the job's scheme quantises."""
        packed = self._packed(name, shape, pieces, packs) if len(shape) > 1 else None
        buffer = WeightBuffer(name, TensorType(self.dtype, shape), tuple(pieces), packed, bucket)
        return self.buffers.setdefault(name, buffer)

    def _packed(self, name: str, shape: tuple[int, ...], pieces: list[Piece], packs: bool) -> PackedBuffer | None:
        """How the buffer lies packed: only where all its tensors are held alike."""
        if name in self.buffers:
            return self.buffers[name].packed
        held = self.holding.of(pieces[0].tensor, packs)
        if held is None or any(self.holding.of(piece.tensor, packs) != held for piece in pieces):
            return None
        return packed_buffer(shape, pieces, held)

    def whole(self, name: str, tensor: str, *shape: int) -> WeightBuffer:
        """A tensor that every tensor-parallel rank holds in full."""
        return self._add(name, shape, [Piece(tensor)], bucket="replicated")

    def norm(self, name: str, norm: Norm) -> WeightBuffer:
        """A norm's weight."""
        return self.whole(name, norm.weight, norm.size)

    def vocabulary(self, name: str, tensor: str, vocab_size: int, hidden_size: int) -> WeightBuffer:
        """This rank's rows of an embedding or an output head."""
        first, rows = split_even(vocab_size, self.tp)[self.index]
        return self._add(name, (rows, hidden_size), [Piece(tensor, 0, first, first + rows)])

    def share(self, size: int) -> tuple[int, int]:
        """[start, stop) of this rank's even share of a side, the first ranks holding one more if it does not divide."""
        start, count = split_even(size, self.tp)[self.index]
        return start, start + count

    def _share(self, size: int) -> tuple[int, int]:
        share = size // self.tp
        return self.index * share, (self.index + 1) * share

    def qkv_rows(self, attention: Attention) -> list[tuple[int, int]]:
        """[start, stop) rows of the q, k and v projections that this rank computes."""
        dim = attention.head_dim
        first, count = kv_heads_of(attention.num_kv_heads, self.tp, self.index)
        kv_rows = (first * dim, (first + count) * dim)
        return [self._share(attention.num_heads * dim), kv_rows, kv_rows]

    def qkv(self, name: str, attention: Attention) -> tuple[WeightBuffer, WeightBuffer | None]:
        """This rank's q, k and v rows, then those of its heads' output gates where q's rows carry them."""
        rows = self.qkv_rows(attention)
        if not attention.output_gate:
            return self.fused(name, attention.qkv, rows)
        dim, (first, stop) = attention.head_dim, rows[0]
        heads = range(first // dim, stop // dim)
        q, gate = (HeadRows("", dim, offset, 2 * dim) for offset in (0, dim))
        total = 2 * (stop - first) + sum(end - start for start, end in rows[1:])
        weight, bias = (
            [
                *(Piece(tensors[0], 0, q.start(head), q.start(head) + dim) for head in heads),
                *(Piece(tensor, 0, *span) for tensor, span in zip(tensors[1:], rows[1:], strict=True)),
                *(Piece(tensors[0], 0, gate.start(head), gate.start(head) + dim) for head in heads),
            ]
            if tensors
            else []
            for tensors in (attention.qkv.weights, attention.qkv.biases)
        )
        return (
            self._add(name, (total, attention.qkv.in_features), weight, packs=True),
            self._add(f"{name}.bias", (total,), bias) if bias else None,
        )

    def heads_rows(
        self, name: str, parts: list[tuple[HeadRows, range]], *columns: int, packs: bool = False
    ) -> WeightBuffer:
        """The rows of some heads of each part, one part after the other, each row of `columns` elements."""
        total = sum(part.size * len(heads) for part, heads in parts)
        return self._add(name, (total, *columns), _runs(parts), packs)

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
            self._add(name, (total, projection.in_features), weight, packs=True),
            self._add(f"{name}.bias", (total,), bias) if bias else None,
        )

    def stacked(self, name: str, projections: list[Projection]) -> tuple[WeightBuffer, WeightBuffer | None]:
        """Whole matrices with one input, one above the other, and their biases, which all or none have."""
        rows = sum(projection.out_features[0] for projection in projections)
        biases = [Piece(bias) for projection in projections for bias in projection.biases]
        weights = [Piece(projection.weights[0], 0, 0, projection.out_features[0]) for projection in projections]
        weight = self._add(name, (rows, projections[0].in_features), weights, packs=True, bucket="replicated")
        bias = self._add(f"{name}.bias", (rows,), biases, bucket="replicated") if biases else None
        return weight, bias

    def latent_queries(self, name: str, queries: Projection, attention: LatentAttention) -> WeightBuffer:
        """This rank's heads' rows of the queries: the own parts of all heads, then the rotated ones."""
        nope, dim = attention.nope_dim, attention.nope_dim + attention.rope_dim
        start, stop = self._share(attention.num_heads)
        parts = ((0, nope), (nope, dim))
        pieces = [
            Piece(queries.weights[0], 0, head * dim + low, head * dim + high)
            for low, high in parts
            for head in range(start, stop)
        ]
        return self._add(name, ((stop - start) * dim, queries.in_features), pieces, packs=True)

    def latent_heads(self, name: str, attention: LatentAttention, packs: bool) -> WeightBuffer:
        """This rank's heads' rows of what makes keys and values of latents; `packs` as of any matrix."""
        start, stop = self._share(attention.kv_up.out_features[0])
        piece = Piece(attention.kv_up.weights[0], 0, start, stop)
        return self._add(name, (stop - start, attention.latent_dim), [piece], packs)

    def gate_up(self, name: str, mlp: GatedMlp) -> tuple[WeightBuffer, WeightBuffer | None]:
        """This rank's gate rows, then its up rows."""
        return self.fused(name, mlp.gate_up, [self._share(mlp.intermediate_size)] * 2)

    def row_parallel(self, name: str, projection: Projection) -> tuple[WeightBuffer, WeightBuffer | None]:
        """A matrix cut along its inputs; its bias stands on the first rank alone, since the partial sums are added."""
        start, stop = self.share(projection.in_features)
        weight = self._add(
            name,
            (projection.out_features[0], stop - start),
            [Piece(projection.weights[0], 1, start, stop)],
            packs=True,
        )
        if not projection.biases or self.index:
            return weight, None
        return weight, self.whole(f"{name}.bias", projection.biases[0], projection.out_features[0])

    def heads_norm(self, name: str, norm: Norm, first: int, size: int) -> WeightBuffer:
        """This rank's elements of the weight of a norm over all heads together."""
        return self._add(name, (size,), [Piece(norm.weight, 0, first, first + size)])

    def sinks(self, name: str, attention: Attention) -> WeightBuffer | None:
        """This rank's heads' sinks."""
        if attention.sinks is None:
            return None
        start, stop = self._share(attention.num_heads)
        return self._add(name, (stop - start,), [Piece(attention.sinks, 0, start, stop)])

    def router(self, name: str, router: Router) -> tuple[WeightBuffer, WeightBuffer | None, WeightBuffer | None]:
        """The router's matrix, bias and correction, which every rank holds in full."""
        experts, hidden = router.projection.out_features[0], router.projection.in_features
        biases, correction = router.projection.biases, router.correction
        return (
            self.whole(name, router.projection.weights[0], experts, hidden),
            self.whole(f"{name}.bias", biases[0], experts) if biases else None,
            self.whole(f"{name}.correction", correction, experts) if correction is not None else None,
        )

    def experts(self, name: str, experts: Experts) -> ExpertWeights:
        """The matrices of this rank's experts, cut along their width by the experts' own tensor-parallel degree."""
        own = self.layout.experts_of(self.rank, experts.count)
        placement = self.placements.get(name.removesuffix(".experts"), range(experts.count))
        share = experts.intermediate_size // own.slices
        cut = own.slice_ * share, (own.slice_ + 1) * share
        width, hidden, ids = cut[1] - cut[0], experts.hidden_size, placement[own.first : own.first + own.count]
        gate_up = [piece for e in ids for piece in _gate_up_pieces(experts, e, cut)]
        down = [_down_piece(experts, e, cut) for e in ids]
        gate_up_bias = down_bias = None
        if experts.gate_up_bias is not None:
            pieces = [piece for e in ids for piece in _halves(experts, experts.gate_up_bias, e, cut)]
            gate_up_bias = self._add(f"{name}.gate_up.bias", (own.count, 2 * width), pieces, bucket="expert")
        if experts.down_bias is not None and not own.slice_:  # partial sums are added
            pieces = [Piece(experts.down_bias, 1, 0, hidden, e) for e in ids]
            down_bias = self._add(f"{name}.down.bias", (own.count, hidden), pieces, bucket="expert")
        return ExpertWeights(
            self._add(f"{name}.gate_up", (own.count, 2 * width, hidden), gate_up, packs=True, bucket="expert"),
            gate_up_bias,
            self._add(f"{name}.down", (own.count, hidden, width), down, packs=True, bucket="expert"),
            down_bias,
        )


def _runs(parts: list[tuple[HeadRows, range]]) -> list[Piece]:
    """The rows of some heads of each part, those that follow one another in one tensor as one piece."""
    runs: list[tuple[str, int, int, int]] = []
    for part, heads in parts:
        for start in map(part.start, heads):
            first = start
            if runs and runs[-1][0] == part.tensor and runs[-1][3] == start:
                first = runs.pop()[2]
            runs.append((part.tensor, part.axis, first, start + part.size))
    return [Piece(*run) for run in runs]


@dataclass(frozen=True)
class ExpertWeights:
    """What a rank holds of an expert layer's experts: matrices [experts, out, in] and biases [experts, out]."""

    gate_up: WeightBuffer
    gate_up_bias: WeightBuffer | None
    down: WeightBuffer
    down_bias: WeightBuffer | None


def _halves(experts: Experts, tensor: str, expert: int, cut: tuple[int, int], transposed: bool = False) -> list[Piece]:
    """Gate, then up, from outputs that alternate between the two or stand one half after the other."""
    start, stop = cut
    if not experts.alternating:
        width = experts.intermediate_size
        return [Piece(tensor, 0, at + start, at + stop, expert, transposed) for at in (0, width)]
    return [Piece(tensor, 0, 2 * start + half, 2 * stop, expert, transposed, 2) for half in (0, 1)]


def _gate_up_pieces(experts: Experts, expert: int, cut: tuple[int, int]) -> list[Piece]:
    """One expert's gate rows, then its up rows."""
    if experts.is_fused:
        return _halves(experts, experts.gate_up[0], expert, cut, transposed=True)
    return [Piece(name.format(expert), 0, *cut) for name in experts.gate_up]


def _down_piece(experts: Experts, expert: int, cut: tuple[int, int]) -> Piece:
    if experts.is_fused:
        return Piece(experts.down, 1, *cut, expert, transposed=True)
    return Piece(experts.down.format(expert), 1, *cut)


def layer_name(layer: DecoderLayer) -> str:
    """The prefix of a layer's buffers."""
    return f"layers.{layer.index}"


def head_name(graph: Graph, layout: Layout) -> str:
    """The buffer that the output head reads: the embedding itself when tied and both stand on one stage."""
    return "embedding" if graph.tied and layout.pp == 1 else "lm_head"
