"""Work: what an instruction asks of a card, in operations, bytes and tile geometry. It is never a time."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Literal, NamedTuple

from .dtype import FP32, DType

Order = Literal["auto", "absorbed", "expanded"]  # of the products of latent attention


class Unit(Enum):
    """The kind of unit that performs an instruction; a card maps each kind to its queues."""

    TENSOR = "tensor"
    VECTOR = "vector"
    DMA = "dma"
    HOST = "host"
    LINK = "link"
    CONTROL = "control"


@dataclass(frozen=True)
class MatmulShape:
    """[m, k] x [k, n], `batch` times."""

    m: int
    n: int
    k: int
    batch: int = 1


@dataclass(frozen=True)
class GroupedShape:
    """[rows[e], k] x [k, n] for each expert e, each with a matrix of its own."""

    rows: tuple[int, ...]
    n: int
    k: int


@dataclass(frozen=True)
class StateShape(GroupedShape):
    """The same, each matrix a recurrence's state: kernels keep several on a core, so that none waits for the next."""


@dataclass(frozen=True)
class AttentionShape:
    """Attention of new tokens over their cached context, one entry of `q_lens`/`kv_lens` a sequence.

    `kv_lens[i]` counts every token in the cache of sequence i, the new ones included. `window` 0 means no window, and
    `chunk` 0 no chunks; `soft_capped` scores pass a tanh.
    """

    q_lens: tuple[int, ...]
    kv_lens: tuple[int, ...]
    num_heads: int
    num_kv_heads: int
    qk_dim: int
    v_dim: int
    window: int = 0
    page_tokens: int = 16
    chunk: int = 0
    soft_capped: bool = False


class Stretch(NamedTuple):
    """Cached tokens of one sequence that lie together: how many queries see some, in how many pairs, and the tokens."""

    queries: int
    pairs: int
    tokens: int


@dataclass(frozen=True)
class LatentShape:
    """Latent attention of new tokens over their cached context, one entry of `q_lens`/`kv_lens` a sequence.

    A cached token is a latent of `latent_dim` elements and `rope_dim` more that all heads share. With `top_k` above 0 a
    query that sees more tokens than that attends to so many chosen ones. `order` says how products are taken ("auto":
    by each sequence's operations); the tokens of expanded sequences, one after the other, are expanded `piece_tokens`
    at a time (0: all at once).
    """

    q_lens: tuple[int, ...]
    kv_lens: tuple[int, ...]
    num_heads: int
    nope_dim: int
    rope_dim: int
    v_dim: int
    latent_dim: int
    page_tokens: int = 16
    top_k: int = 0
    order: Order = "auto"
    piece_tokens: int = 0

    def chooses(self, length: int) -> bool:
        """Whether the last query of a sequence of this length attends to chosen tokens alone."""
        return 0 < self.top_k < length

    def pairs(self, queries: int, length: int) -> int:
        """Tokens that the new tokens of one sequence attend to, summed over these."""
        if not self.chooses(length):
            return queries * length - queries * (queries - 1) // 2
        chosen, pairs = choices(queries, length, self.top_k)
        return chosen * self.top_k + queries * length - queries * (queries - 1) // 2 - pairs

    def rows(self, queries: int, length: int) -> int:
        """Cached tokens that must be read for one sequence: all, or what its queries choose where that is fewer."""
        return min(length, self.pairs(queries, length))

    def ops(self, queries: int, length: int) -> tuple[int, int]:
        """Operations of one sequence: keys and values expanded from its latents, or absorbed into its queries."""
        if not queries:
            return 0, 0
        pairs = self.pairs(queries, length)
        per_token = self.latent_dim * (self.nope_dim + self.v_dim)
        expanded = length * per_token + pairs * (self.nope_dim + self.rope_dim + self.v_dim)
        absorbed = queries * per_token + pairs * (2 * self.latent_dim + self.rope_dim)
        return 2 * self.num_heads * expanded, 2 * self.num_heads * absorbed

    def expands(self, queries: int, length: int) -> bool:
        """Whether a sequence is expanded: by its order, or where that takes no more operations; never if it chooses."""
        if self.chooses(length):
            return False
        if self.order != "auto":
            return self.order == "expanded"
        expanded, absorbed = self.ops(queries, length)
        return expanded <= absorbed

    def taken_ops(self, queries: int, length: int) -> int:
        """Operations of one sequence in the order that it takes."""
        expanded, absorbed = self.ops(queries, length)
        return expanded if self.expands(queries, length) else absorbed

    @cached_property
    def by_order(self) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """(new, cached) tokens of the sequences with new ones: those that are expanded, and those that are absorbed."""
        pairs = [pair for pair in zip(self.q_lens, self.kv_lens, strict=True) if pair[0]]
        expands = {pair: self.expands(*pair) for pair in set(pairs)}
        chosen: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])
        for pair in pairs:
            chosen[not expands[pair]].append(pair)
        return chosen

    @property
    def pieces(self) -> list[tuple[Stretch, ...]]:
        """What is expanded together, piece after piece."""
        expanded, _ = self.by_order
        size = self.piece_tokens or max(1, sum(length for _, length in expanded))
        found: list[list[Stretch]] = []
        room = 0
        for queries, length in expanded:
            start = 0
            while start < length:
                if not room:
                    found.append([])
                    room = size
                stop = min(length, start + room)
                found[-1].append(_stretch(queries, length, start, stop))
                room -= stop - start
                start = stop
        return [tuple(piece) for piece in found]

    @property
    def expanded_row(self) -> int:
        """Elements of one token's keys and values over all heads, each head's key with the shared part."""
        return self.num_heads * (self.nope_dim + self.rope_dim + self.v_dim)

    @property
    def absorbed_row(self) -> int:
        """Elements of one new token's queries of latents, with their turned part, and of what they sum, over heads."""
        return self.num_heads * (2 * self.latent_dim + self.rope_dim)

    @property
    def part_row_bytes(self) -> int:
        """Bytes of one new token's part over a piece: outputs and an LSE for every head, in fp32."""
        return FP32.bytes_of(self.num_heads * (self.v_dim + 1))

    def workspace_bytes(self, dtype: DType) -> int:
        """Device memory for what stands between the products: keys and values of a piece, with the parts that pieces
        leave where there are several; or queries of latents and their sums."""
        expanded, absorbed = self.by_order
        tokens = sum(length for _, length in expanded)
        piece = min(tokens, self.piece_tokens or tokens)
        parts = sum(queries for queries, _ in expanded) * self.part_row_bytes if tokens > piece else 0
        queries = sum(queries for queries, _ in absorbed)
        return max(dtype.bytes_of(piece * self.expanded_row) + parts, dtype.bytes_of(queries * self.absorbed_row))


def _stretch(queries: int, length: int, start: int, stop: int) -> Stretch:
    """What the new tokens of a sequence, its last, see of its cached tokens from start to stop, causally."""
    first = max(length - queries, start)
    within = max(0, stop - first)  # queries that stand in the stretch: they see it up to themselves
    pairs = within * (first + 1 - start + stop - start) // 2 + (length - max(first, stop)) * (stop - start)
    return Stretch(length - first, pairs, stop - start)


def choices(queries: int, length: int, top_k: int) -> tuple[int, int]:
    """(how many of a sequence's new tokens see more than `top_k` tokens, how many tokens these see together)."""
    chosen = min(queries, max(0, length - top_k))
    return chosen, chosen * length - chosen * (chosen - 1) // 2


@dataclass(frozen=True)
class IndexShape:
    """Choosing `top_k` cached tokens for each new one, one entry of `q_lens`/`kv_lens` a sequence.

    Only new tokens that see more than `top_k` have anything scored: each of `num_heads` heads with every key of `dim`.
    """

    q_lens: tuple[int, ...]
    kv_lens: tuple[int, ...]
    num_heads: int
    dim: int
    top_k: int
    page_tokens: int = 16

    @property
    def scored(self) -> tuple[tuple[int, int, int], ...]:
        """(new tokens that choose, tokens these see together, length) of every sequence that has such."""
        found = ((*choices(*pair, self.top_k), pair[1]) for pair in zip(self.q_lens, self.kv_lens, strict=True))
        return tuple(entry for entry in found if entry[0])


@dataclass(frozen=True)
class VectorShape:
    """Row-wise vector work: `rows` rows of `cols` elements, `passes` trips over a row (a reduction then a map is 2)."""

    rows: int
    cols: int
    passes: int = 1


@dataclass(frozen=True)
class MoveShape:
    """A copy, gather or scatter of `rows` runs of `row_bytes` contiguous bytes."""

    rows: int
    row_bytes: int


@dataclass(frozen=True)
class TransferShape:
    """Point-to-point: `peer` is the index in `group`; `sends` False is the receiving end."""

    group: str
    peer: int
    num_bytes: int
    sends: bool
    reduces: bool = False
    dtype: DType | None = None


@dataclass(frozen=True)
class CollectiveShape:
    """A collective over `group`: `part_bytes[i]` is the part that index i owns (empty for a barrier).

    All-reduce and reduce-scatter: the parts tile the buffer that is reduced. All-gather and gather: part i is what
    index i contributes. Scatter: what index i gets. Broadcast and reduce: one part, the whole buffer. All-to-all: what
    this card sends to index i, and `received_bytes[i]` what it gets from there. `root` is where there is one.
    """

    kind: str
    group: str
    part_bytes: tuple[int, ...]
    dtype: DType | None = None
    root: int = 0
    received_bytes: tuple[int, ...] = ()


@dataclass(frozen=True)
class FusedShape:
    """Several instructions in one launch; the Work of each counts its own bytes, those between them too."""

    parts: tuple[Work, ...]


Geometry = (
    MatmulShape
    | GroupedShape
    | AttentionShape
    | LatentShape
    | IndexShape
    | VectorShape
    | MoveShape
    | TransferShape
    | CollectiveShape
    | FusedShape
    | None
)


@dataclass(frozen=True)
class Work:
    """What one instruction asks of a card.

    `ops` are arithmetic operations (a multiply and an add are two) in `dtype`; `read_bytes` and `write_bytes` are the
    device memory traffic that cannot be avoided (operands read once, results written once); `shape` is the geometry
    from which a unit schedules tiles, rows or messages.
    """

    unit: Unit
    ops: int = 0
    read_bytes: int = 0
    write_bytes: int = 0
    dtype: DType | None = None
    shape: Geometry = None

    @property
    def latent_shapes(self) -> tuple[LatentShape, ...]:
        """The latent attentions in it: itself, or parts of what is fused."""
        if isinstance(self.shape, FusedShape):
            return tuple(shape for part in self.shape.parts for shape in part.latent_shapes)
        return (self.shape,) if isinstance(self.shape, LatentShape) else ()

    @property
    def workspace_bytes(self) -> int:
        """Device memory that it needs while it runs, beside its operands."""
        if self.dtype is None:
            return 0
        return max((shape.workspace_bytes(self.dtype) for shape in self.latent_shapes), default=0)
