"""The reference with a coded cache: what attention reads of keys, values and latents is rounded to codes first."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..isa.instruction import Array
from ..models.blocks import Attention, Graph, LatentAttention
from .held_cache import CacheCodes

Round = Callable[[Array], Array]


@contextlib.contextmanager
def coded_cache(torch: Any, transformers: Any, model: Any, graph: Graph, codes: CacheCodes) -> Iterator[None]:
    """While it lasts, caches of a transformers model give back what the cards' would; it must run with a cache."""
    attentions = [layer.attention for layer in graph.layers]
    cache = transformers.cache_utils.Cache
    plain = cache.update

    def update(self: Any, keys: Any, values: Any, layer_idx: int, *rest: Any, **named: Any) -> Any:
        attention = attentions[layer_idx]
        if isinstance(attention, Attention):
            keys, values = (by_rows(torch, part, codes.head) for part in (keys, values))
        elif isinstance(attention, LatentAttention) and keys.shape[-1] == attention.latent_dim:
            values = by_rows(torch, values, codes.rotated)  # a cache of latents and the rotated part
        elif isinstance(attention, LatentAttention):
            rotated = by_rows(torch, keys[..., attention.nope_dim :], codes.rotated)
            keys = torch.cat([keys[..., : attention.nope_dim], rotated], dim=-1)
        return plain(self, keys, values, layer_idx, *rest, **named)

    def latent(_module: Any, _inputs: Any, output: Any) -> Any:
        return by_rows(torch, output, codes.latent)

    norms = [module for name, module in model.named_modules() if name.endswith(".kv_a_layernorm")]
    hooks = [module.register_forward_hook(latent) for module in norms]
    cache.update = update
    try:
        yield
    finally:
        cache.update = plain
        for hook in hooks:
            hook.remove()


def by_rows(torch: Any, x: Any, change: Round) -> Any:
    """A tensor [..., columns] with its rows changed, in its own dtype."""
    rows = np.ascontiguousarray(x.detach().float().numpy()).reshape(-1, x.shape[-1])
    return torch.from_numpy(np.ascontiguousarray(change(rows), np.float32)).reshape(x.shape).to(x.dtype)
