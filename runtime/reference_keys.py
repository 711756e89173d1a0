"""The indexers of a transformers model: which keys they chose, and how they are told to choose otherwise."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..isa.instruction import Array


@contextlib.contextmanager
def chosen_keys(torch: Any, layers: Sequence[Any], forced: Mapping[int, Array]) -> Iterator[dict[int, Array]]:
    """While it lasts, the positions [tokens, chosen] that each layer's indexer would choose are filed by layer.

    `forced` are those that its first tokens attend to instead. A row that holds -1 has fewer keys than are chosen, and
    takes them all.
    """
    seen: dict[int, Array] = {}
    hooks = [
        module.register_forward_hook(_hook(torch, index, forced.get(index), seen))
        for index, layer in enumerate(layers)
        for module in layer.modules()
        if type(module).__name__.endswith("Indexer")
    ]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def _hook(torch: Any, index: int, forced: Array | None, seen: dict[int, Array]) -> Callable[..., Any]:
    def hook(_module: Any, _inputs: Any, output: Any) -> Any:
        seen[index] = output[0].numpy().copy()
        if forced is None or forced.shape[-1] != output.shape[-1]:  # all keys are fewer than are chosen
            return None
        rows = np.flatnonzero((forced >= 0).all(axis=-1))
        told = output.clone()
        told[0, torch.from_numpy(rows)] = torch.from_numpy(forced[rows]).to(output.dtype)
        return told

    return hook
