"""The checkpoint door: a directory, GGUF file, config.json or name becomes a graph, weights and a tokenizer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import cast

import numpy as np

from ..isa.dtype import FP32, DType, decode, encode
from ..isa.errors import ConfigError, NotYetError, UnsupportedError
from ..isa.formats.quantise import Packed, scale_values
from ..isa.formats.window import Window
from .blocks import Graph
from .config import read_config, read_json
from .decay_store import with_decays
from .dense_decoder import token_ids
from .fields import Fields
from .fused_experts import with_hub_names
from .gguf_file import read_gguf
from .gguf_store import GgufStore, gguf_config
from .graph import build_graph, parameter_shapes
from .model_config import ModelConfig
from .of_tensors import OfTensors
from .packed import drawn_uses, open_packed
from .packs.packed_store import RawStore
from .packs.quantised_store import QuantisedStore
from .paths import is_there
from .prefixed_store import without_prefix
from .random_weights import RandomStore
from .safetensors_store import has_weights, open_safetensors
from .shelf import find_model
from .store import Array, HoldsPacked, PackedTensor, Shape, TensorStore
from .tokenizer import Tokenizer, tokenizer_of_directory, tokenizer_of_gguf

_PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_LOADABLE = ("fp32", "fp16", "bf16")
_ROWS_AT_ONCE = 4096
# Buffers that older transformers saved, and multi-token-prediction layers: not part of the forward pass.
_HARMLESS_EXTRA = re.compile(
    r"(.*\.)?(rotary_emb\.inv_freq|rotary_emb\.(cos|sin)_cached|masked_bias)$|(model\.)?mtp\..*"
)
_NOT_NUMBERS = {"fp8_e4m3": np.uint8(0x7F), "fp8_e5m2": np.uint8(0x7C)}  # codes from here on are none, signs aside
_ACTIVATION_SCALES = (
    ".input_scale",
    ".input_zero_point",
    ".input_global_scale",
    ".activation_scale",
    ".k_scale",
    ".v_scale",
)


@dataclass(frozen=True)
class Checkpoint:
    """A model that can be run: what it is, its weights and its tokenizer.

    `source` says in words where the weights come from; `warnings` are for the report. `skipped` are tensors of the file
    that are no part of the model's forward pass, such as layers that predict further tokens and other towers.
    """

    config: ModelConfig
    graph: Graph
    source: str
    tokenizer: Tokenizer | None
    warnings: tuple[str, ...]
    store: TensorStore = field(repr=False)
    shapes: OfTensors[Shape] = field(repr=False)
    skipped: tuple[str, ...] = field(default=(), repr=False)

    def names(self) -> tuple[str, ...]:
        """Every tensor of the graph, in the order the model reads them; a tied lm_head is the embedding."""
        return tuple(self.shapes)

    def tensor(
        self, name: str, start: int | None = None, stop: int | None = None, axis: int = 0
    ) -> tuple[Array, DType]:
        """Elements [start, stop) of a tensor along `axis`, in the file's storage form, and their dtype.

        Reads in proportion to the slice. Raises ConfigError for an unknown name or a slice outside the tensor.
        """
        if name not in self.shapes:
            raise ConfigError(f"{self.config.name} has no tensor {name!r}")
        shape = self.shapes[name]
        if not 0 <= axis < len(shape):
            raise ConfigError(f"{name} has {len(shape)} axes; axis {axis} is none of them")
        first, last = 0 if start is None else start, shape[axis] if stop is None else stop
        if not 0 <= first <= last <= shape[axis]:
            raise ConfigError(f"{name}: slice [{first}, {last}) is not within its {shape[axis]} along axis {axis}")
        return self.store.read(name, axis, first, last), self.store.dtype(name)

    def load(self, name: str, dtype: DType, start: int | None = None, stop: int | None = None, axis: int = 0) -> Array:
        """The slice as `dtype` in storage form, C-contiguous, rounded to nearest even where it narrows.

        Raises ConfigError, naming file and tensor, for NaN or infinite weights and for those that `dtype` cannot hold.
        """
        if dtype.name not in _LOADABLE:
            raise NotYetError(f"weights as {dtype.name} are not supported yet; known: {', '.join(_LOADABLE)}")
        stored, own = self.tensor(name, start, stop, axis)
        if not _all_finite(stored, own):
            raise ConfigError(f"{self.store.where(name)}: {name} holds NaN or infinite weights; the file is damaged")
        if own is dtype:
            return np.ascontiguousarray(stored)
        with np.errstate(over="ignore"):
            converted = encode(decode(np.ascontiguousarray(stored), own), dtype)
        if not _all_finite(converted, dtype):
            raise ConfigError(
                f"{self.store.where(name)}: {name} holds weights beyond the range of {dtype.name}; use bf16 or fp32"
            )
        return converted

    @cached_property
    def packed(self) -> OfTensors[PackedTensor]:
        """How every weight that is stored packed is, by name."""
        return self.store.packed() if isinstance(self.store, HoldsPacked) else OfTensors()

    def read_packed(self, name: str, axis: int, start: int, stop: int) -> tuple[Packed, Window]:
        """The whole blocks that cover [start, stop) along an axis of a packed weight [..., out, in], and where they
        are. Raises ConfigError, naming file and tensor, for scales that are NaN or infinite."""
        assert isinstance(self.store, HoldsPacked), f"{name} is not stored packed"
        found, window = self.store.read_packed(name, axis, start, stop)
        if not np.isfinite(scale_values(found.scheme, found.scales)).all():
            raise ConfigError(f"{self.store.where(name)}: {name} has NaN or infinite scales; the file is damaged")
        least = _NOT_NUMBERS.get(found.scheme.element.name)
        if least is not None and bool(((found.codes & np.uint8(0x7F)) >= least).any()):
            raise ConfigError(f"{self.store.where(name)}: {name} holds NaN or infinite weights; the file is damaged")
        return found, window

    def require_tokenizer(self) -> Tokenizer:
        """The tokenizer; ConfigError when the checkpoint has none."""
        if self.tokenizer is None:
            raise ConfigError(f"{self.source} has no tokenizer; give token ids instead of text")
        return self.tokenizer


def open_checkpoint(model: str | Path, seed: int = 0) -> Checkpoint:
    """The checkpoint that `model` means.

    `model` is a Hugging Face directory (config.json and safetensors), a .gguf file, a config.json (seeded random
    weights), or a name on the shelf. Tensors of real weights are checked for presence, shape and dtype here, and for
    NaN when they are loaded. `seed` matters only for random weights. Raises ConfigError, UnsupportedError or
    NotYetError naming the file and the field. Nothing in a checkpoint is ever executed.
    """
    path = _model_path(model)
    if path.is_dir():
        return _open_directory(path)
    return _open_gguf(path) if path.suffix == ".gguf" else _open_config(path, seed)


def open_config(model: str | Path) -> ModelConfig:
    """The config of what `open_checkpoint` opens, without a look at its weights; the same errors."""
    path = _model_path(model)
    if path.is_dir():
        return _directory_config(path)
    if path.suffix == ".gguf":
        return gguf_config(read_gguf(path))
    return _with_generation_eos(read_config(path), path.parent)


def _model_path(model: str | Path) -> Path:
    """The directory, .gguf or .json file that a model means."""
    path = find_model(str(model))
    if path.is_dir() or path.suffix in (".gguf", ".json"):
        return path
    if path.suffix in _PICKLE_SUFFIXES:
        raise UnsupportedError(f"{path}: pickled weights can run code when opened, so siltwin never reads them")
    raise ConfigError(f"{path}: give the directory of a model, a .gguf file, a config.json or a known name")


def random_checkpoint(config: ModelConfig, seed: int = 0, tokenizer: Tokenizer | None = None) -> Checkpoint:
    """A checkpoint of seeded random weights for any config, such as one from `scaled`."""
    graph = build_graph(config)
    shapes = parameter_shapes(graph)
    source = f"{config.source}, random weights (seed {seed})"
    warnings, store = config.assumed, cast(TensorStore, RandomStore(shapes, seed))
    if config.quantization is not None:
        store = QuantisedStore(store, config.quantization, drawn_uses(graph, shapes))
        warnings += (f"the config quantises weights ({config.quantization.method}); random ones are drawn and rounded",)
    return Checkpoint(config, graph, source, tokenizer, warnings, store, shapes)


def _directory_config(directory: Path) -> ModelConfig:
    if not is_there(directory / "config.json"):
        found = sorted(path.name for path in directory.glob("*.gguf"))
        hint = f"; name the file itself: {', '.join(found)}" if found else ""
        raise ConfigError(f"{directory}: has no config.json{hint}")
    return _with_generation_eos(read_config(directory), directory)


def _open_directory(directory: Path) -> Checkpoint:
    config = _directory_config(directory)
    if not has_weights(directory):
        raise ConfigError(f"{directory}: has no weights; give {directory / 'config.json'} for seeded random ones")
    tokenizer = tokenizer_of_directory(directory, config.eos_ids)
    store = open_safetensors(directory)
    return _checked(config, store, str(directory), tokenizer, raw=store)


def _open_gguf(path: Path) -> Checkpoint:
    file = read_gguf(path)
    config = gguf_config(file)
    store = GgufStore(file, config, build_graph(config))
    return _checked(config, store, str(path), tokenizer_of_gguf(file, config.eos_ids))


def _open_config(path: Path, seed: int) -> Checkpoint:
    config = _with_generation_eos(read_config(path), path.parent)
    return random_checkpoint(config, seed, tokenizer_of_directory(path.parent, config.eos_ids))


def _with_generation_eos(config: ModelConfig, directory: Path) -> ModelConfig:
    """generation_config.json, where it lies beside the config, says which tokens end a generation."""
    path = directory / "generation_config.json"
    raw = read_json(path) if is_there(path) else {}
    if raw.get("eos_token_id") is None:
        return config
    eos = token_ids(Fields(raw, str(path)), "eos_token_id")
    return replace(config, eos_ids=eos, resolved={**config.resolved, "eos_token_id": list(eos)})


def _checked(
    config: ModelConfig, store: TensorStore, source: str, tokenizer: Tokenizer | None, raw: RawStore | None = None
) -> Checkpoint:
    """A checkpoint whose every tensor is there with the right shape and dtype; `raw` may hold packed ones."""
    graph = build_graph(config)
    shapes = parameter_shapes(graph)
    if raw is not None:
        store = raw = without_prefix(raw, graph.embedding)
    packed_notes: list[str] = []
    if raw is not None and config.quantization is not None:
        store, packed_notes = open_packed(raw, config.quantization, graph, shapes)
    store = with_decays(with_hub_names(store, graph), graph)
    present = set(store.names())
    missing = [name for name in shapes if name not in present]
    if missing:
        raise ConfigError(f"{source}: {len(missing)} of {len(shapes)} tensors are missing: {_first(missing)}")
    for name, shape in shapes.items():
        if store.shape(name) != shape:
            raise ConfigError(
                f"{store.where(name)}: {name} has shape {list(store.shape(name))}; "
                f"the config of {config.name} asks for {list(shape)}"
            )
        store.dtype(name)  # raises for what is no weight
    skipped = tuple(sorted(present - set(shapes)))
    warnings = [*config.assumed, *packed_notes, *_extra(config, graph, store, set(skipped))]
    if tokenizer is not None and tokenizer.vocab_size > config.vocab_size:
        warnings.append(f"the tokenizer has {tokenizer.vocab_size} ids; the model embeds only {config.vocab_size}")
    return Checkpoint(config, graph, source, tokenizer, tuple(warnings), store, shapes, skipped)


def _extra(config: ModelConfig, graph: Graph, store: TensorStore, extra: set[str]) -> Iterator[str]:
    """A warning for tensors that the graph does not use, save those known to be no part of a forward pass."""
    if graph.tied and "lm_head.weight" in extra:
        extra = extra - {"lm_head.weight"}
        if not _equal(store, graph.embedding, "lm_head.weight"):
            raise ConfigError(
                f"{store.where('lm_head.weight')}: lm_head.weight differs from {graph.embedding}, but "
                "tie_word_embeddings is true; set it to false to use both"
            )
    beyond = re.compile(r"model\.layers\.(\d+)\.")
    left = []
    for name in sorted(extra):
        layer = beyond.match(name)
        if _HARMLESS_EXTRA.match(name) or (layer and int(layer[1]) >= config.num_layers):
            continue  # layers past the last are multi-token prediction
        if config.quantization is not None and name.endswith(_ACTIVATION_SCALES):
            continue  # the warnings say already that activations and caches are not quantised
        left.append(name)
    if left:
        yield f"{len(left)} tensors of the checkpoint are not used: {_first(left)}"


def _equal(store: TensorStore, name: str, other: str) -> bool:
    """Whether two tensors hold the same bytes, compared some thousand rows at a time."""
    if store.shape(name) != store.shape(other) or store.dtype(name) is not store.dtype(other):
        return False
    rows = store.shape(name)[0]
    return all(
        np.array_equal(store.read(name, 0, at, stop), store.read(other, 0, at, stop))
        for at, stop in ((at, min(rows, at + _ROWS_AT_ONCE)) for at in range(0, rows, _ROWS_AT_ONCE))
    )


def _all_finite(stored: Array, dtype: DType) -> bool:
    """No NaN and no infinity; 16-bit floats are judged by their exponent bits, without widening."""
    if dtype is FP32:
        return bool(np.isfinite(stored).all())
    exponent = np.uint16(0x7F80 if dtype.name == "bf16" else 0x7C00)
    return not bool(((stored.view(np.uint16) & exponent) == exponent).any())


def _first(names: list[str]) -> str:
    return ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
