"""The reference with quantised inputs: products with some tensors round what they multiply to codes first."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..models.blocks import Graph, Moe
from .held_inputs import InputCodes, rounded

Codes = Sequence[InputCodes]


def codes_by_parameter(model: Any, graph: Graph, codes: Mapping[str, Codes]) -> dict[str, Codes]:
    """By the name of a parameter of a transformers model: a projection's own, or that of all experts of a layer."""
    names = [name for name, _ in model.named_parameters()]
    found = {name: codes[name] for name in names if name in codes}
    for layer in graph.layers:
        if not isinstance(layer.mlp, Moe):
            continue
        experts = layer.mlp.experts
        for tensor, end in ((experts.gate_up[0], "gate_up_proj"), (experts.down, "down_proj")):
            own = codes.get(tensor.format(0))
            pattern = re.compile(rf"layers\.{layer.index}\..*experts\.{end}$")
            found |= {name: own for name in names if own is not None and pattern.search(name)}
    return found


def quantised_inputs(torch: Any, model: Any, codes: Mapping[str, Codes]) -> Any:
    """A mode of torch in which inputs of products with the named parameters, or with parts of them, become codes."""
    parameters = dict(model.named_parameters())
    by_storage = {parameters[name].untyped_storage().data_ptr(): own for name, own in codes.items()}
    products = (
        torch.nn.functional.linear,
        torch.matmul,
        torch.bmm,
        torch.Tensor.matmul,
        torch.Tensor.__matmul__,
        torch.Tensor.bmm,
    )

    class Inputs(torch.overrides.TorchFunctionMode):  # type: ignore[misc]  # torch comes by a lazy door
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func in products and isinstance(args[1], torch.Tensor):
                own = by_storage.get(args[1].untyped_storage().data_ptr())
                if own is not None:
                    args = (rounded_rows(torch, args[0], own), *args[1:])
            return func(*args, **(kwargs or {}))

    return Inputs()


def rounded_rows(torch: Any, x: Any, codes: Codes) -> Any:
    """An input [..., columns] as what its codes mean."""
    rows = np.ascontiguousarray(x.detach().float().numpy()).reshape(-1, x.shape[-1])
    return torch.from_numpy(rounded(rows, codes)).reshape(x.shape).to(x.dtype)
