"""What to measure next: sizes that models ask, spread evenly over their whole range, as tables with empty times."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from scipy.stats import qmc

from ...emulator.spec import CardSpec
from .schema import KINDS, TableKind

Ladder = tuple[int | str, ...]
_WIDTHS: Ladder = (512, 1024, 2048, 3072, 4096, 5120, 6144, 7168, 8192, 12288, 16384, 28672)
_GROUPS = ((8, 1), (8, 8), (16, 2), (16, 4), (32, 4), (32, 8), (32, 32), (64, 8), (40, 8))  # (heads, kv heads)
_LENGTHS: Ladder = (128, 256, 512, 1024, 2048, 4096, 8192, 16384)
MOST_PREFILL_TOKENS, MOST_CACHED_TOKENS = 1 << 16, 1 << 22


class Design(NamedTuple):
    """Values of each axis of one table, and what the product of some axes may not pass."""

    stem: str
    axes: Mapping[str, Ladder]
    capped: tuple[str, ...] = ()
    cap: int = 0


DESIGNS = (
    Design("gemm", {"m": (1, 4, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192), "n": _WIDTHS, "k": _WIDTHS}),
    Design(
        "context_attention_{library}",
        {"batch_size": (1, 2, 4, 8, 16), "isl": _LENGTHS, "group": tuple(range(len(_GROUPS)))},
        ("batch_size", "isl"),
        MOST_PREFILL_TOKENS,
    ),
    Design(
        "generation_attention_{library}",
        {"batch_size": (1, 4, 8, 16, 32, 64, 128, 256), "step": (*_LENGTHS, 32768, 65536),
         "group": tuple(range(len(_GROUPS)))},
        ("batch_size", "step"),
        MOST_CACHED_TOKENS,
    ),
    Design(
        "nccl",
        {"op_name": ("all_reduce",), "num_gpus": (2, 4, 8), "message_size": tuple(1 << p for p in range(10, 29))},
    ),
)  # fmt: skip


def suggested(card: CardSpec, count: int, seed: int) -> dict[str, str]:
    """`count` points of each kind of table as CSV text by file name, the times left empty for who measures them."""
    found = {}
    for design in DESIGNS:
        stem = design.stem.format(library=card.kernels)
        kind = next(kind for kind in KINDS if kind.library_of(stem) is not None)
        found[f"{stem}.csv"] = _csv(kind, _points(design, count, seed))
    return found


def _points(design: Design, count: int, seed: int) -> list[dict[str, int | str]]:
    """Different points of a low-discrepancy sequence on the axes, snapped to their values."""
    ladders = list(design.axes.items())
    found: dict[tuple[int | str, ...], None] = {}
    sequence = qmc.Halton(len(ladders), rng=np.random.default_rng(seed))
    for _ in range(100 * count):
        place = sequence.random(1)[0]
        point = tuple(values[int(x * len(values))] for (_, values), x in zip(ladders, place, strict=True))
        chosen = dict(zip(design.axes, point, strict=True))
        if design.cap and np.prod([float(chosen[name]) for name in design.capped]) > design.cap:
            continue
        found[point] = None
        if len(found) == count:
            break
    return [dict(zip(design.axes, point, strict=True)) for point in found]


def _csv(kind: TableKind, points: list[dict[str, int | str]]) -> str:
    """The points with every column of their table; heads by their group, what is not varied by its default."""
    names = [column.name for column in kind.columns if column.name != "kernel_source"]
    defaults = {column.name: column.default for column in kind.columns}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*names, kind.time])
    for point in points:
        if "group" in point:
            heads, kv_heads = _GROUPS[int(point["group"])]
            point = {**point, "num_heads": heads, "num_key_value_heads": kv_heads}
        writer.writerow([*[point.get(name, defaults[name]) for name in names], ""])
    return text.getvalue()
