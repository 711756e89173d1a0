"""Work: what an instruction asks of a card, in operations, bytes and tile geometry. It is never a time."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from .dtype import DType


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
class AttentionShape:
    """Attention of new tokens over their cached context, one entry of `q_lens`/`kv_lens` a sequence.

    `kv_lens[i]` counts every token in the cache of sequence i, the new ones included. `window` 0 means no window.
    """

    q_lens: tuple[int, ...]
    kv_lens: tuple[int, ...]
    num_heads: int
    num_kv_heads: int
    qk_dim: int
    v_dim: int
    window: int = 0
    page_tokens: int = 16


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


Geometry = (
    MatmulShape | GroupedShape | AttentionShape | VectorShape | MoveShape | TransferShape | CollectiveShape | None
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
