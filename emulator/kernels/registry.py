"""The table of kernels: importing this file binds every instruction of the tensor, vector, dma and host units."""

from __future__ import annotations

from . import (
    attention_parts_binders,
    dispatch_binders,
    dma_binders,
    elementary_binders,
    expert_binders,
    fused_binders,
    host_binders,
    latent_binders,
    partial_binders,
    product_binders,
    quantised_binders,
    recurrent_binders,
    residual_binders,
    scaling_binders,
    sparse_binders,
    tensor_binders,
    vector_binders,
)
from .binding import KERNELS, Binder, Thunk
from .threads import host_threads, set_host_threads

MODULES = (
    tensor_binders,
    latent_binders,
    partial_binders,
    attention_parts_binders,
    sparse_binders,
    vector_binders,
    elementary_binders,
    quantised_binders,
    product_binders,
    expert_binders,
    dispatch_binders,
    recurrent_binders,
    scaling_binders,
    residual_binders,
    dma_binders,
    host_binders,
    fused_binders,
)

__all__ = ["KERNELS", "MODULES", "Binder", "Thunk", "host_threads", "set_host_threads"]
