"""What the format tests share: floats that try every corner, and gfloat's name for each of our formats."""

from typing import Any

import numpy as np
from gfloat import FormatInfo
from gfloat.formats import (
    format_info_bfloat16,
    format_info_binary16,
    format_info_ocp_e2m1,
    format_info_ocp_e4m3,
    format_info_ocp_e5m2,
)

from siltwin.isa.formats.elements import FLOAT_FORMATS, FloatFormat, decode_float

Array = np.ndarray[Any, Any]

GFLOAT: dict[str, FormatInfo] = {
    "fp16": format_info_binary16,
    "bf16": format_info_bfloat16,
    "fp8_e4m3": format_info_ocp_e4m3,
    "fp8_e5m2": format_info_ocp_e5m2,
    "mxfp4": format_info_ocp_e2m1,
}


def all_codes(fmt: FloatFormat) -> Array:
    return np.arange(1 << fmt.bits).astype(fmt.code_dtype)


def hostile_floats(name: str, count: int = 1_000_000) -> Array:
    """`count` float32: any bits at all, the format's own range, every tie between neighbours and both sides of it."""
    fmt = FLOAT_FORMATS[name]
    rng = np.random.default_rng(len(name))
    values = decode_float(all_codes(fmt), fmt)
    finite = np.unique(values[np.isfinite(values)]).astype(np.float64)
    step_beyond = finite[-1] + (finite[-1] - finite[-2])  # where the next value would stand, had the format one
    grid = np.concatenate([[-step_beyond], finite, [step_beyond]])
    with np.errstate(over="ignore"):
        ties = ((grid[1:] + grid[:-1]) / 2).astype(np.float32)
        near = np.concatenate([np.nextafter(ties, np.float32(side)) for side in (-np.inf, np.inf)])
    corners = np.array([0.0, -0.0, np.inf, -np.inf, 1e-45, -1e-45, 3.4028235e38, -3.4028235e38], np.float32)
    special = np.concatenate([ties, near, finite.astype(np.float32), corners])
    low, high = np.log2(abs(finite[finite != 0])).min() - 3, min(np.log2(finite[-1]) + 2, 127)
    left = max(count - special.size, 0)
    signs = rng.choice([-1, 1], left // 2)
    own = (signs * 2 ** rng.uniform(low, high, left // 2)).astype(np.float32)
    anything = rng.integers(0, 1 << 32, left - left // 2, dtype=np.uint32).view(np.float32)
    return np.concatenate([special, own, anything])
