"""Instructions of linear attention, whose memory of a sequence is a state of fixed size: CAUSAL_CONV and GATED_DELTA.

A state is a row of a buffer [slots, elements]; slots[b] is the row of sequence b. A sequence whose new tokens are its
first (as many as it holds) starts from zeros whatever the row held, so a row needs no clearing between sequences. Their
new tokens stand one after the other, or, where `starts` is given, from row starts[b] on; other rows are left alone.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .errors import ProgramError
from .instruction import (
    Array,
    Instruction,
    Memory,
    Shapes,
    Sizes,
    bytes_of,
    require,
    require_apart,
    require_columns,
    require_floats,
    require_rows,
)
from .operands import ExtentName, In, InOut, OptionalIn, Out, Ref
from .work import StateShape, Unit, VectorShape, Work

L2_EPS = 1e-6  # under the root of query and key norms, as flash-linear-attention has it
CHUNK_TOKENS = 64  # tokens whose updates a chunked schedule condenses into products


def _check_sequences(
    instruction: Instruction, t: Shapes, state: Ref, slots: Ref, q_lens: Ref, kv_lens: Ref, starts: Ref | None
) -> None:
    kinds = [t.type_of(ref) for ref in (slots, q_lens, kv_lens, starts) if ref is not None]
    require(
        all(kind == kinds[0] for kind in kinds) and len(kinds[0].shape) == 1 and kinds[0].dtype.name == "int32",
        instruction,
        f"slots, q_lens and kv_lens (and starts) are {', '.join(map(str, kinds))}, must be int32 [sequences]",
    )
    require(len(t.type_of(state).shape) == 2, instruction, f"state is {t.type_of(state)}, must be [slots, elements]")


def _bound_lengths(
    instruction: Instruction, s: Sizes, q_extent: str, kv_extent: str, sequences: int, tokens: int, some: bool
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """New tokens and all tokens of every sequence, from the extents; ProgramError for lengths that cannot be.

    `some` allows rows that are no sequence's.
    """
    q_lens, kv_lens = s.extent(q_extent), s.extent(kv_extent)
    where = f"{instruction.mnemonic}: {{}} (in: {instruction})"
    if not len(q_lens) == len(kv_lens) == sequences:
        raise ProgramError(
            where.format(
                f"{len(q_lens)} lengths in {q_extent}, {len(kv_lens)} in {kv_extent}, for {sequences} sequences"
            )
        )
    for new, length in zip(q_lens, kv_lens, strict=True):
        if not 0 <= new <= length:
            raise ProgramError(where.format(f"{new} new tokens of a sequence of {length}"))
    if sum(q_lens) != tokens and not (some and sum(q_lens) < tokens):
        raise ProgramError(where.format(f"{tokens} rows for {sum(q_lens)} new tokens"))
    return q_lens, kv_lens


def _sequences(
    instruction: CAUSAL_CONV | GATED_DELTA,
    m: Memory,
    bound: tuple[tuple[int, ...], tuple[int, ...]],
    rows: int,
) -> Iterator[tuple[slice, int, bool]]:
    """(rows of its new tokens, slot, whether they are its first) of every sequence that has new tokens."""
    held, tokens = m.get(instruction.slots), m.shape(instruction.dst)[0]
    follow = np.cumsum([0, *bound[0]])[:-1]
    starts = follow if instruction.starts is None else m.get(instruction.starts)
    for slot, start, new, length in zip(held.tolist(), starts.tolist(), *bound, strict=True):
        if new:
            require_rows(instruction, np.array([slot]), rows, "slot")
            require_rows(instruction, np.array([start, start + new - 1]), tokens, "row")
            yield slice(start, start + new), slot, new == length


def _rows_bytes(s: Sizes, rows: int, *refs: Ref) -> int:
    """Bytes of so many rows of operands together."""
    return sum(s.type_of(ref).dtype.bytes_of(rows * s.shape(ref)[-1]) for ref in refs)


def silu(x: Array) -> Array:
    """x * sigmoid(x) in float32."""
    return np.asarray(x / (np.float32(1) + np.exp(-x)))


class CAUSAL_CONV(Instruction, opcode=0x64, unit=Unit.VECTOR):
    """dst[t] = silu(sum over j of weight[:, j] * x[t - kernel + 1 + j]): a depthwise convolution over each sequence.

    x and dst are [tokens, channels], weight is [channels, kernel], its last column for the token itself. A state row
    holds the last kernel - 1 inputs of a sequence, oldest first, and is brought up to date. Sums are in fp32.
    """

    dst: Out
    x: In
    weight: In
    state: InOut
    slots: In
    q_lens: In
    kv_lens: In
    q_extent: ExtentName
    kv_extent: ExtentName
    starts: OptionalIn = None

    def check(self, t: Shapes) -> None:
        x, dst, weight = t.type_of(self.x), t.type_of(self.dst), t.type_of(self.weight)
        require(len(x.shape) == 2 and dst.shape == x.shape, self, f"dst is {dst} and x is {x}, must be [tokens, n]")
        require_columns(self, t, self.x)
        require(
            len(weight.shape) == 2 and weight.shape[0] == x.shape[1] and isinstance(weight.shape[1], int),
            self,
            f"weight is {weight}, must be [{x.shape[1]}, kernel]",
        )
        channels, kernel = weight.shape
        assert isinstance(channels, int) and isinstance(kernel, int), "checked above"
        require(kernel > 1, self, f"a kernel of {kernel} has no state; it must be 2 or more")
        _check_sequences(self, t, self.state, self.slots, self.q_lens, self.kv_lens, self.starts)
        state = t.type_of(self.state)
        row = (kernel - 1) * channels
        require(state.shape[1] == row, self, f"state is {state}, must be [slots, {row}]")
        require_floats(self, t, self.dst, self.x, self.weight, self.state)
        require_apart(self, self.dst, self.x, self.weight, self.state)

    def _lengths(self, s: Sizes) -> tuple[tuple[int, ...], tuple[int, ...]]:
        sequences, tokens = s.shape(self.q_lens)[0], s.shape(self.x)[0]
        some = self.starts is not None
        return _bound_lengths(self, s, self.q_extent, self.kv_extent, sequences, tokens, some)

    def work(self, s: Sizes) -> Work:
        channels = s.shape(self.x)[1]
        q_lens, kv_lens = self._lengths(s)
        tokens = sum(q_lens)
        row_bytes = s.type_of(self.state).dtype.bytes_of(s.shape(self.state)[1])
        active = sum(new > 0 for new in q_lens)
        begun = sum(0 < new < length for new, length in zip(q_lens, kv_lens, strict=True))
        return Work(
            Unit.VECTOR,
            ops=tokens * channels * (2 * s.shape(self.weight)[1] + 4),
            read_bytes=_rows_bytes(s, tokens, self.x) + bytes_of(s, self.weight) + begun * row_bytes,
            write_bytes=_rows_bytes(s, tokens, self.dst) + active * row_bytes,
            dtype=s.type_of(self.x).dtype,
            shape=VectorShape(tokens, channels),
        )

    def execute(self, m: Memory) -> None:
        x, weight, state = m.get(self.x), m.get(self.weight), m.get(self.state).copy()
        channels, kernel = weight.shape
        out = np.zeros(m.shape(self.dst), np.float32) if self.starts is None else m.get(self.dst).copy()
        for rows, slot, is_first in _sequences(self, m, self._lengths(m), len(state)):
            before = np.zeros((kernel - 1, channels), np.float32)
            if not is_first:
                before[:] = state[slot].reshape(kernel - 1, channels)
            inputs = np.concatenate([before, x[rows]])
            count = rows.stop - rows.start
            out[rows] = silu(sum(weight[:, j] * inputs[j : j + count] for j in range(kernel)))
            state[slot] = inputs[-(kernel - 1) :].reshape(-1)
        m.put(self.dst, out)
        m.put(self.state, state)


class GATED_DELTA(Instruction, opcode=0x1C, unit=Unit.TENSOR):
    """The gated delta rule over new tokens: prefill, decode, or both in one batch, each sequence from its state.

    Per head and token, on a state S [key_dim, value_dim] in fp32: S *= exp(g) (of the head, or of each key channel);
    S += k (sigmoid(beta) * (v - k S))^T; dst = q S. Query and key are L2-normalised (q also by key_dim^-0.5); value
    head h uses key head h * key_heads // heads. g = -exp(a_log) * softplus(decay + dt_bias), or with a lower bound
    below 0 g = lower_bound * sigmoid(exp(a_log) * (decay + dt_bias)). decay and dt_bias have a column a head, or
    heads * key_dim. A state row is [heads, key_dim, value_dim]. Work counts the chunked schedule, which gives the
    same numbers.
    """

    dst: Out
    q: In
    k: In
    v: In
    decay: In
    beta: In
    a_log: In
    dt_bias: In
    state: InOut
    slots: In
    q_lens: In
    kv_lens: In
    q_extent: ExtentName
    kv_extent: ExtentName
    heads: int
    key_heads: int
    key_dim: int
    value_dim: int
    lower_bound: float
    starts: OptionalIn = None

    @property
    def _rows(self) -> tuple[Ref, ...]:
        return (self.q, self.k, self.v, self.decay, self.beta)

    @property
    def _inputs(self) -> tuple[Ref, ...]:
        return (*self._rows, self.a_log, self.dt_bias)

    def check(self, t: Shapes) -> None:
        for name in ("heads", "key_heads", "key_dim", "value_dim"):
            require(getattr(self, name) > 0, self, f"{name} must be above 0")
        require(
            self.heads % self.key_heads == 0,
            self,
            f"heads={self.heads} is not a multiple of key_heads={self.key_heads}",
        )
        require(self.lower_bound <= 0, self, f"lower_bound={self.lower_bound} must be 0 (none) or below")
        channels = t.type_of(self.decay).shape[-1]
        keys, values = self.key_heads * self.key_dim, self.heads * self.value_dim
        require(
            channels in (self.heads, self.heads * self.key_dim),
            self,
            f"decay has {channels} columns, must have {self.heads} or {self.heads * self.key_dim}",
        )
        tokens = t.type_of(self.q).shape[:1]
        for name, columns in (("q", keys), ("k", keys), ("v", values), ("dst", values), ("beta", self.heads)):
            kind = t.type_of(getattr(self, name))
            require(kind.shape == (*tokens, columns), self, f"{name} is {kind}, must be [{tokens[0]}, {columns}]")
        require(t.type_of(self.decay).shape[:-1] == tokens, self, f"decay is {t.type_of(self.decay)}")
        for name, size in (("a_log", self.heads), ("dt_bias", channels)):
            kind = t.type_of(getattr(self, name))
            require(kind.shape == (size,), self, f"{name} is {kind}, must be [{size}]")
        self._check_state(t)

    def _check_state(self, t: Shapes) -> None:
        _check_sequences(self, t, self.state, self.slots, self.q_lens, self.kv_lens, self.starts)
        state, row = t.type_of(self.state), self.heads * self.key_dim * self.value_dim
        require(
            state.shape[1] == row and state.dtype.name == "fp32", self, f"state is {state}, must be fp32 [slots, {row}]"
        )
        require_floats(self, t, self.dst, *self._inputs)
        require_apart(self, self.dst, *self._inputs, self.state)

    def _lengths(self, s: Sizes) -> tuple[tuple[int, ...], tuple[int, ...]]:
        sequences, tokens = s.shape(self.q_lens)[0], s.shape(self.q)[0]
        some = self.starts is not None
        return _bound_lengths(self, s, self.q_extent, self.kv_extent, sequences, tokens, some)

    def work(self, s: Sizes) -> Work:
        q_lens, kv_lens = self._lengths(s)
        state_bytes = s.type_of(self.state).dtype.bytes_of(s.shape(self.state)[1])
        active = sum(new > 0 for new in q_lens)
        begun = sum(0 < new < length for new, length in zip(q_lens, kv_lens, strict=True))
        chunk = min(CHUNK_TOKENS, max(q_lens, default=1))
        # three products with the state, and within a chunk k k^T, q k^T, the solve for k and v, and its use
        depth = 3 * self.key_dim + -(-chunk * (3 * self.key_dim + 2 * self.value_dim) // self.value_dim) * (chunk > 1)
        rows = tuple(new for new in q_lens if new) * self.heads
        return Work(
            Unit.TENSOR,
            ops=2 * sum(rows) * self.value_dim * depth,
            read_bytes=_rows_bytes(s, sum(q_lens), *self._rows)
            + bytes_of(s, self.a_log, self.dt_bias)
            + begun * state_bytes,
            write_bytes=_rows_bytes(s, sum(q_lens), self.dst) + active * state_bytes,
            dtype=s.type_of(self.q).dtype,
            shape=StateShape(rows, self.value_dim, depth),
        )

    def execute(self, m: Memory) -> None:
        state = m.get(self.state).copy()
        q, k = (_normal(m.get(ref).reshape(-1, self.key_heads, self.key_dim)) for ref in (self.q, self.k))
        group = self.heads // self.key_heads
        q, k = (q * np.float32(self.key_dim**-0.5)).repeat(group, axis=1), k.repeat(group, axis=1)
        v = m.get(self.v).reshape(-1, self.heads, self.value_dim)
        kept, beta = np.exp(self._log_decay(m)), np.float32(1) / (np.float32(1) + np.exp(-m.get(self.beta)))
        out = np.zeros((len(v), self.heads, self.value_dim), np.float32)
        if self.starts is not None:
            out[:] = m.get(self.dst).reshape(out.shape)
        for rows, slot, is_first in _sequences(self, m, self._lengths(m), len(state)):
            s = state[slot].reshape(self.heads, self.key_dim, self.value_dim) * np.float32(not is_first)
            for t in range(rows.start, rows.stop):
                s = s * kept[t]
                change = (v[t] - np.einsum("hk,hkv->hv", k[t], s)) * beta[t][:, None]
                s = s + k[t][:, :, None] * change[:, None, :]
                out[t] = np.einsum("hk,hkv->hv", q[t], s)
            state[slot] = s.reshape(-1)
        m.put(self.dst, out.reshape(len(v), -1))
        m.put(self.state, state)

    def _log_decay(self, m: Memory) -> Array:
        """g, [tokens, heads, 1 or key_dim, 1]."""
        shifted = (m.get(self.decay) + m.get(self.dt_bias)).reshape(m.shape(self.q)[0], self.heads, -1, 1)
        rate = np.exp(m.get(self.a_log))[None, :, None, None]
        if self.lower_bound:
            return np.asarray(np.float32(self.lower_bound) / (np.float32(1) + np.exp(-rate * shifted)))
        return np.asarray(-rate * np.logaddexp(np.float32(0), shifted))


def _normal(x: Array) -> Array:
    """x over its L2 norm, along the last axis."""
    return np.asarray(x / np.sqrt(np.sum(x * x, axis=-1, keepdims=True, dtype=np.float32) + np.float32(L2_EPS)))
