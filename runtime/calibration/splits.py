"""Which rows a calibration may see: whole groups of like shapes go to one side, by a seeded hash of the group."""

from __future__ import annotations

import hashlib

import numpy as np

from .tables import Array, Floats, MeasuredTable

GROUPS = {
    "gemm": ("n", "k"),
    "prefill": ("num_heads", "num_key_value_heads", "head_dim"),
    "decode": ("num_heads", "num_key_value_heads", "head_dim"),
    "mla_prefill": ("num_heads",),
    "mla_decode": ("num_heads",),
    "rowwise": ("op_name", "width"),
    "moe": ("hidden_size", "inter_size", "topk", "num_experts"),
}
COLLECTIVE_GROUPS = ("num_gpus", "message_size")
HELD_OUT = 0.25  # of the groups


def groups_of(table: MeasuredTable) -> list[str]:
    """The group of each row, in words: rows of one group are never on both sides of a split."""
    names = GROUPS.get(table.op, COLLECTIVE_GROUPS)
    cells = zip(*(table.columns[name].tolist() for name in names), strict=True)
    return [f"{table.op} " + " ".join(f"{n}={v}" for n, v in zip(names, row, strict=True)) for row in cells]


def draws(table: MeasuredTable, seed: int) -> Floats:
    """A number in [0, 1) for each row, the same for all rows of a group and on every machine."""
    groups = groups_of(table)
    drawn = {group: _draw(f"{seed} {group}") for group in dict.fromkeys(groups)}
    return np.array([drawn[group] for group in groups])


def training_rows(table: MeasuredTable, seed: int, held_out: float = HELD_OUT) -> Array:
    """True for the rows that a fit may see, False for those of the groups that it is judged on: bool [rows]."""
    seen: Array = draws(table, seed) >= held_out
    return seen


def folds(table: MeasuredTable, seed: int, count: int) -> Array:
    """The fold, from 0 to `count` - 1, of each row's group."""
    parts: Array = (draws(table, seed) * count).astype(np.int64)
    return parts


def sampled(table: MeasuredTable, most: int, seed: int) -> MeasuredTable:
    """At most so many rows, chosen by a hash of their content: the same ones on every machine."""
    if len(table) <= most:
        return table
    order = np.argsort([_draw(f"{seed} {row}") for row in table.row_hashes.tolist()], kind="stable")
    return table.take(np.sort(order[:most]))


def _draw(text: str) -> float:
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64
