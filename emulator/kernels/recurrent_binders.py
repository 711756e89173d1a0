"""Binders of linear attention: CAUSAL_CONV and GATED_DELTA."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...isa.errors import ProgramError
from ...isa.instruction import Array
from ...isa.meaning import ArrayMemory
from ...isa.recurrent import CAUSAL_CONV, GATED_DELTA, L2_EPS
from . import recurrent
from .binding import Thunk, floats, integers, kernel_of
from .threads import over_rows


def _integers(i: CAUSAL_CONV | GATED_DELTA, memory: ArrayMemory) -> tuple[Array, Array, Array, Array]:
    """Slots, lengths, and starts (empty where there are none)."""
    slots, q_lens, kv_lens = (integers(i, memory, ref) for ref in (i.slots, i.q_lens, i.kv_lens))
    starts = np.empty(0, slots.dtype) if i.starts is None else integers(i, memory, i.starts)
    return slots, q_lens, kv_lens, starts


def _checker(i: CAUSAL_CONV | GATED_DELTA, held: tuple[Array, Array, Array, Array], rows: int, tokens: int) -> Thunk:
    """A thunk that raises ProgramError for lengths and slots in memory that cannot be."""
    slots, q_lens, kv_lens, starts = held
    apart = i.starts is not None

    def check() -> None:
        wrong, at = recurrent.check_sequences(q_lens, kv_lens, slots, starts, apart, rows, tokens)
        if wrong == recurrent.START:
            raise ProgramError(
                f"{i.mnemonic}: starts[{at}] is {starts[at]} for {q_lens[at]} of {tokens} rows (in: {i})"
            )
        if wrong == recurrent.TOKENS:
            raise ProgramError(f"{i.mnemonic}: q_lens add up to {at} new tokens, there are {tokens} rows (in: {i})")
        if wrong == recurrent.LENGTHS:
            raise ProgramError(
                f"{i.mnemonic}: sequence {at} has q_len {q_lens[at]} and kv_len {kv_lens[at]}; 0 <= q_len <= kv_len "
                f"must hold (in: {i})"
            )
        if wrong:
            raise ProgramError(f"{i.mnemonic}: slots[{at}] is {slots[at]}, must be 0 to {rows - 1} (in: {i})")

    return check


def _over(
    kernel: Callable[..., int], arguments: tuple[object, ...], units: int, check: Thunk, operations: int
) -> Thunk:
    def run(first: int, last: int) -> int:
        return int(kernel(*arguments, first, last))

    def thunk() -> None:
        check()
        over_rows(run, units, operations)

    return thunk


@kernel_of(CAUSAL_CONV)
def bind_causal_conv(i: CAUSAL_CONV, memory: ArrayMemory) -> Thunk:
    """dst = silu of the convolution over each sequence; the state is its last inputs."""
    dst, x, weight, state = floats(i, memory, i.dst, i.x, i.weight, i.state)
    held = _integers(i, memory)
    places = (dst.rows, dst.start, x.rows, x.start, x.cols, weight.rows, weight.start, weight.cols)
    check = _checker(i, held, state.count, x.count)
    operations = 2 * x.count * x.cols * weight.cols
    arguments = (*places, state.rows, state.start, *held)
    return _over(recurrent.causal_conv, arguments, len(held[0]), check, operations)


@kernel_of(GATED_DELTA)
def bind_gated_delta(i: GATED_DELTA, memory: ArrayMemory) -> Thunk:
    """The gated delta rule of each sequence's new tokens, from and into its state."""
    dst, q, k, v, decay, beta, state = floats(i, memory, i.dst, i.q, i.k, i.v, i.decay, i.beta, i.state)
    a_log, dt_bias = (floats(i, memory, ref)[0].flat for ref in (i.a_log, i.dt_bias))
    held = _integers(i, memory)
    places = [value for one in (dst, q, k, v, decay) for value in (one.rows, one.start)]
    per_channel = decay.cols != i.heads
    sizes = (i.heads, i.heads // i.key_heads, i.key_dim, i.value_dim, np.float32(i.lower_bound), np.float32(L2_EPS))
    arguments = (
        *places, per_channel, beta.rows, beta.start, a_log, dt_bias, state.rows, state.start, *held, *sizes,
    )  # fmt: skip
    check = _checker(i, held, state.count, q.count)
    operations = 6 * q.count * i.heads * i.key_dim * i.value_dim
    return _over(recurrent.gated_delta, arguments, len(held[0]) * i.heads, check, operations)
