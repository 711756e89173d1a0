"""The header of a safetensors file, believed only after every number in it has been checked against the file."""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..isa.errors import ConfigError
from .config import no_constant, no_repeats
from .fields import short
from .paths import refuse_endless

LARGEST_HEADER_BYTES = 100_000_000  # the format's own limit
DTYPE_BITS = {
    "F64": 64,
    "F32": 32,
    "F16": 16,
    "BF16": 16,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "F8_E8M0": 8,
    "I64": 64,
    "U64": 64,
    "I32": 32,
    "U32": 32,
    "I16": 16,
    "U16": 16,
    "I8": 8,
    "U8": 8,
    "BOOL": 8,
    "F4": 4,
}


@dataclass(frozen=True)
class Entry:
    """One tensor of a file: `begin` and `end` are byte offsets after the header."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def read_header(path: Path) -> dict[str, Entry]:
    """The tensors of a safetensors file by name.

    Raises ConfigError, naming the file and the field, when the file is truncated, its header is no JSON, or a tensor's
    dtype, shape and data_offsets do not agree with each other, with their neighbours or with the size of the file.
    """
    raw, data_bytes = _load(path)
    entries = [_entry(path, name, value) for name, value in raw.items() if name != "__metadata__"]
    _check_layout(path, entries, data_bytes)
    return {entry.name: entry for entry in entries}


def _load(path: Path) -> tuple[dict[str, Any], int]:
    try:
        refuse_endless(path)
        size = path.stat().st_size
        with path.open("rb") as file:
            prefix = file.read(8)
            if len(prefix) < 8:
                raise ConfigError(f"{path}: {size} bytes is too short for a safetensors file; it is truncated")
            (length,) = struct.unpack("<Q", prefix)
            if length > min(size - 8, LARGEST_HEADER_BYTES):
                raise ConfigError(
                    f"{path}: header length {length} does not fit in a file of {size} bytes; "
                    "it is truncated or no safetensors file"
                )
            header = file.read(length)
        raw = json.loads(header.decode("utf-8"), parse_constant=no_constant, object_pairs_hook=no_repeats)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror or error})") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: header is not valid JSON ({error})") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: header is a JSON {type(raw).__name__}; it must be an object")
    return raw, size - 8 - length


def _entry(path: Path, name: str, value: Any) -> Entry:
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: {name} is {short(value)}; it must be an object with dtype, shape and data_offsets")
    dtype: Any = value.get("dtype")
    shape: Any = value.get("shape")
    offsets: Any = value.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise ConfigError(f"{path}: {name}: dtype is {short(dtype)}; known: {', '.join(DTYPE_BITS)}")
    if not _whole(shape):
        raise ConfigError(f"{path}: {name}: shape is {short(shape)}; it must be a list of sizes")
    if not _whole(offsets) or len(offsets) != 2:
        raise ConfigError(f"{path}: {name}: data_offsets is {short(offsets)}; it must be [begin, end]")
    return Entry(name, dtype, tuple(shape), offsets[0], offsets[1])


def _check_layout(path: Path, entries: list[Entry], data_bytes: int) -> None:
    """The tensors must tile the data: right sizes, no overlap, no hole, nothing beyond the end, nothing left over."""
    position = 0
    for entry in sorted(entries, key=lambda entry: (entry.begin, entry.end)):
        where = f"{path}: {entry.name}: data_offsets [{entry.begin}, {entry.end}]"
        wanted = -(-math.prod(entry.shape) * DTYPE_BITS[entry.dtype] // 8)
        if entry.end - entry.begin != wanted:
            raise ConfigError(
                f"{where} span {entry.end - entry.begin} bytes; "
                f"{entry.dtype} of shape {list(entry.shape)} takes {wanted}"
            )
        if entry.end > data_bytes:
            raise ConfigError(f"{where} reach beyond the {data_bytes} bytes of data in the file; it is truncated")
        if entry.begin < position:
            raise ConfigError(f"{where} overlap the tensor before it, which ends at {position}")
        if entry.begin > position:
            raise ConfigError(f"{where} leave {entry.begin - position} bytes before them to no tensor")
        position = entry.end
    if position != data_bytes:
        raise ConfigError(f"{path}: {data_bytes - position} bytes after the last tensor belong to no tensor")


def _whole(value: Any) -> bool:
    """A list of whole numbers from 0; JSON's true and 1.0 are neither."""
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)
