"""A systolic array as a tensor unit: folds of a matrix product by dataflow, one after the other or overlapping.

The time of one fold is the SCALE-Sim simulator's: with serial folds, one core and memory without bounds, the cycles are
folds x P - 1, where for an array of R x C cells and a product [m, k] x [k, n]
    output stationary: m over R, n over C, k streams:   P = k + R + C - 2
    weight stationary: k over R, n over C, m streams:   P = R + m + R + C - 2, the first R to load the weights
    input stationary:  k over R, m over C, n streams:   P = R + n + R + C - 2
Pipelined, as hardware is built, a fold follows the one before as soon as its stream is through and its stationary
operand (or results) shifted, after max(stream, R) cycles; the first still takes P.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from ..spec import CardSpec
from .tiles import ACCUMULATOR_BYTES, ceil_div

DATAFLOWS = ("output_stationary", "weight_stationary", "input_stationary")
OUTPUT, WEIGHT, INPUT = range(3)
MOST_CYCLES = 1 << 62


class SystolicPlan(NamedTuple):
    """What products ask of the arrays: cycles of the array alone, cycles with waiting for loads, and L2 bytes."""

    tensor_cycles: int
    flow_cycles: int
    l2_bytes: int


def systolic_plan(
    rows: np.ndarray[Any, Any], copies: int, n: int, k: int, bits: int, card: CardSpec, dtype: str
) -> SystolicPlan:
    """Products [rows[i], k] x [k, n], each `copies` times, of `bits`-bit elements, on the arrays of a card's cores.

    Products follow one another, each dealt over all cores.
    """
    assert card.tensor.dataflow is not None
    depth, step = card.tensor.steps(dtype)
    row_bytes = card.tensor.columns * ACCUMULATOR_BYTES
    found = _products(
        rows, copies, n, ceil_div(k, depth), DATAFLOWS.index(card.tensor.dataflow), card.tensor.folds != "serial",
        card.tensor.rows, card.tensor.columns, step, depth * bits, card.cores.count,
        card.cores.load_bytes_per_cycle, card.sram_bytes("accumulator") // row_bytes,
    )  # fmt: skip
    return SystolicPlan(*found)


@njit(cache=True)
def _products(rows, copies, n, k, dataflow, pipelined, height, width, step, bits, cores, load, held):  # type: ignore[no-untyped-def]
    """(array cycles, cycles with loads, L2 bytes) of all products, `k` in elements of `bits` that a cell takes at once.

    What streams past a stationary operand may be cut in parts for other cores; the fastest number of parts up to one a
    core is taken. Sums over several folds that a core's accumulators (of `held` rows) cannot keep are loaded and
    stored again by each fold.
    """
    array = flow = num_bytes = np.int64(0)
    for m in rows:
        across, down, stream = n, k, m
        if dataflow == OUTPUT:
            down, stream = m, k
        elif dataflow == INPUT:
            across, stream = m, n
        chains, folds = copies * ceil_div(across, width), ceil_div(down, height)
        best_array, best_flow, best_bytes = np.int64(0), np.int64(MOST_CYCLES), np.int64(0)
        for parts in range(1, (1 if dataflow == OUTPUT else max(1, min(cores, stream))) + 1):
            length = ceil_div(stream, parts)
            alone, loaded = _fold(length, dataflow, height, width, step, bits)
            if dataflow != OUTPUT and folds > 1 and length > held:
                loaded += 2 * length * width * ACCUMULATOR_BYTES
            waiting = max(alone, loaded // load)
            whole = (length + height + width - 2 + (0 if dataflow == OUTPUT else height)) * step
            if not pipelined:
                alone, waiting = whole, max(whole, waiting)
            if dataflow == OUTPUT:
                turns, count = ceil_div(chains * folds, cores), chains * folds
            else:
                turns, count = ceil_div(chains * parts, cores) * folds, chains * parts * folds
            if turns * waiting + max(0, whole - waiting) < best_flow:
                best_flow = turns * waiting + max(0, whole - waiting)
                best_array = turns * alone + whole - alone
                best_bytes = count * loaded
        if chains * folds * stream:
            array, flow, num_bytes = array + best_array, flow + best_flow, num_bytes + best_bytes
    return max(array - 1, 0), max(flow - 1, 0), num_bytes


@njit(cache=True)
def _fold(length, dataflow, height, width, step, bits):  # type: ignore[no-untyped-def]
    """(Cycles before the next fold may follow, bytes of operands) of one fold."""
    cells = height * width if dataflow != OUTPUT else width * length
    return max(length, height) * step, (cells + height * length) * bits // 8
