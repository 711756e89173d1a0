"""Whether measured times can be times at all: held against what a card's data sheet can do at best, and at worst."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from ...emulator.spec import CardSpec
from ...isa.instruction import Array
from .faults import refuse
from .schema import COLLECTIVES, TYPE_COLUMNS, operand_type

if TYPE_CHECKING:
    from .tables import Floats, MeasuredTable

SHORTEST_PS = 500_000  # no kernel is launched and done in less
FASTEST = 0.85  # of the least time by the data sheet: clocks may pass the stated one a little
LAUNCH_PS = 20e6
SLOWEST = {
    "gemm": 40.0
}  # times the least time and a launch; the slowest rows that were checked: 4, and 85 of attention
SLOWEST_OTHERS = 200.0
SLOWEST_COLLECTIVE = 40.0
LARGE_ELEMENTS = 1 << 24
LEAST_SUMMED = 3
COLLECTIVE_BITS = {"int8": 8, "fp8": 8, "fp16": 16, "bf16": 16, "fp32": 32}


def check_plausible(table: MeasuredTable, card: CardSpec) -> None:
    """ConfigError that names the rows which are no milliseconds, or whose sizes are no elements, and why."""
    shown = table.latency_ps / 1e9
    _refuse(table, table.latency_ps < SHORTEST_PS, lambda row: (
        f"{shown[row]:.3g} ms is shorter than any launch takes; is the time in seconds?"
    ))  # fmt: skip
    if table.op in COLLECTIVES.values():
        _check_collective(table, card)
        return
    least = least_ps(table, card)
    if least is None:
        return
    compute, memory = least
    _refuse(table, table.latency_ps < FASTEST * compute, lambda row: (
        f"{shown[row]:.3g} ms, and {card.name} cannot compute it in less than {compute[row] / 1e9:.3g} ms at its peak; "
        "is the time in seconds, or the row of another card?"
    ))  # fmt: skip
    most = SLOWEST.get(table.op, SLOWEST_OTHERS) * (np.maximum(compute, memory) + LAUNCH_PS)
    _refuse(table, table.latency_ps > most, lambda row: (
        f"{shown[row]:.3g} ms, over {most[row] / 1e9:.3g} ms, which is far beyond what {card.name} needs; is the time "
        "in microseconds?"
    ))  # fmt: skip


def _check_collective(table: MeasuredTable, card: CardSpec) -> None:
    cards, elements = table.columns["num_gpus"], table.columns["message_size"]
    bits = np.array([COLLECTIVE_BITS[name] for name in table.columns["nccl_dtype"].tolist()])
    _refuse_bytes(table, cards, elements, bits)
    through = (cards - 1) / cards
    if table.op == "all_reduce":
        through = np.where((cards >= LEAST_SUMMED) & card.node.switch_reduces, 1.0, 2 * through)
    link = card.link.bandwidth_bytes_per_s * card.node.ports_to_peer
    least = through * elements * bits / 8 / link * 1e12
    shown = table.latency_ps / 1e9
    _refuse(table, table.latency_ps < FASTEST * least, lambda row: (
        f"{elements[row]} elements in {shown[row]:.3g} ms pass the links of {card.name} ({link / 1e9:.0f} GB/s); is "
        "message_size in bytes, or the time in seconds?"
    ))  # fmt: skip
    _refuse(table, table.latency_ps > SLOWEST_COLLECTIVE * (least + LAUNCH_PS), lambda row: (
        f"{shown[row]:.3g} ms for {elements[row]} elements is far beyond what the links of {card.name} need; is the "
        "time in microseconds?"
    ))  # fmt: skip


def _refuse_bytes(table: MeasuredTable, cards: Array, elements: Array, bits: Array) -> None:
    """Elements of two sizes that take the same time are bytes."""
    keys = [(int(c), int(e)) for c, e in zip(cards.tolist(), elements.tolist(), strict=True)]
    narrow = {key: ps for key, ps, b in zip(keys, table.latency_ps, bits, strict=True) if b == 8}
    wide = [row for row in np.flatnonzero((bits == 16) & (elements >= LARGE_ELEMENTS)) if keys[row] in narrow]
    if wide and np.median([table.latency_ps[row] / narrow[keys[row]] for row in wide]) < 1.3:
        refuse(table.path, [(int(table.lines[wide[0]]), "as many elements of one byte take as long as those of two: "
                             "message_size seems to be in bytes, and must be in elements")])  # fmt: skip


def least_ps(table: MeasuredTable, card: CardSpec) -> tuple[Floats, Floats] | None:
    """Picoseconds [rows] that a card's peak and its memory need at least; None for what is not known.

    0 where the card has no rate for a row's type.
    """
    columns = table.columns
    if table.op not in TYPE_COLUMNS:
        return None
    names = columns[TYPE_COLUMNS[table.op]].tolist()
    kinds = {name: operand_type(name) for name in dict.fromkeys(names)}
    rates = {n: card.peak_ops_per_s(k) if k and k.name in card.tensor.rate else np.inf for n, k in kinds.items()}
    peak = np.array([rates[name] for name in names], float)
    ops, elements = _amounts(table)
    return ops / peak * 1e12, 2 * elements / card.hbm.bandwidth_bytes_per_s * 1e12


def _amounts(table: MeasuredTable) -> tuple[Floats, Floats]:
    """Operations and elements moved of each row, in closed form."""
    columns = {name: values.astype(float) for name, values in table.columns.items() if values.dtype.kind == "i"}
    if table.op == "gemm":
        m, n, k = (columns[name] for name in "mnk")
        return 2 * m * n * k, m * k + n * k + m * n
    if table.op == "moe":
        tokens, hidden = columns["num_tokens"], columns["hidden_size"]
        products = hidden * columns["inter_size"] / columns["moe_tp_size"]
        rows = tokens * columns["topk"] / columns["moe_ep_size"]
        experts = np.minimum(rows, columns["num_experts"] / columns["moe_ep_size"])
        return 4 * rows * products, experts * products
    batch, heads, kv_heads = (columns[name] for name in ("batch_size", "num_heads", "num_key_value_heads"))
    dim, window = columns["head_dim"], columns["window_size"]
    if table.op == "decode":
        seen = np.where(window > 0, np.minimum(columns["step"] + 1, window), columns["step"] + 1)
        return 4 * batch * heads * dim * seen, 2 * batch * dim * (kv_heads * seen + heads)
    length = columns["isl"]
    reach = np.where(window > 0, np.minimum(length, window), length)
    pairs = reach * (reach + 1) / 2 + (length - reach) * reach
    return 4 * batch * heads * dim * pairs, 2 * batch * length * (heads + kv_heads) * dim


def _refuse(table: MeasuredTable, bad: Array, why: Callable[[int], str]) -> None:
    refuse(table.path, [(int(table.lines[row]), why(row)) for row in np.flatnonzero(bad).tolist()])
