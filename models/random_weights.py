"""Seeded random weights: every element is a function of (seed, tensor name, row, column) and of nothing else."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from ..isa.dtype import FP32, DType
from .store import Array, Shape

PANEL = 256  # columns drawn together
_PER_COUNTER = 8  # Philox gives four 64-bit words a counter: eight 32-bit draws
_BIAS_STD = 0.1
_NORM_STD = 0.1


@dataclass(frozen=True)
class RandomStore:
    """Tensors that are drawn when read, so that a slice of a trillion parameters costs what the slice costs.

    Matrices are uniform with standard deviation 1/sqrt(columns), which is what published initialisers come to at their
    own width and keeps activations and logits near 1 at any; norm weights lie around 1 and biases around 0, both with
    0.1, so that a wrong norm or a forgotten bias shows.
    """

    shapes: Mapping[str, Shape]
    seed: int

    def names(self) -> Iterable[str]:
        """Every tensor of the graph."""
        return self.shapes.keys()

    def shape(self, name: str) -> Shape:
        """[rows, columns], [elements], or [experts, rows, columns]."""
        return self.shapes[name]

    def dtype(self, name: str) -> DType:
        """Always fp32: the draw is rounded to what the job stores."""
        return FP32

    def where(self, name: str) -> str:
        """The seed stands in for a file."""
        return f"random weights (seed {self.seed})"

    def read(self, name: str, axis: int, start: int, stop: int) -> Array:
        """The slice, float32."""
        shape = self.shapes[name]
        key = _key(self.seed, name)
        if len(shape) == 1:
            mean = 1.0 if name.endswith("norm.weight") else 0.0
            std = _NORM_STD if mean else _BIAS_STD
            return _draw(key, (0, 1), (start, stop), std).reshape(-1) + np.float32(mean)
        if len(shape) == 3:
            if axis:
                return np.concatenate([self.read(name, 0, e, e + 1) for e in range(shape[0])]).take(
                    range(start, stop), axis
                )
            flat = _draw(key, (start * shape[1], stop * shape[1]), (0, shape[2]), 1 / math.sqrt(shape[1]))
            return flat.reshape(stop - start, *shape[1:])
        rows, columns = ((start, stop), (0, shape[1])) if axis == 0 else ((0, shape[0]), (start, stop))
        return _draw(key, rows, columns, 1 / math.sqrt(shape[1]))


def _key(seed: int, name: str) -> int:
    return int.from_bytes(hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=16).digest(), "little")


def _draw(key: int, rows: tuple[int, int], columns: tuple[int, int], std: float) -> Array:
    """Rows x columns of a matrix that is drawn in panels of 256 columns, row after row within a panel.

    Panel p is its own stream, so a slice of either axis starts in the middle of streams and draws nothing it drops but
    the edges of two panels.
    """
    out = np.empty((rows[1] - rows[0], columns[1] - columns[0]), np.float32)
    for panel in range(columns[0] // PANEL, -(-columns[1] // PANEL)):
        left, right = max(columns[0], panel * PANEL), min(columns[1], (panel + 1) * PANEL)
        drawn = _panel(key, panel, rows)[:, left - panel * PANEL : right - panel * PANEL]
        out[:, left - columns[0] : right - columns[0]] = drawn
    half_width = np.float32(math.sqrt(3) * std)
    out *= np.float32(2.0**-31) * half_width
    out -= half_width
    return out


def _panel(key: int, panel: int, rows: tuple[int, int]) -> Array:
    """Raw 32-bit draws of one panel, uint32 [rows, 256]."""
    counter = rows[0] * PANEL // _PER_COUNTER + (panel << 128)
    words = np.random.Philox(key=key, counter=counter).random_raw((rows[1] - rows[0]) * PANEL // 2)
    return np.asarray(words).view(np.uint32).reshape(-1, PANEL)
