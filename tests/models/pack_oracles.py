"""compressed-tensors as an oracle: its compressors on torch tensors, and their state as a checkpoint stores it."""

import sys
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import numpy as np
import torch
import transformers.masking_utils  # noqa: F401  looks for psutil itself, so it goes first

from siltwin.isa.dtype import DTYPES, DType

_lacks_psutil = find_spec("psutil") is None
if _lacks_psutil:  # compressed-tensors' loader of offloaded models asks for it, and no test loads one
    sys.modules["psutil"] = ModuleType("psutil")

from compressed_tensors.compressors import BaseCompressor  # noqa: E402
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme  # noqa: E402
from compressed_tensors.quantization.utils import calculate_qparams  # noqa: E402

if _lacks_psutil:
    del sys.modules["psutil"]

Array = np.ndarray[Any, Any]
Stored = tuple[Array, DType]

_NAMES = {
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "fp8_e4m3",
    torch.float8_e8m0fnu: "e8m0",
    torch.int8: "int8",
    torch.uint8: "uint8",
    torch.int32: "int32",
    torch.int64: "int64",
}


def stored(tensor: torch.Tensor) -> Stored:
    """A tensor's bytes in storage form, as a safetensors file would give them."""
    dtype = DTYPES[_NAMES[tensor.dtype]]
    tensor = tensor.detach().contiguous()
    as_integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    return tensor.view(as_integer).numpy().view(dtype.storage), dtype


def library(form: str, state: dict[str, torch.Tensor], weights: dict[str, Any]) -> tuple[dict[str, Stored], Array]:
    """(the compressed state as stored, the library's own decompressed weight as float32)."""
    compressed = compress(form, state, weights)
    return {name: stored(tensor) for name, tensor in compressed.items()}, decompressed(form, compressed, weights)


def compress(form: str, state: dict[str, torch.Tensor], weights: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The library's compressed state of a module's weight and scales."""
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**weights), format=form)
    packed: dict[str, torch.Tensor] = BaseCompressor.get_value_from_registry(form).compress(state, scheme)
    return packed


def decompressed(form: str, state: dict[str, torch.Tensor], weights: dict[str, Any]) -> Array:
    """The library's weight of a compressed state, as float32."""
    weight: Array = decompress(form, state, weights).float().numpy()
    return weight


def decompress(form: str, state: dict[str, torch.Tensor], weights: dict[str, Any]) -> torch.Tensor:
    """The library's weight of a compressed state, in the dtype that it gives it."""
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**weights), format=form)
    weight: torch.Tensor = BaseCompressor.get_value_from_registry(form).decompress(state, scheme)["weight"]
    return weight


def scales_of(
    weight: torch.Tensor, args: dict[str, Any], rows: int, cols: int, global_scale: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The library's scales and zero points for blocks of rows x cols (both dividing the weight)."""
    blocks = weight.reshape(weight.shape[0] // rows, rows, weight.shape[1] // cols, cols)
    low, high = blocks.amin(dim=(1, 3)), blocks.amax(dim=(1, 3))
    scale, zero = calculate_qparams(low, high, QuantizationArgs(**args), global_scale)
    return scale, zero
