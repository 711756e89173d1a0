"""The header of a GGUF file: its metadata and its tensor table, checked against the file.

The gguf library's own reader believes every count it meets and takes seconds over a vocabulary; this one checks bounds
first. Block sizes, dequantisation and tensor names still come from the library.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..isa.errors import ConfigError, NotYetError
from ..isa.late import late
from .paths import refuse_endless

if TYPE_CHECKING:
    import gguf
else:
    gguf = late("gguf")

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_VERSIONS = (2, 3)
_MOST_DIMENSIONS = 4


@dataclass(frozen=True)
class GgufTensor:
    """One tensor: `shape` is [rows, columns] (GGUF itself lists columns first), `begin` a byte offset in the file."""

    name: str
    kind: gguf.GGMLQuantizationType
    shape: tuple[int, ...]
    begin: int
    num_bytes: int


@dataclass(frozen=True)
class GgufFile:
    """A GGUF file, mapped."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]
    content: mmap.mmap


class _Cursor:
    """Reads forward through the header; a length that runs past the file is an error that names the field."""

    def __init__(self, path: Path, content: mmap.mmap) -> None:
        self.path, self.content, self.position, self.field = path, content, 0, "magic"

    def fault(self, what: str) -> ConfigError:
        return ConfigError(f"{self.path}: {self.field}: {what}")

    def need(self, num_bytes: int) -> int:
        """Step over `num_bytes` and return where they begin."""
        begin = self.position
        if num_bytes > len(self.content) - begin:
            raise self.fault(f"needs {num_bytes} bytes at offset {begin} of {len(self.content)}; the file is truncated")
        self.position += num_bytes
        return begin

    def scalar(self, code: str) -> Any:
        return struct.unpack_from("<" + code, self.content, self.need(struct.calcsize("<" + code)))[0]

    def string(self) -> str:
        length = self.scalar("Q")
        begin = self.need(length)
        try:
            return self.content[begin : begin + length].decode("utf-8")
        except UnicodeDecodeError:
            raise self.fault("is no UTF-8 text") from None

    def value(self) -> Any:
        kind = self.scalar("I")
        if kind == _ARRAY:
            return self.array()
        if kind == _STRING:
            return self.string()
        if kind not in _SCALARS:
            raise self.fault(f"has value type {kind}, which GGUF does not define")
        return self.scalar(_SCALARS[kind])

    def array(self) -> list[Any]:
        kind, count = self.scalar("I"), self.scalar("Q")
        if kind == _STRING:
            if count * 8 > len(self.content) - self.position:
                raise self.fault(f"claims {count} strings; the file is too short for them")
            return [self.string() for _ in range(count)]
        if kind not in _SCALARS:
            raise self.fault(f"is an array of value type {kind}, which is not supported")
        code = _SCALARS[kind]
        begin = self.need(count * struct.calcsize("<" + code))
        return list(struct.unpack_from(f"<{count}{code}", self.content, begin))


def read_gguf(path: Path) -> GgufFile:
    """The header of a GGUF file.

    Raises ConfigError, naming the file and the field, when it is truncated or its numbers lie; NotYetError for a tensor
    type the library cannot decode and for files split over several.
    """
    try:
        refuse_endless(path)
        with path.open("rb") as file:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:  # mmap refuses an empty file with ValueError
        raise ConfigError(f"{path}: cannot be read ({error})") from None
    cursor = _Cursor(path, content)
    tensor_count, metadata_count = _preamble(cursor)
    metadata = _metadata(cursor, metadata_count)
    if metadata.get("split.count", 1) > 1:
        raise NotYetError(f"{path}: is one of {metadata['split.count']} parts; merge them with gguf-split --merge")
    return GgufFile(path, metadata, _tensors(cursor, tensor_count, metadata), content)


def _preamble(cursor: _Cursor) -> tuple[int, int]:
    begin = cursor.need(4)
    if cursor.content[begin : begin + 4] != b"GGUF":
        raise cursor.fault("the file does not begin with GGUF; it is no GGUF file")
    cursor.field = "version"
    version = cursor.scalar("I")
    if version not in _VERSIONS:
        raise cursor.fault(f"{version} is not supported; known: 2 and 3 (little-endian)")
    cursor.field = "counts"
    return cursor.scalar("Q"), cursor.scalar("Q")


def _metadata(cursor: _Cursor, count: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for index in range(count):
        cursor.field = f"metadata key {index}"
        key = cursor.string()
        cursor.field = key
        if key in found:
            raise cursor.fault("stands twice")
        found[key] = cursor.value()
    return found


def _tensors(cursor: _Cursor, count: int, metadata: dict[str, Any]) -> dict[str, GgufTensor]:
    found: dict[str, GgufTensor] = {}
    for index in range(count):
        cursor.field = f"tensor {index}"
        name = cursor.string()
        cursor.field = name
        if name in found:
            raise cursor.fault("stands twice in the tensor table")
        found[name] = _tensor(cursor, name)
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1:
        raise ConfigError(f"{cursor.path}: general.alignment is {alignment!r}; it must be a positive number of bytes")
    start = -(-cursor.position // alignment) * alignment
    placed = {
        name: GgufTensor(name, tensor.kind, tensor.shape, start + tensor.begin, tensor.num_bytes)
        for name, tensor in found.items()
    }
    _check_layout(cursor, placed)
    return placed


def _tensor(cursor: _Cursor, name: str) -> GgufTensor:
    """A row of the table; `begin` is still relative to the data."""
    dimensions = cursor.scalar("I")
    if not 1 <= dimensions <= _MOST_DIMENSIONS:
        raise cursor.fault(f"has {dimensions} dimensions; 1 to {_MOST_DIMENSIONS} are possible")
    shape = tuple(cursor.scalar("Q") for _ in range(dimensions))[::-1]
    code, begin = cursor.scalar("I"), cursor.scalar("Q")
    try:
        kind = gguf.GGMLQuantizationType(code)
    except ValueError:
        raise NotYetError(f"{cursor.path}: {name}: tensor type {code} is not known to the gguf library") from None
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    if shape[-1] % block:
        raise cursor.fault(f"rows of {shape[-1]} elements are no whole blocks of {block} ({kind.name})")
    return GgufTensor(name, kind, shape, begin, math.prod(shape) // block * block_bytes)


def _check_layout(cursor: _Cursor, tensors: dict[str, GgufTensor]) -> None:
    position, before = cursor.position, "the header"
    for tensor in sorted(tensors.values(), key=lambda tensor: tensor.begin):
        cursor.field = tensor.name
        end = tensor.begin + tensor.num_bytes
        if tensor.begin < position:
            raise cursor.fault(f"begins at byte {tensor.begin}, inside {before}, which ends at {position}")
        if end > len(cursor.content):
            raise cursor.fault(f"ends at byte {end} of {len(cursor.content)}; the file is truncated")
        position, before = end, tensor.name
