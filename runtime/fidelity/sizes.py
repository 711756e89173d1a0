"""Rows parted by size, so that a table shows where the errors are and a plot what grows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from ...isa.dtype import parse_dtype
from ...isa.instruction import Array
from .subsets import kv_bytes

Columns = Mapping[str, Array]


@dataclass(frozen=True)
class Size:
    """What rows of an operation are parted by: `of` gives it [rows]; a rung ends at each of `edges`, itself in it."""

    name: str
    of: Callable[[Columns], Array]
    edges: tuple[int, ...]

    def rungs(self, columns: Columns) -> Iterator[tuple[str, Array]]:
        """(what it is called, mask [rows]) of every rung, from the smallest rows on; empty ones too."""
        sizes = self.of(columns)
        low = 0
        for high in self.edges:
            yield f"to {high:,}" if not low else f"{low + 1:,}-{high:,}", (sizes > low) & (sizes <= high)
            low = high
        yield f"over {low:,}", sizes > low


def _buffer_kib(columns: Columns) -> Array:
    """KiB of the whole buffer of a collective [rows], begun ones counted."""
    names, places = np.unique(columns["nccl_dtype"], return_inverse=True)
    itemsizes = np.array([parse_dtype(name).itemsize_bytes for name in names.tolist()])
    found: Array = -(-columns["message_size"] * itemsizes[places] // 1024)
    return found


def _column(name: str) -> Callable[[Columns], Array]:
    return lambda columns: columns[name]


SIZES: dict[str, Size] = {
    "gemm": Size("m", _column("m"), (16, 128, 1024)),
    "prefill": Size("tokens", _column("isl"), (512, 1024, 2048, 4096)),
    "decode": Size("KV MB", lambda columns: np.ceil(kv_bytes(columns) / 1e6), (64, 256, 1024, 4096)),
    "all_reduce": Size("KiB", _buffer_kib, (16, 256, 4096, 65536)),
    "tpot": Size("batch", _column("batch_size"), (8, 32, 128)),
}
