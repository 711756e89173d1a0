"""All-reduce with compressed payloads: int8 or fp8 codes with a scale a block on the wire, float32 sums, and its error.

Every member keeps its partial sums in float32. What is sent is quantised block by block along its part: scale = largest
magnitude / largest code, code = value / scale rounded to nearest, ties to even. The receiver adds the values that the
codes stand for. A finished part is quantised once, by the member that finished it, which takes those values for its own
too; from then on codes are handed on as they are, so that all members end with the same bits. So a direct all-reduce
rounds every contribution once and every sum once; a ring also rounds at each hop, and its error grows with the group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...isa.dtype import DTYPES, FP32, DType, decode, encode
from ...isa.errors import ConfigError, ProgramError
from .execute import Array, even_parts
from .plan import Plan

SCALE_BYTES = 4  # a float32 a block
CODES: dict[str, float] = {"int8": 127.0, "fp8_e4m3": 448.0, "fp8_e5m2": 57344.0}


@dataclass(frozen=True)
class Compression:
    """How payloads travel: `wire` codes (int8, fp8_e4m3, fp8_e5m2) in blocks of `block` elements, a scale each."""

    wire: DType = DTYPES["int8"]
    block: int = 128

    def __post_init__(self) -> None:
        if self.wire.name not in CODES:
            raise ConfigError(f"{self.wire} is no wire format of a compressed all-reduce; choose {', '.join(CODES)}")
        if self.block < 1:
            raise ConfigError(f"blocks of {self.block} elements; choose 1 or more")

    def wire_bytes(self, count: int) -> int:
        """Bytes of `count` elements on the wire: codes, and a float32 scale for every block begun."""
        return count * self.wire.itemsize_bytes + -(-count // self.block) * SCALE_BYTES

    def rounded(self, values: Array) -> Array:
        """The float32 values that the codes of some float32 values stand for. ProgramError where one is not finite."""
        if not np.isfinite(values).all():
            raise ProgramError(f"a compressed all-reduce over {self.wire} met a value that is not finite")
        padded = np.zeros(-(-len(values) // self.block) * self.block, np.float32)
        padded[: len(values)] = values
        blocks = padded.reshape(-1, self.block)
        largest = np.abs(blocks).max(axis=1, initial=0, keepdims=True)
        scale = (largest / np.float32(CODES[self.wire.name])).astype(np.float32)
        safe = np.where(scale > 0, scale, np.float32(1))
        codes = np.clip(blocks / safe, -CODES[self.wire.name], CODES[self.wire.name])
        codes = np.rint(codes) if not self.wire.is_float else decode(encode(codes, self.wire), self.wire)
        return np.asarray(codes * scale, np.float32).reshape(-1)[: len(values)]


@dataclass(frozen=True)
class CompressionError:
    """How far the result is from the exact sum (float64): `max_abs`, `rms` over the sum's own rms, and their cosine."""

    max_abs: float
    relative_rms: float
    cosine: float


def compressed_sizes(plan: Plan, count: int, compression: Compression) -> tuple[int, ...]:
    """Bytes on the wire of every part of the plan when `count` elements are reduced, as `group_amounts` takes them."""
    return tuple(compression.wire_bytes(part.stop - part.start) for part in even_parts(count, plan.parts))


def compressed_all_reduce(
    plan: Plan, buffers: Sequence[Array], dtype: DType, compression: Compression
) -> CompressionError:
    """All-reduce flat storage arrays of one length in place, by any all-reduce plan, and report the error.

    ProgramError for another collective, for buffers that do not fit, or for values that are not finite.
    """
    if plan.collective != "all_reduce" or plan.uses_switch or not dtype.is_float:
        raise ProgramError(f"{plan.name} over {dtype}: compression is for all_reduce between members, of floats")
    shapes = {(buffer.shape, buffer.dtype) for buffer in buffers}
    if len(buffers) != plan.size or len(shapes) != 1 or buffers[0].ndim != 1 or buffers[0].dtype != dtype.storage:
        raise ProgramError(f"{plan.name}: give {plan.size} flat arrays of one length, {dtype.storage} for {dtype}")
    sums = [np.array(decode(buffer, dtype), np.float32) for buffer in buffers]
    exact = np.sum([values.astype(np.float64) for values in sums], axis=0)
    parts = even_parts(len(sums[0]), plan.parts) if plan.parts else ()
    _run(plan, sums, parts, compression)
    for buffer, values in zip(buffers, sums, strict=True):
        buffer[...] = values if dtype is FP32 else encode(values, dtype)
    return _error(decode(buffers[0], dtype).astype(np.float64), exact)


def _run(plan: Plan, sums: list[Array], parts: Sequence[slice], compression: Compression) -> None:
    settled: set[tuple[int, int]] = set()  # (member, part) whose values are already what codes stand for
    for step in plan.steps:
        moves = [(t, sums[t.source][parts[t.part]]) for t in step.transfers]
        arriving: list[Any] = []
        for transfer, values in moves:
            if transfer.reduces:
                arriving.append(compression.rounded(values))
                continue
            if (transfer.source, transfer.part) not in settled:
                values[...] = compression.rounded(values)
                settled.add((transfer.source, transfer.part))
            arriving.append(values.copy())
        for (transfer, _), values in zip(moves, arriving, strict=True):
            own = sums[transfer.target][parts[transfer.part]]
            if transfer.reduces:
                own += values
            else:
                own[...] = values
                settled.add((transfer.target, transfer.part))


def _error(found: Array, exact: Array) -> CompressionError:
    if not exact.size:
        return CompressionError(0.0, 0.0, 1.0)
    apart = found - exact
    size = float(np.sqrt(np.mean(exact**2)))
    lengths = float(np.linalg.norm(found) * np.linalg.norm(exact))
    return CompressionError(
        float(np.abs(apart).max()),
        float(np.sqrt(np.mean(apart**2))) / size if size else 0.0,
        float(found @ exact) / lengths if lengths else 1.0,
    )
