"""What caches in codes hold, for the reference to read alike: keys and values by head, latents by groups."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..isa.activations import activation_scheme
from ..isa.dtype import BF16, DType, decode, encode
from ..isa.formats.form import Form
from ..isa.formats.quantise import dequantise, quantise
from ..isa.instruction import Array
from .lowering.passes.cache import LATENT_GROUP
from .lowering.passes.packed import LARGEST
from .plan import JobPlan


@dataclass(frozen=True)
class CacheCodes:
    """Caches of `element`: with `by_head` a scale for each head of a token, else the elements as they are."""

    element: DType
    by_head: bool

    def head(self, values: Array) -> Array:
        """Keys or values of heads, [rows, head_dim] in float32, as the cache holds them."""
        if not self.by_head:
            return decode(encode(values, self.element), self.element)
        return self._coded(values, values.shape[-1])

    def latent(self, values: Array) -> Array:
        """Latents, [tokens, latent_dim] in float32, as the cache holds them."""
        return self._coded(values, LATENT_GROUP)

    def rotated(self, values: Array) -> Array:
        """The rotated part of a latent's row, which is held beside the codes."""
        return decode(encode(values, BF16), BF16)

    def _coded(self, values: Array, group: int) -> Array:
        scheme = activation_scheme(Form(self.element, "plain", 1, group), LARGEST[self.element.name], "nearest")
        found: Array = dequantise(quantise(np.ascontiguousarray(values, np.float32), scheme))
        return found


def cache_codes(plan: JobPlan) -> CacheCodes | None:
    """How a job's caches hold codes; None where they hold floats of the plan's dtype."""
    return None if plan.cache is None else CacheCodes(plan.cache.element, plan.cache.by_head)
