"""GGUF checkpoints: llama.cpp's keys and tensor names turned into the published ones, dequantised a slice at a time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..isa.dtype import BF16, FP16, FP32, DType
from ..isa.errors import ConfigError, NotYetError, UnsupportedError
from ..isa.late import late
from .blocks import Graph
from .config import read_config
from .fields import short
from .gguf_file import GgufFile, GgufTensor
from .graph import parameter_shapes
from .model_config import ModelConfig
from .registry import family_of_gguf, known_families
from .store import Array, Shape

if TYPE_CHECKING:
    import gguf
else:
    gguf = late("gguf")

_DIRECT = {"F32": FP32, "F16": FP16, "BF16": BF16}
# llama.cpp's key (after "<arch>.") to the published one; both mean the same number
_KEYS = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "rope.freq_base": "rope_theta",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
}
_ROPE_KEYS = {
    "rope.scaling.factor": "factor",
    "rope.scaling.original_context_length": "original_max_position_embeddings",
    "rope.scaling.yarn_beta_fast": "beta_fast",
    "rope.scaling.yarn_beta_slow": "beta_slow",
}
_IGNORED = {"vocab_size", "rope.scaling.finetuned"}  # vocab_size is the embedding's rows


class GgufStore:
    """The tensors of a GGUF file under their published names; quantised ones are read as fp32."""

    def __init__(self, file: GgufFile, config: ModelConfig, graph: Graph) -> None:
        self._file = file
        self._config = config
        self._sources = _match(file, graph)
        self._permuted = file.metadata["general.architecture"] == "llama"

    def names(self) -> Iterable[str]:
        """The tensors that have a published name, then the others under the file's own."""
        used = {tensor.name for tensor in self._sources.values()}
        return [*self._sources, *(name for name in self._file.tensors if name not in used)]

    def shape(self, name: str) -> Shape:
        """[rows, columns] or [elements]."""
        return self._tensor(name).shape

    def dtype(self, name: str) -> DType:
        """fp16 and bf16 as stored; everything else as fp32."""
        return _DIRECT.get(self._tensor(name).kind.name, FP32)

    def where(self, name: str) -> str:
        """The file."""
        return str(self._file.path)

    def read(self, name: str, axis: int, start: int, stop: int) -> Array:
        """The slice in storage form; only the rows and blocks it touches are dequantised."""
        tensor = self._tensor(name)
        if len(tensor.shape) == 1:
            values = self._decode(tensor, self._blocks(tensor))[self._rows(name, tensor, start, stop)]
        elif axis == 0:
            values = self._decode(tensor, self._blocks(tensor)[self._rows(name, tensor, start, stop)])
        else:
            rows = self._rows(name, tensor, 0, tensor.shape[0])
            block, block_bytes = gguf.GGML_QUANT_SIZES[tensor.kind]
            first, last = start // block, -(-stop // block)
            part = self._blocks(tensor)[:, first * block_bytes : last * block_bytes][rows]
            values = self._decode(tensor, part)[:, start - first * block : stop - first * block]
        return np.ascontiguousarray(values)

    def _tensor(self, name: str) -> GgufTensor:
        return self._sources[name] if name in self._sources else self._file.tensors[name]

    def _blocks(self, tensor: GgufTensor) -> Array:
        """The stored bytes, uint8 [rows, bytes a row], or [bytes] for a vector; a view of the file."""
        flat = np.frombuffer(self._file.content, np.uint8, tensor.num_bytes, tensor.begin)
        return flat if len(tensor.shape) == 1 else flat.reshape(tensor.shape[0], -1)

    def _decode(self, tensor: GgufTensor, stored: Array) -> Array:
        dtype = _DIRECT.get(tensor.kind.name)
        if dtype is not None:
            return np.ascontiguousarray(stored).view(dtype.storage)
        try:
            decoded: Array = gguf.dequantize(np.ascontiguousarray(stored), tensor.kind)
        except NotImplementedError:
            raise NotYetError(
                f"{self._file.path}: {tensor.name}: the gguf library cannot decode {tensor.kind.name}"
            ) from None
        return decoded

    def _rows(self, name: str, tensor: GgufTensor, start: int, stop: int) -> slice | Array:
        """Which stored rows are published rows [start, stop).

        For the llama architecture llama.cpp stores the rows of q and k so that the halves of a rotated pair are
        neighbours; every other tensor keeps its order.
        """
        heads = {"q_proj": self._config.num_heads, "k_proj": self._config.num_kv_heads}
        part = name.rsplit(".", 2)[-2] if "." in name else ""
        if not self._permuted or part not in heads:
            return slice(start, stop)
        pairs = tensor.shape[0] // heads[part] // 2
        order = np.arange(tensor.shape[0]).reshape(heads[part], pairs, 2).swapaxes(1, 2).reshape(-1)
        return np.asarray(order[start:stop])


def gguf_config(file: GgufFile) -> ModelConfig:
    """The ModelConfig that the metadata states, read by the same reader as a config.json."""
    return read_config(_hf_keys(file), name=file.path.stem, where=str(file.path))


def _hf_keys(file: GgufFile) -> dict[str, Any]:
    """The metadata as a config.json; a key of the architecture with no counterpart is refused."""
    architecture = file.metadata.get("general.architecture")
    family = family_of_gguf(architecture) if isinstance(architecture, str) else None
    if family is None:
        raise UnsupportedError(
            f"{architecture} is not supported: general.architecture of {file.path}; "
            f"known: {', '.join(known_families())}"
        )
    prefix = f"{architecture}."
    own = {key.removeprefix(prefix): _plain(value) for key, value in file.metadata.items() if key.startswith(prefix)}
    raw: dict[str, Any] = {"model_type": family.name, "hidden_act": "silu"}  # llama.cpp has no key for it
    raw |= {_KEYS[key]: own.pop(key) for key in list(own) if key in _KEYS}
    scaling = own.pop("rope.scaling.type", "none")
    if scaling != "none":
        raw["rope_scaling"] = {"rope_type": scaling}
        raw["rope_scaling"] |= {_ROPE_KEYS[key]: own.pop(key) for key in list(own) if key in _ROPE_KEYS}
    _refuse(file, own, raw)
    raw |= {
        "vocab_size": _embedding_rows(file),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "bos_token_id": file.metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": file.metadata.get("tokenizer.ggml.eos_token_id"),
    }
    if family.name in ("llama", "qwen3"):
        raw["attention_bias"] = "blk.0.attn_q.bias" in file.tensors
    if family.name == "llama":
        raw["mlp_bias"] = "blk.0.ffn_gate.bias" in file.tensors
    return raw


def _refuse(file: GgufFile, own: dict[str, Any], raw: dict[str, Any]) -> None:
    """Raise for keys of the architecture that change the mathematics and that nothing has read."""
    head_dim = raw.get("head_dim") or _quotient(raw.get("hidden_size"), raw.get("num_attention_heads"))
    neutral = {
        "rope.dimension_count": (head_dim,),
        "attention.value_length": (head_dim,),
        "expert_count": (0,),
        "expert_used_count": (0,),
    }
    wrong = {key: value for key, value in own.items() if key not in _IGNORED and value not in neutral.get(key, ())}
    if wrong:
        listed = ", ".join(f"{key}={short(value)}" for key, value in wrong.items())
        raise UnsupportedError(f"{file.path}: {raw['model_type']} from GGUF does not know {listed}")
    factors = file.tensors.get("rope_freqs.weight")
    if factors is not None:
        raise NotYetError(
            f"{file.path}: rope_freqs.weight scales the rope frequencies (Llama 3.1), which is not read from GGUF yet; "
            "use the checkpoint in safetensors"
        )


def _embedding_rows(file: GgufFile) -> int:
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise ConfigError(f"{file.path}: token_embd.weight is missing or no matrix")
    return embedding.shape[0]


def _quotient(value: Any, divisor: Any) -> int | None:
    return value // divisor if isinstance(value, int) and isinstance(divisor, int) and divisor > 0 else None


def _plain(value: Any) -> Any:
    """GGUF keeps floats as float32; 9.9999997e-06 was 1e-05, which is the same float32."""
    return float(str(np.float32(value))) if isinstance(value, float) else value


def _match(file: GgufFile, graph: Graph) -> dict[str, GgufTensor]:
    """Published name to tensor, through the library's own table of names; what is absent is left out."""
    wanted = file.metadata["general.architecture"]
    arch = next(arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == wanted)
    table = gguf.get_tensor_name_map(arch, len(graph.layers))
    found = {}
    for name in parameter_shapes(graph):
        own = table.get_name(name, try_suffixes=(".weight", ".bias"))
        if own in file.tensors:
            found[name] = file.tensors[own]
    return found
