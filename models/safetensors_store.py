"""Safetensors checkpoints: one file, or shards under an index, checked on opening and read a slice at a time."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from ..isa.dtype import BF16, DTYPES, FP16, FP32, DType
from ..isa.errors import ConfigError, NotYetError, UnsupportedError
from .config import read_json
from .fields import cut, short
from .paths import is_there
from .safetensors_header import Entry, read_header
from .store import Array, Shape

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_DTYPES: dict[str, DType] = {"F32": FP32, "F16": FP16, "BF16": BF16}
_PACKED: dict[str, DType] = {  # codes, scales and shapes of packed weights
    "F8_E4M3": DTYPES["fp8_e4m3"],
    "F8_E5M2": DTYPES["fp8_e5m2"],
    "F8_E8M0": DTYPES["e8m0"],
    "U8": DTYPES["uint8"],
    "I8": DTYPES["int8"],
    "I32": DTYPES["int32"],
    "I64": DTYPES["int64"],
}
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.bin.index.json")


class SafetensorsStore:
    """The tensors of some safetensors files. Files are mapped when first read, never loaded whole."""

    def __init__(self, entries: dict[str, tuple[Path, Entry]]) -> None:
        self._entries = entries
        self._open: dict[Path, Any] = {}
        self._bytes: dict[Path, Array] = {}

    def names(self) -> Iterable[str]:
        """Every tensor in the files."""
        return self._entries.keys()

    def shape(self, name: str) -> Shape:
        """[rows, columns] or [elements]."""
        return self._entries[name][1].shape

    def dtype(self, name: str) -> DType:
        """fp32, fp16 or bf16; anything else is no weight that siltwin computes with, and raises."""
        path, entry = self._entries[name]
        if entry.dtype in _DTYPES:
            return _DTYPES[entry.dtype]
        message = f"{path}: {name}: dtype {entry.dtype} is not supported for a weight; known: {', '.join(_DTYPES)}"
        raise NotYetError(message) if entry.dtype.startswith("F8") else ConfigError(message)

    def stored_dtype(self, name: str) -> DType:
        """The element type of a tensor, be it a weight or a part of a packed one; ConfigError for any other."""
        path, entry = self._entries[name]
        dtype = (_DTYPES | _PACKED).get(entry.dtype)
        if dtype is None:
            raise ConfigError(f"{path}: {name}: dtype {entry.dtype} is no part of a packed weight")
        return dtype

    def where(self, name: str) -> str:
        """The shard that holds it."""
        return str(self._entries[name][0])

    def read(self, name: str, axis: int, start: int, stop: int) -> Array:
        """The slice in storage form; the library copies that slice only."""
        path, _ = self._entries[name]
        index = (slice(None),) * axis + (slice(start, stop),)
        values: Array = self._file(path).get_slice(name)[index]
        return values.view(self.dtype(name).storage)

    def read_stored(self, name: str, axis: int | None = None, part: slice = slice(None)) -> Array:
        """A tensor of any `stored_dtype`, or `part` of one of its axes, in storage form.

        The bytes are taken from the file itself, since the library gives NumPy no 8-bit floats.
        """
        path, entry = self._entries[name]
        if path not in self._bytes:
            content = np.memmap(path, np.uint8, mode="r")
            self._bytes[path] = content[8 + int.from_bytes(content[:8].tobytes(), "little") :]
        stored = self._bytes[path][entry.begin : entry.end]
        index = () if axis is None else (slice(None),) * axis + (part,)
        storage = self.stored_dtype(name).storage
        aligned = stored.view(storage) if stored.ctypes.data % storage.itemsize == 0 else stored.copy().view(storage)
        return np.array(aligned.reshape(entry.shape)[index])

    def _file(self, path: Path) -> Any:
        if path not in self._open:
            try:
                self._open[path] = safe_open(path, framework="numpy")
            except (SafetensorError, OSError) as error:
                raise ConfigError(f"{path}: cannot be read ({error})") from None
        return self._open[path]


def open_safetensors(directory: Path) -> SafetensorsStore:
    """The weights of a Hugging Face directory: model.safetensors, or the shards that its index names.

    Raises ConfigError naming the file and field for missing shards, tensors in the wrong shard or in two, and whatever
    `read_header` finds; UnsupportedError when there are only pickles.
    """
    if is_there(directory / SINGLE):
        path = directory / SINGLE
        return SafetensorsStore({name: (path, entry) for name, entry in read_header(path).items()})
    if is_there(directory / INDEX):
        return SafetensorsStore(_indexed(directory))
    pickles = sorted(path.name for pattern in _PICKLES for path in directory.glob(pattern))
    if pickles:
        raise UnsupportedError(
            f"{directory}: holds {', '.join(pickles[:3])} and no {SINGLE}; pickled weights can run code when opened, "
            "so siltwin never reads them. Save the model again with safe_serialization=True"
        )
    raise ConfigError(f"{directory}: holds neither {SINGLE} nor {INDEX}")


def has_weights(directory: Path) -> bool:
    """Whether a directory claims to hold weights of any kind, so that their absence is an error or a choice."""
    patterns = ("*.safetensors", INDEX, *_PICKLES)
    return any(next(directory.glob(pattern), None) is not None for pattern in patterns)


def _indexed(directory: Path) -> dict[str, tuple[Path, Entry]]:
    index = directory / INDEX
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ConfigError(f"{index}: weight_map is {short(weight_map)}; it must map tensor names to files")
    shards = {file: read_header(_shard(directory, index, file)) for file in _files(index, weight_map)}
    entries: dict[str, tuple[Path, Entry]] = {}
    for file, header in shards.items():
        path = directory / file
        for name, entry in header.items():
            if name in entries:
                raise ConfigError(f"{path}: {name} stands also in {entries[name][0].name}; it must be in one")
            entries[name] = (path, entry)
    for name, file in weight_map.items():
        if name not in shards[file]:
            raise ConfigError(f"{index}: weight_map puts {name} in {file}, which does not hold it")
    return entries


def _files(index: Path, weight_map: dict[str, Any]) -> list[str]:
    """The shards, each a plain file name: a checkpoint may not reach outside its directory."""
    good = set[str]()
    for name, file in weight_map.items():
        if isinstance(file, str) and file in good:
            continue
        if not isinstance(file, str) or file != Path(file).name or not file.endswith(".safetensors"):
            raise ConfigError(
                f"{index}: weight_map: {name} is in {short(file)}; it must be a .safetensors file beside it"
            )
        good.add(file)
    return sorted(good)


def _shard(directory: Path, index: Path, file: str) -> Path:
    if not is_there(directory / file):
        present = len(list(directory.glob("*.safetensors")))
        raise ConfigError(
            f"{index}: weight_map names {cut(file)}, which is not in {directory} ({present} shards are); "
            "download it again"
        )
    return directory / file
