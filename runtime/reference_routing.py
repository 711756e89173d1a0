"""The routers of a transformers model: what they chose, by what scores, and how they are told to choose otherwise."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..isa.instruction import Array
from ..models.blocks import Router
from .routes import Routes

_ROUTER = re.compile(r"router$", re.IGNORECASE)  # how all classes of routers are named, whatever the family


def routers_of(layers: Sequence[Any], wanted: Mapping[int, Router]) -> dict[int, Any]:
    """The module of every layer's router; a layer whose router is not found is left out."""
    found = {}
    for index in wanted:
        modules = [module for module in layers[index].modules() if _ROUTER.search(type(module).__name__)]
        if len(modules) == 1:
            found[index] = modules[0]
    return found


@contextlib.contextmanager
def watched(
    torch: Any, modules: Mapping[int, Any], routers: Mapping[int, Router], forced: Mapping[int, Array]
) -> Iterator[dict[int, Routes]]:
    """While it lasts, what each router chooses is filed by layer, and tokens take the experts that are forced.

    `forced` are ids [tokens, chosen] by layer; tokens beyond them choose for themselves. What is filed is what the
    router would have chosen. The weights are the model's own code's: only what its top-k returns is replaced.
    """
    seen: dict[int, Routes] = {}
    for index, module in modules.items():
        module.forward = _forward(torch, module.forward, index, routers[index], forced.get(index), seen)
    try:
        yield seen
    finally:
        for module in modules.values():
            del module.forward


def _forward(
    torch: Any, forward: Any, index: int, router: Router, forced: Array | None, seen: dict[int, Routes]
) -> Any:
    """The forward of one router, with its top-k watched."""

    def run(*inputs: Any, **named: Any) -> Any:
        free = _top_k_mode(torch, router, None)
        with free:
            output = forward(*inputs, **named)
        logits = output[0] if len(output) == 3 else output[1]
        seen[index] = Routes(free.ids, _array(logits), free.choice, free.groups)
        if forced is None:
            return output
        with _top_k_mode(torch, router, forced):
            return forward(*inputs, **named)

    return run


def _array(tensor: Any) -> Array:
    found: Array = tensor.detach().float().numpy().copy()
    return found


def _top_k_mode(torch: Any, router: Router, forced: Array | None) -> Any:
    """A mode of torch in which the top-k of experts, and of groups, is recorded and replaced."""
    experts = router.projection.out_features[0]

    class TopK(torch.overrides.TorchFunctionMode):  # type: ignore[misc]  # torch comes by a lazy door
        ids: Array
        choice: Array
        groups: Array | None = None

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            found = func(*args, **(kwargs or {}))
            if func not in (torch.topk, torch.Tensor.topk) or args[0].dim() != 2:
                return found
            scores = args[0]
            if self.groups is None and router.groups > 1 and scores.shape[-1] == router.groups:
                self.groups = _array(scores)
                return found if forced is None else self._groups(scores, found, forced)
            if scores.shape[-1] != experts:
                return found
            self.ids, self.choice = found[1].numpy().copy(), _array(scores)
            return found if forced is None else self._experts(scores, found, forced)

        def _experts(self, scores: Any, found: Any, forced: Array) -> Any:
            ids = found[1].clone()
            ids[: len(forced)] = torch.from_numpy(np.ascontiguousarray(forced, np.int64))
            return torch.return_types.topk((scores.gather(-1, ids), ids))

        def _groups(self, scores: Any, found: Any, forced: Array) -> Any:
            """The groups of the forced experts first, then the best of the others."""
            lifted = scores.double().clone()
            wanted = torch.from_numpy(np.ascontiguousarray(forced, np.int64)) // (experts // router.groups)
            rows = lifted[: len(forced)]
            rows.scatter_(-1, wanted, rows.gather(-1, wanted) + 2 * (1 + lifted.abs().max()))
            ids = torch.topk(lifted, found[1].shape[-1], dim=-1)[1]
            return torch.return_types.topk((scores.gather(-1, ids), ids))

    return TopK()
