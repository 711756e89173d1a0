"""Element types: names, aliases and sizes, the only table of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from .errors import ConfigError, NotYetError


@dataclass(frozen=True)
class DType:
    """One element type as a card stores it.

    `bits` is the stored size of one element. `storage` is the NumPy type of the bytes in device memory (bf16 and fp8
    live as unsigned integers, so that compiled kernels can read them); `value` is the NumPy type that gives those bytes
    their meaning.
    """

    name: str
    code: int
    bits: int
    storage: np.dtype[Any]
    value: np.dtype[Any]
    is_float: bool

    @property
    def itemsize_bytes(self) -> int:
        """Bytes of one element; sub-byte types have no whole itemsize and raise."""
        if self.bits % 8:
            raise ConfigError(f"{self.name} packs {8 // self.bits} elements in a byte; use bytes_of(count)")
        return self.bits // 8

    def bytes_of(self, count: int) -> int:
        """Bytes that `count` elements take, rounded up to whole bytes."""
        return -(-count * self.bits // 8)

    def __repr__(self) -> str:
        return self.name


def _table() -> dict[str, DType]:
    rows: list[tuple[str, int, Any, Any, bool]] = [
        ("fp32", 32, np.float32, np.float32, True),
        ("fp16", 16, np.float16, np.float16, True),
        ("bf16", 16, np.uint16, ml_dtypes.bfloat16, True),
        ("fp8_e4m3", 8, np.uint8, ml_dtypes.float8_e4m3fn, True),
        ("fp8_e5m2", 8, np.uint8, ml_dtypes.float8_e5m2, True),
        ("mxfp4", 4, np.uint8, ml_dtypes.float4_e2m1fn, True),
        ("int8", 8, np.int8, np.int8, False),
        ("int4", 4, np.uint8, ml_dtypes.int4, False),
        ("uint8", 8, np.uint8, np.uint8, False),
        ("int32", 32, np.int32, np.int32, False),
        ("int64", 64, np.int64, np.int64, False),
        ("e8m0", 8, np.uint8, ml_dtypes.float8_e8m0fnu, True),
    ]
    return {
        name: DType(name, code, bits, np.dtype(storage), np.dtype(value), is_float)
        for code, (name, bits, storage, value, is_float) in enumerate(rows)
    }


DTYPES: dict[str, DType] = _table()
FP32, FP16, BF16, INT32, INT64 = (DTYPES[name] for name in ("fp32", "fp16", "bf16", "int32", "int64"))

ALIASES: dict[str, str] = {
    "float32": "fp32",
    "float": "fp32",
    "f32": "fp32",
    "float16": "fp16",
    "half": "fp16",
    "f16": "fp16",
    "bfloat16": "bf16",
    "fp8": "fp8_e4m3",
    "float8_e4m3fn": "fp8_e4m3",
    "e4m3": "fp8_e4m3",
    "float8_e5m2": "fp8_e5m2",
    "e5m2": "fp8_e5m2",
    "fp4": "mxfp4",
    "e2m1": "mxfp4",
    "float4_e2m1fn": "mxfp4",
    "float8_e8m0fnu": "e8m0",
    "ue8m0": "e8m0",
    "i8": "int8",
    "i32": "int32",
    "i64": "int64",
}


def parse_dtype(text: str) -> DType:
    """The element type named `text` (an isa name or a usual alias, `torch.` prefix allowed).

    Raises ConfigError with the known names.
    """
    name = text.strip().lower().removeprefix("torch.")
    name = ALIASES.get(name, name)
    if name not in DTYPES:
        known = ", ".join(DTYPES)
        raise ConfigError(f"unknown dtype {text!r}; known: {known} (aliases: {', '.join(sorted(ALIASES))})")
    return DTYPES[name]


def dtype_of_code(code: int) -> DType:
    """The element type with this binary code; ConfigError when there is none."""
    for dtype in DTYPES.values():
        if dtype.code == code:
            return dtype
    raise ConfigError(f"no dtype has code {code}; codes run from 0 to {len(DTYPES) - 1}")


def decode(stored: np.ndarray[Any, Any], dtype: DType) -> np.ndarray[Any, Any]:
    """Stored elements as float32 (floats) or as they are (integers); exact for every 8- and 16-bit float.

    fp32 and integers come back as the same array, not a copy. NotYetError for packed sub-byte types.
    """
    _refuse_packed(dtype)
    if not dtype.is_float:
        return stored
    if dtype is FP32:
        return stored
    return stored.view(dtype.value).astype(np.float32)


def encode(values: np.ndarray[Any, Any], dtype: DType) -> np.ndarray[Any, Any]:
    """Round values to `dtype` (nearest, ties to even) and return them in storage form.

    Beyond the largest finite value lies infinity, or NaN where the type has none (fp8_e4m3). Integer types take
    integers that fit, anything else is a ConfigError: what a float becomes as an integer is a quantiser's rule.
    """
    _refuse_packed(dtype)
    values = np.asarray(values)
    if not dtype.is_float:
        return _whole(values, dtype)
    with np.errstate(over="ignore", invalid="ignore"):  # overflow to infinity is the rule here, not an accident
        return values.astype(dtype.value).view(dtype.storage)


def _refuse_packed(dtype: DType) -> None:
    if dtype.bits < 8:
        raise NotYetError(f"{dtype.name} packs {8 // dtype.bits} elements in a byte: its values cannot be computed yet")


def _whole(values: np.ndarray[Any, Any], dtype: DType) -> np.ndarray[Any, Any]:
    limits = np.iinfo(dtype.storage)
    if values.dtype.kind not in "iu" or (values.size and (values.min() < limits.min or values.max() > limits.max)):
        raise ConfigError(f"{dtype.name} takes integers from {limits.min} to {limits.max}, not these {values.dtype}")
    return values.astype(dtype.storage)
