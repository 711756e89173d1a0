"""Names of context parallelism: the modes of a step, and the extents and inputs that lowering and host agree on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ...isa.dtype import INT32
from ...isa.program import Buffer, Space
from ...models.blocks import Attention, DeltaNet, Graph, LatentAttention
from .builder import buffer

Mode = Literal["whole", "ring", "allgather", "decode"]

GATHERED = "gathered"  # rows of all shares together
CONTEXT_PAGES, CONTEXT_COLUMNS = "context_pages", "context_columns"  # of a gathered context, and of its tables
PIECES = "pieces"  # runs of positions that this share computes, each a sequence of its own over a gathered context
ALL_TOKENS = "all_tokens"  # new tokens of all shares together
RETURNED = "returned"  # parts that come back: this share's tokens times the shares
HERE = "here"  # entries all of whose tokens stand where their states are kept


@dataclass(frozen=True)
class Kind:
    """Which keys a query sees of those before it: `window` of them, or those of its `chunk` (0: all)."""

    window: int = 0
    chunk: int = 0

    @property
    def label(self) -> str:
        """Its part of the names of what depends on it."""
        return f"w{self.window}c{self.chunk}"


def kind_of(attention: object) -> Kind:
    """The kind of an attention."""
    return Kind(getattr(attention, "window", 0), getattr(attention, "chunk", 0))


def kinds_of(graph: Graph, layers: range | None = None) -> list[Kind]:
    """The kinds of the attentions with a cache, of all layers or of some, each once."""
    chosen = graph.layers if layers is None else [graph.layers[index] for index in layers]
    found = [kind_of(one.attention) for one in chosen if isinstance(one.attention, Attention | LatentAttention)]
    return list(dict.fromkeys(found))


def has_states(graph: Graph) -> bool:
    """Whether some layer keeps a state of fixed size for each sequence."""
    return any(isinstance(layer.attention, DeltaNet) for layer in graph.layers)


def chooses(graph: Graph) -> bool:
    """Whether some layer attends to tokens that it chooses among all cached ones."""
    return any(isinstance(layer.attention, LatentAttention) and layer.attention.top_k for layer in graph.layers)


def share_rows(turn: int) -> str:
    """Rows of the share of the cache that is here after `turn` turns of the ring."""
    return f"share.{turn}"


def share_lens(turn: int) -> str:
    """The share's rows of each sequence."""
    return f"share_lens.{turn}"


def visible(kind: Kind, turn: int = 0) -> str:
    """First and last (exclusive) row that each query sees of the share."""
    return f"visible.{kind.label}.{turn}"


def seen(kind: Kind, turn: int = 0) -> str:
    """The extent that says of each sequence what its queries see of the share."""
    return f"seen.{kind.label}.{turn}"


def hop(turn: int) -> str:
    """Sequences whose state comes here at a turn of the ring."""
    return f"hop.{turn}"


def attention_inputs(mode: Mode, shares: int, kinds: list[Kind]) -> list[Buffer]:
    """What attention reads of a step's inputs, in a mode."""
    if mode == "whole" or not kinds:
        return []
    made = {
        "ring": [
            _int("share_rows", share_rows(0)),
            _int("query_lens", "sequences"),
            *(_int(f"share_starts.{turn}", "sequences", 1) for turn in range(shares)),
            *(_int(share_lens(turn), "sequences") for turn in range(shares)),
            *(_int(visible(kind, turn), "tokens", 2) for turn in range(shares) for kind in kinds),
        ],
        "allgather": [
            _int("share_rows", share_rows(0)),
            _int("context_rows", GATHERED),
            _int("context_tables", PIECES, CONTEXT_COLUMNS),
            _int("piece_lens", PIECES),
            _int("context_lens", PIECES),
        ],
        "decode": [
            _int("share_tables", "sequences", "table_pages"),
            _int("query_lens", "sequences"),
            _int(share_lens(0), "sequences"),
            *(_int(visible(kind), ALL_TOKENS, 2) for kind in kinds),
        ],
    }
    return made[mode]


def state_inputs(shares: int) -> list[Buffer]:
    """What linear attention reads of a step's inputs where states pass from share to share."""
    turns = [
        _int(f"{name}.{turn}", hop(turn)) for turn in range(shares) for name in ("slots", "q_lens", "kv_lens", "starts")
    ]
    here = [_int(f"{name}.{HERE}", HERE) for name in ("slots", "q_lens", "kv_lens", "starts")]
    return [*turns, *here, _int("home_slots", hop(shares - 1))]


def _int(name: str, *shape: int | str) -> Buffer:
    return buffer(name, Space.INPUT, INT32, *shape)
